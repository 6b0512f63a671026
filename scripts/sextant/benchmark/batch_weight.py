"""The largest batch weight a server holds under load: a search over server starts.

After LLM-Pilot, section III-C2, which bisects. A start costs minutes, so this search also
uses what each one tells: how much memory was left at the peak of its load, how much an
allocation that failed lacked, what vLLM's own profiling left for the KV cache. It is a pure
function of the probes so far, so that it can be tested without a server and resumed from a
record. Whatever the reports say, only a weight that was probed and passed is ever chosen.
"""

from dataclasses import asdict, dataclass

from sextant.engine.free_memory import MemoryFacts

# Starts are not spent on weights closer than this to the largest that works.
TOLERANCE = 0.02
# Aimed below an estimate by this, which leaves as much of the tolerance for its error.
_MARGIN = 0.014
# Where to aim between the least and the most that an estimate allows.
_OPTIMISM = 0.7
# What an estimate of the largest weight may be wrong by.
_READING_ERROR = 0.003
# Without an estimate, the guess below the bound that a failed allocation set; also below a
# weight that failed though it had passed, of which the corner cases can tell no more.
_BOUND_GUESS = 0.7


@dataclass(frozen=True)
class Probe:
    """One server start with a batch weight, and what came of it."""

    batch_weight_tokens: int
    outcome: str
    """`ok`, or `out_of_memory`; any other failure ends the tuning with an error."""
    detail: str
    duration_s: float
    memory: MemoryFacts = MemoryFacts()  # noqa: RUF009 (it is frozen)
    is_under_load: bool = False
    """It had passed, and failed under the load of the scenario: the corner cases missed it."""

    def as_dict(self) -> dict:
        """Return the probe as it stands in `tuning.json`."""
        return asdict(self)


@dataclass(frozen=True)
class WeightRange:
    """The weights to search, and what a token takes."""

    lowest_tokens: int
    """The longest request: with less the LLM cannot serve the workload."""
    highest_tokens: int
    """Upper bound from memory facts."""
    kv_bytes_per_token: float
    """KV cache of a token on one device."""
    max_starts: int = 5


def next_weight(probes: list[Probe], limits: WeightRange) -> int | None:
    """Return the batch weight to probe next, None when the search has ended.

    It starts at the upper bound from memory facts, which often works. It has ended well when
    its last probe passed: that server is the one to load. The last start that is left is
    therefore spent on the best weight that passed, or on the lowest if none has. Only failures
    of weights that had passed, under load or started again, let it take more starts than it is
    given: no probe has foreseen them.
    """
    if not probes:
        return limits.highest_tokens
    known = _Known(probes, limits)
    last_passed = probes[-1].outcome == "ok" and known.best is not None
    starts_left = limits.max_starts - len(probes)
    if last_passed and (starts_left < 2 or known.is_close() or known.is_overloaded):
        return None
    if limits.lowest_tokens >= known.ceiling:
        return None
    well_below = max(limits.lowest_tokens, int(_BOUND_GUESS * known.ceiling))
    if known.is_overloaded:
        return well_below
    if starts_left > 1 and not known.is_close():
        return known.guess()
    if known.best is not None:
        return known.best.batch_weight_tokens
    if any(p.outcome == "ok" for p in probes):  # and failed when started again: the edge moves
        return well_below
    return limits.lowest_tokens if starts_left == 1 else None


def possible_gain(probes: list[Probe], limits: WeightRange) -> float | None:
    """Return how much larger a weight that works may be, as a fraction of the best.

    The resolution that the search has reached; None if no weight has passed.
    """
    known = _Known(probes, limits)
    if known.best is None:
        return None
    highest = known.highest_possible()
    return max(0.0, highest / known.best.batch_weight_tokens - 1)


class _Known:
    """What the probes say together."""

    def __init__(self, probes: list[Probe], limits: WeightRange) -> None:
        self.limits = limits
        self.failed = [probe for probe in probes if probe.outcome != "ok"]
        weights = [probe.batch_weight_tokens for probe in self.failed]
        self.ceiling = min(weights, default=limits.highest_tokens + 1)
        # The least weight that failed had passed its corner cases.
        self.is_overloaded = any(
            probe.is_under_load and probe.batch_weight_tokens == self.ceiling
            for probe in self.failed
        )
        self.passed = sorted(
            (p for p in probes if p.outcome == "ok" and p.batch_weight_tokens < self.ceiling),
            key=lambda probe: probe.batch_weight_tokens,
        )
        self.best = self.passed[-1] if self.passed else None
        profiled = [probe.memory.profiled_tokens for probe in probes]
        self.profiled = [tokens for tokens in profiled if tokens is not None]

    def is_close(self) -> bool:
        """Return whether the best weight is within the tolerance of the largest that works."""
        if self.best is None:
            return False
        weight = self.best.batch_weight_tokens
        if self.ceiling - weight <= max(1, TOLERANCE * self.ceiling):
            return True
        return self.highest_possible() <= weight * (1 + TOLERANCE - _READING_ERROR)

    def highest_possible(self) -> int:
        """Return the largest weight that nothing speaks against.

        What an allocation lacked is less certain than what was left: memory in pieces fails
        early, and a host's allocator does not say what was free.
        """
        kv_bytes, estimate = self.limits.kv_bytes_per_token, self.estimate()
        bounds = [
            int(probe.batch_weight_tokens - probe.memory.lacking_bytes / kv_bytes)
            for probe in self.failed
            if probe.memory.lacking_bytes is not None
        ]
        if estimate is not None:
            bounds = [int(estimate[1])]
        return max(self.limits.lowest_tokens, min([self.ceiling - 1, *bounds]))

    def estimate(self) -> tuple[float, float] | None:
        """Return the least and the most that the largest weight can be, by the memory left.

        A token takes at least its KV cache. What the load takes besides grows with the
        weight too, but ever less, since batches reach their caps: at most in proportion, and
        at most as steeply as between two weights that passed.
        """
        told = [probe for probe in self.passed if probe.memory.free_bytes is not None]
        if not told:
            return None
        weight, memory = told[-1].batch_weight_tokens, told[-1].memory
        least = self.limits.kv_bytes_per_token
        slopes = []
        if memory.idle_free_bytes is not None:
            slopes.append(least + (memory.idle_free_bytes - memory.free_bytes) / weight)
        smaller = [probe for probe in told if probe.batch_weight_tokens < weight]
        if smaller:  # the best weight may have been started twice
            rise = smaller[-1].memory.free_bytes - memory.free_bytes
            slopes.append(rise / (weight - smaller[-1].batch_weight_tokens))
        most = max(least, min(slopes, default=least))
        left = max(0, memory.free_bytes)
        return weight + left / most, weight + left / least

    def guess(self) -> int:
        """Return a weight between the best that passed and the least that failed."""
        floor = self.limits.lowest_tokens - 1
        if self.best is not None:
            floor = self.best.batch_weight_tokens
        wanted = self._wanted(floor, self.highest_possible())
        return int(min(max(wanted, floor + 1), self.ceiling - 1))

    def _wanted(self, floor: int, highest: int) -> float:
        estimate = self.estimate()
        if estimate is not None:
            least, most = estimate
            wanted = (1 - _MARGIN) * (least + _OPTIMISM * (most - least))
            if wanted >= highest:  # a failure since then shows that it was too much
                wanted = min((max(least, floor) + highest) / 2, (1 - TOLERANCE) * self.ceiling + 1)
            return wanted if wanted > floor * (1 + _MARGIN) else (floor + highest) / 2
        # vLLM's profile leaves room for the largest step that it allows: a cautious weight.
        profiled = [tokens for tokens in self.profiled if floor < tokens <= highest]
        if profiled:
            return min(profiled)
        if highest < self.ceiling - 1 and len(self.failed) == 1:
            return floor + _BOUND_GUESS * (highest - floor)
        return (floor + self.ceiling) // 2
