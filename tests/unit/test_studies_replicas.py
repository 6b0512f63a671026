"""The study of several servers on one device."""

import math

import numpy as np
import pandas as pd
import pytest

from cells import failed_request, request, study_data, write_cell
from sextant.studies.replicas import analyse, processing_blocks, ratio_of_means
from sextant.studies.study import mean_blocks


def steady(n: int, seconds: float, replica: int = 0, level: float = 2.0) -> list[dict]:
    """Return n requests one after another, each with 2 tokens in `seconds`."""
    return [
        request(
            level,
            replica=replica,
            sent_s=place * seconds,
            first_token_s=(place + 0.5) * seconds,
            last_token_s=(place + 1) * seconds,
        )
        for place in range(n)
    ]


def write(folder, replicas: int, rows, **values):
    variant = {"replicas": replicas, "placement": "shared"}
    values = {"variant_id": f"{replicas}-shared", "kind": "batch"} | values
    return write_cell(folder, rows, variant=variant, **values)


def compared(tmp_path, *cells) -> pd.DataFrame:
    return analyse(study_data(tmp_path, cells)).numbers["compared"].set_index("replicas")


# Blocks and ratios


def requests(*processing_s: float) -> pd.DataFrame:
    """Return requests that end a second after each other."""
    ended_s = np.arange(len(processing_s)) + 100.0
    return pd.DataFrame({"sent_s": ended_s - processing_s, "last_token_s": ended_s})


def test_a_block_has_as_many_requests_as_are_in_flight():
    rows = requests(1, 3, 5, 7)
    assert processing_blocks(rows, 1).tolist() == [1, 3, 5, 7]
    assert processing_blocks(rows, 2).tolist() == [2, 6]
    assert processing_blocks(rows, 4).tolist() == [4]
    assert processing_blocks(rows, 100).tolist() == [4]
    # No more than ten blocks.
    assert processing_blocks(requests(*range(20)), 1).tolist()[:2] == [0.5, 2.5]
    assert mean_blocks([1.0, 3.0]).tolist() == [1.0, 3.0]


def test_a_ratio_and_its_interval_by_hand():
    # Blocks of 9 and 11: relative error 0.1; of 4 and 4: none. t(0.975, 2 free) is 4.3027.
    found = ratio_of_means(10.0, np.array([9.0, 11.0]), 4.0, np.array([4.0, 4.0]))
    factor = math.exp(0.43027)
    assert found == pytest.approx((2.5, 2.5 / factor, 2.5 * factor), rel=1e-4)
    value, *ends = ratio_of_means(3.0, np.array([3.0]), 2.0, np.array([2.0, 2.0]))
    assert value == 1.5 and np.isnan(ends).all()


# The study


def test_throughputs_are_summed_and_the_largest_latency_counts(tmp_path):
    one = write(tmp_path / "1", 1, steady(20, 0.5), durations_s={2.0: 10.0})
    # Replica 0 has 20 tokens in 5 s, replica 1 has 20 in 10 s: 4 + 2 tokens/s.
    rows = [*steady(10, 0.5, 0), *steady(10, 1.0, 1)]
    two = write(tmp_path / "2", 2, rows, durations_s={2.0: 10.0})
    found = compared(tmp_path, one, two)
    assert found["summed_throughput_tok_s"].to_dict() == {1: 4.0, 2: 6.0}
    assert found["throughput_tok_s"].to_dict() == {1: 4.0, 2: 4.0}  # over the whole 10 s
    assert found["largest_latency_ms"].to_dict() == {1: 500.0, 2: 1000.0}
    assert found["throughput_ratio"].to_dict() == {1: 1.0, 2: 1.5}
    assert found["latency_ratio"].to_dict() == {1: 1.0, 2: 2.0}
    # Every latency of the slowest replica is the same: the interval has no width.
    assert found.loc[2, "latency_ratio_low"] == pytest.approx(2.0)
    assert found.loc[2, "throughput_ratio_low"] < 1.5 < found.loc[2, "throughput_ratio_high"]


@pytest.mark.parametrize(
    ("levels", "weights"),
    [
        ((2.0, 4.0), (1000, 1000)),  # of those that fit, one that every run filled twice
        ((1.0, 2.0, 4.0), (48, 12)),  # 4 requests of 12 tokens; 2 x 1
    ],
)
def test_the_largest_level_that_fits_and_every_run_filled_is_compared(tmp_path, levels, weights):
    rows = [row for level in levels for row in steady(4, 1.0, level=level)]
    cells = [
        write(tmp_path / str(replicas), replicas, rows, batch_weight_tokens=tokens)
        for replicas, tokens in zip((1, 2), weights, strict=True)
    ]
    assert compared(tmp_path, *cells)["level"].tolist() == [2.0, 2.0]


def test_a_replica_whose_requests_all_failed_is_counted_as_not_serving(tmp_path):
    rows = [*steady(4, 1.0, 0), failed_request(2.0, replica=1)]
    found = compared(tmp_path, write(tmp_path / "2", 2, rows))
    assert found["n_serving_replicas"].tolist() == [1]
    assert found["n_failed"].tolist() == [1]
