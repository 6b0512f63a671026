"""The study of throughput against latency over batch sizes."""

import math

import pytest

from cells import TOO_LARGE, column, failed_request, request, study_data, text_of, write_cell
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
    assert "SM active, mean" not in text_of(sections["Device activity"]).partition("Not rep")[2]
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


# Gains and knees


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


# Batch sizes


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
