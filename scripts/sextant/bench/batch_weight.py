"""The largest batch weight that a server holds under load: a search over server starts.

After LLM-Pilot, section III-C2, which bisects. A start costs minutes, so this search also uses what
each start reports: the memory left at the peak of its load, what a failed allocation lacked, and
what vLLM's own profiling left for the KV cache. It is a pure function of the probes so far, and so
goes on from a record. Whatever the reports say, only a weight that passed a probe is chosen.
"""

from dataclasses import dataclass

from sextant.points.verdict import Probe

# Starts are not spent on weights closer than this to the largest that works.
TOLERANCE = 0.02
# An estimate is aimed at from below by this much; the rest of the tolerance is for its error.
_MARGIN = 0.014
# Where to aim between the least and the most that an estimate allows.
_OPTIMISM = 0.7
# By how much an estimate of the largest weight may be wrong.
_READING_ERROR = 0.003
# Without an estimate: where to look below the bound that a failed allocation set, and below a
# weight that failed though it had passed its corner cases, which say no more about it.
_BOUND_GUESS = 0.7


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

    It starts at the upper bound from memory facts, which often works, and ends well when its last
    probe passed: that server is the one to load. So the last start goes to the best weight that
    passed, or to the lowest if none has. More starts than are given follow only where a weight that
    had passed fails later, under load or started again.
    """
    if not probes:
        return limits.highest_tokens
    known = _Evidence(probes, limits)
    starts_left = limits.max_starts - len(probes)
    is_done = starts_left < 2 or known.is_close() or known.is_overloaded
    if probes[-1].outcome == "ok" and known.best and is_done:
        return None
    if limits.lowest_tokens >= known.ceiling:
        return None  # even the longest request alone does not fit
    if known.is_overloaded:
        return known.well_below_ceiling()
    if starts_left > 1 and not known.is_close():
        return known.guess()
    if known.best:
        return known.best.batch_weight_tokens
    if any(probe.outcome == "ok" for probe in probes):
        # It failed when it was started again: the largest weight varies from start to start.
        return known.well_below_ceiling()
    return limits.lowest_tokens if starts_left == 1 else None


def possible_gain(probes: list[Probe], limits: WeightRange) -> float | None:
    """Return by which fraction a weight that works may exceed the best; None without one."""
    known = _Evidence(probes, limits)
    if known.best is None:
        return None
    return max(0.0, known.highest_possible() / known.best.batch_weight_tokens - 1)


class _Evidence:
    """What all probes say together."""

    def __init__(self, probes: list[Probe], limits: WeightRange) -> None:
        self.limits = limits
        self.failed = [probe for probe in probes if probe.outcome != "ok"]
        # The least weight that failed.
        failed_tokens = [probe.batch_weight_tokens for probe in self.failed]
        self.ceiling = min(failed_tokens, default=limits.highest_tokens + 1)
        # That weight had passed its corner cases, and failed under load.
        self.is_overloaded = any(
            probe.is_under_load and probe.batch_weight_tokens == self.ceiling
            for probe in self.failed
        )
        # A weight that passed at or above one that failed proves nothing.
        self.passed = sorted(
            (p for p in probes if p.outcome == "ok" and p.batch_weight_tokens < self.ceiling),
            key=lambda probe: probe.batch_weight_tokens,
        )
        self.best = self.passed[-1] if self.passed else None
        # What vLLM itself would have made the KV cache: with room for its largest step.
        profiled = (probe.memory.profiled_tokens for probe in probes)
        self.profiled = [tokens for tokens in profiled if tokens is not None]
        self.estimate = self._estimate()

    def is_close(self) -> bool:
        """Return whether the best weight is within the tolerance of the largest that works."""
        if self.best is None:
            return False
        weight = self.best.batch_weight_tokens
        is_bracketed = self.ceiling - weight <= max(1, TOLERANCE * self.ceiling)
        return is_bracketed or self.highest_possible() <= weight * (1 + TOLERANCE - _READING_ERROR)

    def highest_possible(self) -> int:
        """Return the largest weight that may work.

        What was left is better evidence than what an allocation lacked: fragmented memory fails
        early, and a host's allocator does not say what was free.
        """
        if self.estimate:
            bounds = [int(self.estimate[1])]
        else:
            kv_bytes = self.limits.kv_bytes_per_token
            lacked = ((it.batch_weight_tokens, it.memory.lacking_bytes) for it in self.failed)
            bounds = [int(weight - n / kv_bytes) for weight, n in lacked if n is not None]
        return max(self.limits.lowest_tokens, min([self.ceiling - 1, *bounds]))

    def _estimate(self) -> tuple[float, float] | None:
        """Return the least and the most that the largest weight may be, by the memory left at the
        best one; None if unknown.

        A token takes at least its KV cache. What the load takes besides grows with the weight too,
        but ever less, since batches reach their caps: at most in proportion, and at most as steeply
        as between two weights that passed.
        """
        known = [
            (probe.batch_weight_tokens, probe.memory.free_bytes, probe.memory.idle_free_bytes)
            for probe in self.passed
            if probe.memory.free_bytes is not None
        ]
        if not known:
            return None
        weight, free_bytes, idle_free_bytes = known[-1]
        kv_bytes = self.limits.kv_bytes_per_token
        slopes = []  # bytes a token takes, KV cache and load together, at most
        if idle_free_bytes is not None:
            slopes.append(kv_bytes + (idle_free_bytes - free_bytes) / weight)
        smaller = [each for each in known if each[0] < weight]  # the best may have started twice
        if smaller:
            smaller_weight, smaller_free_bytes, _ = smaller[-1]
            slopes.append((smaller_free_bytes - free_bytes) / (weight - smaller_weight))
        token_bytes = max(kv_bytes, min(slopes, default=kv_bytes))
        left_bytes = max(0, free_bytes)
        return weight + left_bytes / token_bytes, weight + left_bytes / kv_bytes

    def guess(self) -> int:
        """Return a weight between the best that passed and the least that failed."""
        floor = self.best.batch_weight_tokens if self.best else self.limits.lowest_tokens - 1
        highest: float = self.highest_possible()
        profiled = [tokens for tokens in self.profiled if floor < tokens <= highest]
        if self.estimate:
            least, most = self.estimate
            wanted = (1 - _MARGIN) * (least + _OPTIMISM * (most - least))
            if wanted >= highest:  # a failure since then shows that it was too much
                wanted = min((max(least, floor) + highest) / 2, (1 - TOLERANCE) * self.ceiling + 1)
            wanted = wanted if wanted > floor * (1 + _MARGIN) else (floor + highest) / 2
        elif profiled:
            wanted = min(profiled)
        elif highest < self.ceiling - 1 and len(self.failed) == 1:
            wanted = floor + _BOUND_GUESS * (highest - floor)
        else:
            wanted = (floor + self.ceiling) // 2
        return int(min(max(wanted, floor + 1), self.ceiling - 1))

    def well_below_ceiling(self) -> int:
        """Return a weight well below the least that failed."""
        return max(self.limits.lowest_tokens, int(_BOUND_GUESS * self.ceiling))
