"""The studies of Recasens et al.: throughput over batch sizes, several servers on one device."""

import math

import numpy as np
import pandas as pd
import pytest

from cells import TOO_LARGE, column, failed_request, request, study_data, text_of, write_cell
from sextant.studies import replicas
from sextant.studies.pareto import analyse, knee, opt_batch_sizes


def batch(size: int, n: int, seconds: float, **values) -> list[dict]:
    """Return n requests of 10 + 2 tokens in batches of `size` that take `seconds` each."""
    rows = []
    for place in range(n):
        sent_s = seconds * (place // size)
        times = {"sent_s": sent_s, "first_token_s": sent_s + seconds / 2}
        rows.append(request(size, **times, last_token_s=sent_s + seconds, **values))
    return rows


def batches(folder, seconds: dict[int, float], n: int = 8, **key):
    """Write a cell whose batches take `seconds` by their size; 2n output tokens each."""
    rows = [row for size, took in seconds.items() for row in batch(size, n, took)]
    durations = {size: n / size * took for size, took in seconds.items()}
    return write_cell(folder, rows, kind="batch", durations_s=durations, **key)


def numbers(tmp_path, *cells) -> dict:
    return analyse(study_data(tmp_path, cells)).numbers


def test_knee_throughput_and_both_latencies_by_hand(tmp_path):
    # 16 tokens in 8, 4 and 4 s: 2, 4, 4 tokens/s; the doubling from 2 to 4 gains nothing.
    cell = batches(tmp_path / "c", {1: 1.0, 2: 1.0, 4: 2.0}, batch_weight_tokens=48)
    found = numbers(tmp_path, cell)
    rows = found["batches"].set_index("batch_size")
    assert rows["throughput_tok_s"].to_dict() == {1: 2.0, 2: 4.0, 4: 4.0}
    assert rows["mean_processing_ms"].to_dict() == {1: 1000.0, 2: 1000.0, 4: 2000.0}
    # All were due at 0: those of size 1 end after 1, 2 … 8 s.
    assert rows["mean_latency_ms"].to_dict() == {1: 4500.0, 2: 2500.0, 4: 3000.0}
    assert rows["is_optimal"].to_dict() == {1: False, 2: True, 4: False}
    (curve,) = found["curves"].to_dict("records")
    assert (curve["knee_size"], curve["largest_size"], curve["largest_fitting_size"]) == (2, 4, 4)
    assert curve["last_gain"] == 0.0
    (verdict,) = found["llms"].to_dict("records")
    assert (verdict["one_device"], verdict["knee_size"]) == ("reached", 2)
    assert math.isnan(verdict["devices_gain"])


# Requests take 12 tokens: 24 hold two. The fast batch of 4 is not one of 4.
@pytest.mark.parametrize(
    ("weight", "n_batches", "fits"), [(24, 3, [True, True, False]), (None, 2, [True, True])]
)
def test_a_batch_larger_than_memory_counts_for_no_knee(tmp_path, weight, n_batches, fits):
    sizes = {2**i: 1.0 for i in range(n_batches)}
    found = numbers(tmp_path, batches(tmp_path / "c", sizes, batch_weight_tokens=weight))
    assert found["batches"]["fits"].tolist() == fits
    (curve,) = found["curves"].to_dict("records")
    assert (curve["n_sizes"], curve["largest_size"], curve["knee_size"]) == (2, 2, None)
    assert curve["largest_fitting_size"] == (weight and weight // 12)
    assert found["llms"]["one_device"].tolist() == ["still growing"]


def test_more_devices_are_told_from_one(tmp_path):
    one = batches(tmp_path / "1", {1: 1.0, 2: 1.0}, batch_weight_tokens=24)
    two = batches(tmp_path / "2", {1: 2.0, 4: 1.0}, batch_weight_tokens=48, gpu_profile_id="2xGPU")
    analysis = analyse(study_data(tmp_path, [one, two]))
    (verdict,) = analysis.numbers["llms"].to_dict("records")
    assert (verdict["one_device"], verdict["devices_gain"]) == ("still growing", 2.0)
    assert "still grew at the largest batch tried" in analysis.summary
    # On two devices 4 at once take no longer than 2 on one.
    rows = analysis.numbers["batches"]
    assert rows["is_optimal"].tolist() == [False, False, False, True]


def test_an_llm_that_does_not_fit_is_named(tmp_path):
    fits = batches(tmp_path / "1", {1: 1.0, 2: 2.0}, llm_id="small")
    wide = batches(tmp_path / "2", {1: 1.0}, llm_id="big", gpu_profile_id="2xGPU")
    none = write_cell(tmp_path / "3", kind="batch", llm_id="big", verdict=TOO_LARGE)
    analysis = analyse(study_data(tmp_path, [fits, wide, none]))
    assert "No batch of big was measured on one device" in analysis.summary
    assert "1 of 2 LLMs reached" in analysis.summary


def test_a_servers_batch_is_the_sum_over_replicas_and_unknown_of_few_readings(tmp_path):
    def readings(level: float, replica: int, n: int) -> list[dict]:
        counts = ({"time_s": float(k), "n_running": 2.0, "n_preemptions": k} for k in range(n))
        return [{"level": level, "replica": replica, **counted} for counted in counts]

    server = [*readings(1, 0, 5), *readings(1, 1, 6), *readings(2, 0, 5), *readings(2, 1, 1)]
    cell = batches(tmp_path / "c", {1: 1.0, 2: 1.0}, server=server)
    rows = numbers(tmp_path, cell)["batches"].set_index("batch_size")
    assert rows.loc[1, ["mean_running", "n_preemptions"]].tolist() == [4.0, 9.0]
    assert rows.loc[2, ["mean_running", "n_preemptions"]].isna().all()


def test_sm_metrics_and_power_are_shown_where_they_are_reported(tmp_path):
    use = [
        {"level": 1.0, "time_s": t, "device": "gpu0", "sm_active": a, "power_w": w, "energy_j": j}
        for t, a, w, j in ((0.0, 0.1, 100.0, 0.0), (8.0, 0.5, 200.0, 160.0))
    ]
    analysis = analyse(study_data(tmp_path, [batches(tmp_path / "c", {1: 1.0}, telemetry=use)]))
    (row,) = analysis.numbers["batches"].to_dict("records")
    assert (row["mean_sm_active"], row["max_sm_active"]) == (pytest.approx(0.3), 0.5)
    assert (row["mean_power_w"], row["energy_per_output_token_j"]) == (150.0, 10.0)  # of 16 tokens
    sections = {section.title: section for section in analysis.sections}
    assert "devices: Utilization, mean" in text_of(sections["Device activity"])
    assert column(sections["Power and energy"], "Mean power (W)") == ["150"]


def test_rates_and_output_lengths_are_shown_with_latency_from_the_due_time(tmp_path):
    inf = math.inf
    rows = [
        request(2.0, scheduled_s=0.0, sent_s=0.5, first_token_s=0.6, last_token_s=1.0),
        request(inf, scheduled_s=0.0, sent_s=0.0, last_token_s=0.4),
    ]
    cell = write_cell(tmp_path / "c", rows, kind="open_loop", workload_id="out-32")
    analysis = analyse(study_data(tmp_path, [cell]))
    rates = analysis.numbers["rates"].set_index("level")
    assert rates["mean_latency_ms"].to_dict() == {2.0: 1000.0, inf: 400.0}
    assert rates["mean_processing_ms"].to_dict() == {2.0: 500.0, inf: 400.0}
    (section,) = (s for s in analysis.sections if s.title == "Output length and request rate")
    assert column(section, "Requests/s asked") == ["2", "inf"]


@pytest.mark.parametrize(
    ("throughputs", "place"),
    [
        ([100, 190, 207, 210], 1),  # +90%, +8.9%, +1.4%
        ([100, 200, 220], None),  # a gain of exactly a tenth is not past the knee
        ([100, 190, 180, 300, 310], 3),  # grows again after a slow run
        ([100, 101, 90], 0),  # never grows
        ([100, 150, 200], None),  # grows to the end
        ([100], None),
        ([], None),
    ],
)
def test_the_knee_is_where_doublings_stop_to_gain_enough(throughputs, place):
    assert knee([1, 2, 4, 8, 16][: len(throughputs)], throughputs) == place


def test_the_published_batch_sizes_come_out_if_requests_keep_no_more_than_their_mean():
    table = opt_batch_sizes()
    published = [512, 256, 128, 64, 16]
    assert list(table["published"]) == published
    assert list(table["640 tokens, 40 GB"]) == published
    assert list(table["512 tokens, 40 GB"]) == published
    assert list(table["768 tokens, 40 GiB"]) == [512, 128, 128, 32, 16]


def test_failed_requests_enter_no_latency_and_a_batch_that_served_none_is_left_out(tmp_path):
    rows = [request(1, last_token_s=1.0), failed_request(1), failed_request(2)]
    cell = write_cell(tmp_path / "c", rows, kind="batch")
    found = numbers(tmp_path, cell)
    assert found["batches"]["mean_processing_ms"].tolist() == [1000.0]
    assert found["llms"]["one_device"].tolist() == ["one size only"]


def steady(n: int, seconds: float, replica: int = 0, level: float = 2.0) -> list[dict]:
    """Return n requests one after another, each with 2 tokens in `seconds`."""
    names = {"sent_s": 0.0, "first_token_s": 0.5, "last_token_s": 1.0}
    return [
        request(level, replica=replica, **{k: (place + at) * seconds for k, at in names.items()})
        for place in range(n)
    ]


def write(folder, n: int, rows, **values):
    variant = {"replicas": n, "placement": "shared"}
    values = {"variant_id": f"{n}-shared", "kind": "batch"} | values
    return write_cell(folder, rows, variant=variant, **values)


def compared(tmp_path, *cells) -> pd.DataFrame:
    return replicas.analyse(study_data(tmp_path, cells)).numbers["compared"].set_index("replicas")


def test_a_ratio_and_its_interval_by_hand():
    # Blocks of 9 and 11: relative error 0.1; of 4 and 4: none. t(0.975, 2 free) is 4.3027.
    found = replicas.ratio_of_means(10.0, np.array([9.0, 11.0]), 4.0, np.array([4.0, 4.0]))
    factor = math.exp(0.43027)
    assert found == pytest.approx((2.5, 2.5 / factor, 2.5 * factor), rel=1e-4)
    value, *ends = replicas.ratio_of_means(3.0, np.array([3.0]), 2.0, np.array([2.0, 2.0]))
    assert value == 1.5 and np.isnan(ends).all()


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
        write(tmp_path / str(n), n, rows, batch_weight_tokens=tokens)
        for n, tokens in zip((1, 2), weights, strict=True)
    ]
    assert compared(tmp_path, *cells)["level"].tolist() == [2.0, 2.0]


def test_a_replica_whose_requests_all_failed_is_counted_as_not_serving(tmp_path):
    rows = [*steady(4, 1.0, 0), failed_request(2.0, replica=1)]
    found = compared(tmp_path, write(tmp_path / "2", 2, rows))
    assert found["n_serving_replicas"].tolist() == [1]
    assert found["n_failed"].tolist() == [1]
