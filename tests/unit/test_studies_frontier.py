"""The frontier of throughput, and batch sizes from memory facts."""

import pytest

from sextant.facts.gpu import Devices
from sextant.facts.llm import load_llm
from sextant.studies.pareto import (
    agreement_words,
    gains_per_doubling,
    knee,
    largest_batch,
    largest_power_of_two,
    opt_batch_sizes,
    pareto_optimal,
)
from support import ROOT

# Gains and knees


def test_a_step_of_a_factor_of_four_counts_as_two_doublings():
    assert gains_per_doubling([1, 4, 8], [100, 400, 300]) == pytest.approx([1.0, -0.25])


@pytest.mark.parametrize(
    ("throughputs", "least_gain", "place"),
    [
        ([100, 190, 207, 210], 0.1, 1),  # +90%, +8.9%, +1.4%
        ([100, 190, 207, 210], 0.05, 2),
        ([100, 200, 220], 0.1, None),  # a gain of exactly a tenth is not past the knee
        ([100, 190, 180, 300, 310], 0.1, 3),  # grows again after a slow run
        ([100, 101, 90], 0.1, 0),  # never grows
        ([100, 150, 200], 0.1, None),  # grows to the end
        ([100], 0.1, None),
        ([], 0.1, None),
    ],
)
def test_the_knee_is_where_doublings_stop_to_gain_enough(throughputs, least_gain, place):
    assert knee([1, 2, 4, 8, 16][: len(throughputs)], throughputs, least_gain) == place


def test_a_point_is_optimal_unless_another_is_as_good_in_both_and_better_in_one():
    #                 best  slower  same rate, later  best latency  twin
    rates = [100.0, 90.0, 100.0, 50.0, 50.0]
    delays = [10.0, 12.0, 11.0, 5.0, 5.0]
    assert pareto_optimal(rates, delays) == [True, False, False, True, True]


# Batch sizes


@pytest.mark.parametrize(("value", "largest"), [(0.9, 0), (1, 1), (31.99, 16), (32, 32)])
def test_powers_of_two(value, largest):
    assert largest_power_of_two(value) == largest


def test_a_batch_by_hand():
    # OPT-13B: 2 (K, V) x 40 layers x 5120 x 2 bytes = 819,200 bytes a token; weights 25.707 GB;
    # 90% of 40 GiB is 38.655 GB; 12.948 GB hold 15,805 tokens, 20 requests of 768.
    llm = load_llm(ROOT / "resources" / "llms" / "facebook__opt-13b.json")
    assert llm.kv_bytes_per_token == 819_200
    assert largest_batch(llm, Devices("gpu", 1, 40), 0.9, 768) == 16


def test_the_published_batch_sizes_come_out_if_requests_keep_no_more_than_their_mean():
    table = opt_batch_sizes().set_index("llm_id")
    published = [512, 256, 128, 64, 16]
    assert list(table["published"]) == published
    assert list(table["640 tokens, 40 GB"]) == published
    assert list(table["512 tokens, 40 GB"]) == published
    assert list(table["768 tokens, 40 GiB"]) == [512, 128, 128, 32, 16]
    assert "facebook__opt-1.3b 128 instead of 256" in agreement_words(table.reset_index())
