"""The largest batch weight a server holds under load: a binary search over server starts.

After LLM-Pilot, section III-C2. The search is a pure function of the probes so far, so
that it can be tested without a server and resumed from a record.
"""

from dataclasses import asdict, dataclass

import numpy as np

# Probes closer than this to the true limit are not worth another server start.
TOLERANCE = 0.05
# Enough tokens to decode a few times after the prefill has filled the KV cache.
_SHORT_OUTPUT_TOKENS = 4


@dataclass(frozen=True)
class Probe:
    """One server start with a batch weight, and what came of it."""

    batch_weight_tokens: int
    outcome: str
    """`ok`, or `out_of_memory`; any other failure ends the tuning with an error."""
    detail: str
    duration_s: float

    def as_dict(self) -> dict:
        """Return the probe as it stands in `tuning.json`."""
        return asdict(self)


def next_weight(
    probes: list[Probe], lowest_tokens: int, highest_tokens: int, max_starts: int
) -> int | None:
    """Return the batch weight to probe next, None when the search has ended.

    The search starts at the upper bound from memory facts, which often works, and
    halves the interval from then on. It has ended well when its last probe passed: that
    server is the one to load. The last start that is left is therefore spent on the best
    weight that passed, or on the lowest if none has.
    """
    failed = [probe.batch_weight_tokens for probe in probes if probe.outcome != "ok"]
    ceiling = min(failed, default=highest_tokens + 1)
    # A weight that passed and then ran out of memory under load has not passed.
    passed = [
        probe.batch_weight_tokens
        for probe in probes
        if probe.outcome == "ok" and probe.batch_weight_tokens < ceiling
    ]
    best = max(passed, default=None)
    last_passed = bool(probes) and probes[-1].outcome == "ok"
    starts_left = max_starts - len(probes)
    if not probes:
        return highest_tokens
    floor = best if best is not None else lowest_tokens
    is_narrow = ceiling - floor <= max(1, TOLERANCE * ceiling)
    if last_passed and (not failed or is_narrow or starts_left < 2):
        return None
    if starts_left <= 0 or lowest_tokens in failed:
        return None
    if is_narrow or starts_left == 1:
        return floor
    return (floor + ceiling) // 2


def corner_cases(
    batch_weight_tokens: int, max_input_tokens: int, max_output_tokens: int, max_num_seqs: int
) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the batches that a batch weight allows at its extremes.

    Each is `(input_tokens, output_tokens)`, one entry a request, all sent at once: one
    longest request, and as many requests of the longest prompt as the weight holds.
    """
    longest = max_input_tokens + _SHORT_OUTPUT_TOKENS
    n_full = int(np.clip(batch_weight_tokens // longest, 1, max_num_seqs))
    return {
        "one longest request": (np.array([max_input_tokens]), np.array([max_output_tokens])),
        "full of longest prompts": (
            np.full(n_full, max_input_tokens),
            np.full(n_full, min(_SHORT_OUTPUT_TOKENS, max_output_tokens)),
        ),
    }
