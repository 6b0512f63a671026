"""The search for the batch weight, against servers whose limit is known."""

import itertools

import numpy as np
import pytest

from sextant.benchmark.batch_weight import TOLERANCE, Probe, corner_cases, next_weight


def search(lowest: int, highest: int, limit: int, max_starts: int) -> list[Probe]:
    """Probe servers that hold up to `limit` tokens until the search ends."""
    probes: list[Probe] = []
    while weight := next_weight(probes, lowest, highest, max_starts):
        outcome = "ok" if weight <= limit else "out_of_memory"
        probes.append(Probe(weight, outcome, "", 0.0))
        assert len(probes) <= max_starts
    return probes


def check(lowest: int, highest: int, limit: int, max_starts: int) -> list[Probe]:
    probes = search(lowest, highest, limit, max_starts)
    assert probes[0].batch_weight_tokens == highest
    assert all(lowest <= probe.batch_weight_tokens <= highest for probe in probes)
    if any(probe.outcome == "ok" for probe in probes):
        best = max(p.batch_weight_tokens for p in probes if p.outcome == "ok")
        # The server that runs last is the one that is loaded.
        assert (probes[-1].outcome, probes[-1].batch_weight_tokens) == ("ok", best)
    elif max_starts > 1:
        # Nobody may call a cell infeasible without having tried the lowest weight.
        assert limit < lowest
        assert probes[-1].batch_weight_tokens == lowest
    return probes


def test_every_small_search_ends_with_a_server_that_passed():
    for highest in range(1, 41):
        for lowest, limit in itertools.product(range(1, highest + 1), range(highest + 2)):
            for max_starts in (1, 2, 3, 5, 12):
                check(lowest, highest, limit, max_starts)


def test_large_searches_with_any_number_of_starts():
    rng = np.random.default_rng(0)
    for _ in range(3000):
        lowest = int(rng.integers(1, 5000))
        highest = lowest + int(rng.integers(0, 10 ** int(rng.integers(1, 8))))
        limit = int(rng.integers(0, highest + 2))
        check(lowest, highest, limit, int(rng.integers(1, 13)))


def test_twelve_starts_come_close_to_the_limit():
    rng = np.random.default_rng(1)
    for highest in (1_000, 30_000, 1_000_000):
        for _ in range(500):
            limit = int(rng.integers(highest // 16, highest))
            last = check(1, highest, limit, 12)[-1].batch_weight_tokens
            assert (1 - TOLERANCE) * limit - 1 <= last <= limit


def test_an_upper_bound_that_holds_takes_one_start():
    assert len(check(10, 1000, 1000, 12)) == 1


def test_two_starts_fall_back_to_the_lowest_weight():
    assert [p.batch_weight_tokens for p in check(10, 1000, 999, 2)] == [1000, 10]


def test_no_start_is_spent_on_differences_below_the_tolerance():
    # 96 and 100 differ by less than 5 %: the second start is the last.
    assert [p.batch_weight_tokens for p in check(96, 100, 99, 12)] == [100, 96]


def test_a_weight_that_failed_under_load_is_not_tried_again():
    probes = [
        Probe(1000, "out_of_memory", "", 0.0),
        Probe(505, "ok", "", 0.0),
        Probe(752, "ok", "", 0.0),
        Probe(752, "out_of_memory", "under load", 0.0),
    ]
    assert next_weight(probes, 10, 1000, 12) == (505 + 752) // 2
    # Its last chance is the best weight that nothing speaks against.
    assert next_weight(probes, 10, 1000, 5) == 505


@pytest.mark.parametrize(
    ("weight", "max_num_seqs", "n_full"), [(10_000, 256, 19), (10_000, 8, 8), (100, 256, 1)]
)
def test_corner_cases_are_what_the_weight_allows(weight, max_num_seqs, n_full):
    cases = corner_cases(weight, 500, 100, max_num_seqs)
    (longest_in, longest_out), (full_in, full_out) = cases.values()
    assert (longest_in.tolist(), longest_out.tolist()) == ([500], [100])
    # Prompts of 500 tokens that also decode a few: 19 · (500 + 4) ≤ 10,000.
    assert full_in.tolist() == [500] * n_full
    assert len(full_out) == n_full and (full_out == full_out[0]).all()
    assert n_full == 1 or (full_in + full_out).sum() <= weight


def test_corner_cases_respect_a_short_output_cap():
    for _, outputs in corner_cases(10_000, 500, 2, 256).values():
        assert outputs.max() <= 2
