"""The search for the batch weight, on engines whose limit is known."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pytest

from sextant.bench.tuning import TOLERANCE, WeightRange, next_weight, possible_gain
from sextant.points.verdict import MemoryFacts, Probe

MIB, GIB = 2**20, 2**30


def probe(weight: int, outcome: str = "ok", **memory) -> Probe:
    return Probe(weight, outcome, "", 0.0, MemoryFacts(**memory))


def failed(weight: int, **memory) -> Probe:
    return probe(weight, "out_of_memory", **memory)


@dataclass
class Engine:
    """A fake: KV cache and activations in rounded pieces beside weights and a runtime.

    What is left is seen with an error of one piece of the allocator, and of up to 4 % of the
    activations. Half of the logs have no profile, 4 in 10 no amounts.
    """

    rng: np.random.Generator
    total: float = field(init=False)

    def __post_init__(self):
        rng = self.rng
        self.total = rng.uniform(8, 80) * GIB
        self.base = self.total * rng.uniform(0.1, 0.8)  # weights and the runtime
        self.kv_bytes = float(rng.choice([36, 72, 128, 320, 800])) * 1024
        self.n_seqs, self.n_batched = rng.choice([64, 256, 1024]), rng.choice([2048, 8192, 16384])
        self.short, self.lowest = rng.integers(8, 64), int(rng.integers(500, 4000))
        left = self.total - self.base
        self.bytes_per_token = left * rng.uniform(0, 0.15) / self.n_batched
        self.bytes_per_request = left * rng.uniform(0, 0.1) / self.n_seqs
        self.piece = int(rng.choice([2, 20, 32])) * MIB
        weights = self.base * rng.uniform(0.7, 0.98)
        self.highest = int((0.9 * self.total - weights) / self.kv_bytes)
        self.has_profile, self.has_amounts = rng.random() < 0.5, rng.random() < 0.6

    def rounded(self, n_bytes: float) -> float:
        return -(-n_bytes // self.piece) * self.piece

    def activations(self, weight: float) -> float:
        """Grow with tokens and requests in the batch, up to the engine's caps."""
        n_requests = np.minimum(self.n_seqs, weight / self.short)
        n_tokens = np.minimum(self.n_batched, weight)
        return self.rounded(self.bytes_per_token * n_tokens + self.bytes_per_request * n_requests)

    def lacking(self, weight: float) -> float:
        kv = self.rounded(self.kv_bytes * weight)
        return self.base + kv + self.activations(weight) - self.total

    @cached_property
    def limit(self) -> int:
        """Return the largest weight that works, 0 for none, having looked at every one."""
        weights = np.arange(self.lowest, self.highest + 1)
        works = self.lacking(weights) <= 0
        return int(weights[works].max()) if works.any() else 0

    def start(self, weight: int) -> Probe:
        rng, lacking = self.rng, self.lacking(weight)
        profiled_tokens = None
        if self.has_profile and rng.random() < 0.9:
            most = self.activations(10**9)
            tokens = (0.9 * self.total - self.base - most) / self.kv_bytes
            profiled_tokens = max(0, int(tokens * rng.normal(1, 0.01)))
        if lacking > 0:
            idle = lacking - self.activations(weight)
            told = rng.uniform(0, 1) * lacking if idle <= 0 else idle + self._error()
            has_amount = self.has_amounts and rng.random() < 0.8
            lacking_bytes = max(0, int(told)) if has_amount else None
            return failed(weight, lacking_bytes=lacking_bytes, profiled_tokens=profiled_tokens)
        activations = self.activations(weight)
        return probe(
            weight,
            idle_free_bytes=int(activations - lacking + self._error()),
            free_bytes=int(rng.uniform(0, 0.04) * activations - lacking + self._error()),
            profiled_tokens=profiled_tokens,
        )

    def _error(self) -> float:
        return self.rng.uniform(-1, 1) * self.piece


def random_engines(seed: int, is_wide: bool):
    """Yield engines with a limit within a range that is wide, or that is not, to search."""
    rng = np.random.default_rng(seed)
    while True:
        engine = Engine(rng)
        n_weights = engine.highest - engine.lowest
        if n_weights > engine.lowest and is_wide == (n_weights >= 2**16) and engine.limit:
            yield engine


def searched(limits: WeightRange, start: Callable[[int], Probe]) -> list[Probe]:
    probes: list[Probe] = []
    while (weight := next_weight(probes, limits)) is not None:
        assert len(probes) < 20
        probes.append(start(weight))
    return probes


def bisect(engine: Engine) -> int:
    """Return the starts of a plain bisection to the last block of 16 tokens."""
    low, high, n_starts = engine.lowest - 1, engine.highest + 1, 0
    while high - low > 16:
        middle, n_starts = (low + high) // 2, n_starts + 1
        low, high = (middle, high) if engine.lacking(middle) <= 0 else (low, middle)
    return n_starts


# One piece of 32 MiB is as much as 900 tokens in a narrow range: estimates are not always good.
@pytest.mark.parametrize(("is_wide", "most_missed", "n_bisected"), [(True, 0, 12), (False, 4, 0)])
def test_200_engines_are_searched_in_five_starts(is_wide, most_missed, n_bisected):
    n_missed = 0
    for engine in itertools.islice(random_engines(0, is_wide=is_wide), 200):
        limits = WeightRange(engine.lowest, engine.highest, engine.kv_bytes, 5)
        probes = searched(limits, engine.start)
        assert len(probes) <= 5
        assert probes[-1].outcome == "ok"
        weight = probes[-1].batch_weight_tokens
        assert weight <= engine.limit
        n_missed += weight < (1 - TOLERANCE) * engine.limit
        assert bisect(engine) >= n_bisected
    assert n_missed <= most_missed


def check(lowest: int, highest: int, limit: int, max_starts: int) -> list[Probe]:
    """Probe servers that hold up to `limit` tokens and tell nothing else."""
    probes = searched(
        WeightRange(lowest, highest, 1.0, max_starts),
        lambda weight: probe(weight) if weight <= limit else failed(weight),
    )
    assert len(probes) <= max_starts
    assert probes[0].batch_weight_tokens == highest
    assert all(lowest <= each.batch_weight_tokens <= highest for each in probes)
    passed = [each.batch_weight_tokens for each in probes if each.outcome == "ok"]
    if passed:
        # The server that runs last is the one that is loaded.
        last = probes[-1]
        assert (last.outcome, last.batch_weight_tokens) == ("ok", max(passed))
    elif max_starts > 1:
        # Nobody may call a cell infeasible without having tried the lowest weight.
        assert limit < lowest
        assert probes[-1].batch_weight_tokens == lowest
    return probes


def test_every_small_search_ends_with_a_server_that_passed():
    for highest in range(1, 17):
        for lowest, limit in itertools.product(range(1, highest + 1), range(highest + 2)):
            for max_starts in (1, 2, 3, 5, 12):
                check(lowest, highest, limit, max_starts)


def test_an_edge_that_moves_from_start_to_start_makes_no_cell_infeasible():
    rng = np.random.default_rng(0)
    for _ in range(1000):
        lowest, highest = 300, int(rng.integers(1000, 300_000))
        limit, max_starts = rng.uniform(2 * lowest, highest), int(rng.integers(2, 7))
        probes = searched(
            WeightRange(lowest, highest, 1.0, max_starts),
            lambda weight, limit=limit: (
                probe(weight) if weight <= limit * rng.uniform(0.8, 1) else failed(weight)
            ),
        )
        assert probes[-1].outcome == "ok"
        passed = {p.batch_weight_tokens for p in probes if p.outcome == "ok"}
        n_again = sum(p.outcome != "ok" and p.batch_weight_tokens in passed for p in probes)
        assert len(probes) <= max_starts + 2 * n_again


def test_without_reports_it_is_a_bisection_that_says_how_far_it_got():
    limits = WeightRange(1, 64_000, 1.0)
    probes = check(1, 64_000, 50_000, 5)
    # Between 48,000, which passed, and 56,000, which failed: up to 16.7 % more is possible.
    assert [each.batch_weight_tokens for each in probes] == [64_000, 32_000, 48_000, 56_000, 48_000]
    assert possible_gain(probes, limits) == pytest.approx(7_999 / 48_000)


def test_any_reports_end_with_the_best_weight_that_passed():
    rng = np.random.default_rng(7)

    def anything() -> int | None:
        return None if rng.random() < 0.3 else int(rng.normal(0, 10 ** rng.uniform(0, 9)))

    for _ in range(1000):
        lowest, spread = int(rng.integers(1, 5000)), int(rng.integers(0, 100_000))
        limits = WeightRange(lowest, lowest + spread, float(rng.uniform(0.5, 5000)))
        limit = int(rng.integers(0, lowest + spread + 2))

        def start(weight: int, limit: int = limit) -> Probe:
            made = probe if weight <= limit else failed
            names = ("idle_free_bytes", "free_bytes", "lacking_bytes", "profiled_tokens")
            return made(weight, **{name: anything() for name in names})

        probes = searched(limits, start)
        assert len(probes) <= 5
        assert all(lowest <= each.batch_weight_tokens <= lowest + spread for each in probes)
        passed = [each.batch_weight_tokens for each in probes if each.outcome == "ok"]
        assert (probes[-1].outcome == "ok") == (limit >= lowest)
        assert (possible_gain(probes, limits) is None) == (limit < lowest)
        if passed:
            assert probes[-1].batch_weight_tokens == max(passed)


LIMITS = WeightRange(lowest_tokens=100, highest_tokens=10_000, kv_bytes_per_token=1000.0)


def test_the_second_start_is_what_vllm_has_profiled():
    assert next_weight([failed(10_000, profiled_tokens=6200)], LIMITS) == 6200
    # A profile above what is known to fail is none.
    told = [failed(10_000, lacking_bytes=4_500_000, profiled_tokens=6200)]
    assert next_weight(told, LIMITS) < 5500


def test_the_memory_that_was_left_tells_the_next_weight():
    # 1,000 tokens more would have fitted by their KV cache alone.
    left = probe(5000, idle_free_bytes=1_000_000, free_bytes=1_000_000)
    weight = next_weight([failed(10_000), left], LIMITS)
    assert 5900 <= weight < 6000
    # A load that took as much again as its KV cache halves the least that is possible.
    loaded = probe(5000, idle_free_bytes=6_000_000, free_bytes=1_000_000)
    assert 5500 <= next_weight([failed(10_000), loaded], LIMITS) < weight


def test_no_start_is_spent_on_differences_below_the_tolerance():
    close = probe(5000, idle_free_bytes=50_000, free_bytes=50_000)
    assert next_weight([failed(10_000), close], LIMITS) is None
    assert next_weight([failed(5080), close], LIMITS) is None
    # But the server that is loaded has to be one that passed.
    assert next_weight([close, failed(5080)], LIMITS) == 5000


def overloaded(weight: int) -> Probe:
    return replace(failed(weight), is_under_load=True)


def test_a_weight_that_failed_under_load_is_left_well_behind():
    probes = [failed(10_000), probe(5000), probe(7000), overloaded(7600)]
    assert next_weight(probes, LIMITS) == 5320  # 0.7 · 7,600
    # What passes next is loaded, and its failure counts as the first one does.
    assert next_weight([*probes, probe(5320)], LIMITS) is None
    assert next_weight([*probes, overloaded(5300)], LIMITS) in (3709, 3710)
    assert next_weight([overloaded(10_000), overloaded(120)], LIMITS) == 100
    assert next_weight([overloaded(10_000), overloaded(100)], LIMITS) is None
