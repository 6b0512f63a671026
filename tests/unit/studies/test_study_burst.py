"""The study `burst`: what its phases came to."""

import numpy as np
import pytest

from cells import TOO_LARGE, failed_request, request, study_data, write_cell
from sextant.points.cell_files import read_cell
from sextant.studies.burst import analyse
from sextant.studies.burst_phases import phases

ALPHA, BETA, API, WARMUP, CONVERSATION, THETA = 4.0, 5.0, 3.0, 1.0, 2.0, 6.0


def setting(start_s=0.0, **values):
    return {"start_s": start_s, "alpha": 0.5, "beta_s": 0.5, "rate_rps": 4.0, "theta": 1.1} | values


def facts(name, settings, **values):
    shared = {"name": name, "rate_rps": 4.0, "n_requests": 1, "mean_kv_cache_usage": 0.3}
    return {"started_s": 100.0, "phase": {**shared, "settings": settings, **values}}


def served(level, due_s, latency_s, n=2):
    """A request that was due at a time of its phase: its first token after half the latency."""
    at = 100.0 + due_s
    offsets = np.linspace(latency_s / 2, latency_s, n) * 1e3
    times = {"first_token_s": at + latency_s / 2, "last_token_s": at + latency_s}
    lengths = {"output_tokens": n, "token_offsets_ms": offsets.tolist()}
    return request(level, scheduled_s=at, sent_s=at, **times, **lengths)


def failed(level, due_s):
    return failed_request(level, scheduled_s=100.0 + due_s, sent_s=100.0 + due_s)


def reading(level, time_s, usage, replica=0):
    return {"level": level, "replica": replica, "time_s": 100.0 + time_s, "kv_cache_usage": usage}


SWEEP = facts("beta", [setting(0.0, beta_s=0.5), setting(1.0, beta_s=0.125)], n_per_change=2)
SWEEP_ROWS = [
    served(BETA, 0.0, 0.2),
    served(BETA, 1.0, 0.2),
    failed(BETA, 1.5),
    served(BETA, 3.0, 1.0, n=5),
]
SWEEP_SERVER = [
    reading(BETA, 0.5, 0.2),
    reading(BETA, 0.6, 0.4, replica=1),
    reading(BETA, 2.0, 0.9),
    reading(BETA, 3.5, 0.1),
    reading(BETA, -5.0, 1.0),
]


def sweep_cell(folder, rows=SWEEP_ROWS):
    options = {"durations_s": {BETA: 4.0}, "levels": {BETA: SWEEP}, "kind": "burst"}
    return write_cell(folder, rows, server=SWEEP_SERVER, **options)


def test_averages_of_a_phase(tmp_path):
    (phase,) = phases(read_cell(sweep_cell(tmp_path)))
    found = phase.averages
    assert (found["n_requests"], found["n_failed"], found["failure_rate"]) == (4, 1, 0.25)
    assert found["throughput_tok_s"] == pytest.approx(9 / 4)
    # 200 ms over 2 tokens, twice; 1,000 ms over 5.
    assert found["mean_token_latency_ms"] == pytest.approx((100 + 100 + 200) / 3)
    assert found["p90_token_latency_ms"] == pytest.approx(100 + 0.8 * 100)
    assert found["mean_ttft_ms"] == pytest.approx((100 + 100 + 500) / 3)
    # Gaps: one of 100 ms, twice, and four that make 500 ms.
    assert found["mean_itl_ms"] == pytest.approx(700 / 6)
    # The phase's own record of the mean; the server's readings but for the one before the phase.
    assert (found["mean_kv_usage"], found["max_kv_usage"]) == (0.3, 0.9)


def test_blocks_are_of_requests_whatever_the_time(tmp_path):
    (phase,) = phases(read_cell(sweep_cell(tmp_path)))
    blocks = phase.by_setting
    assert blocks["n_requests"].tolist() == [2, 2]
    assert blocks["failure_rate"].tolist() == [0.0, 0.5]
    assert blocks["beta_s"].tolist() == [0.5, 0.125]
    assert blocks["end_s"].tolist() == [1.0, 3.0]
    assert blocks["mean_token_latency_ms"].tolist() == pytest.approx([100.0, 200.0])
    # Tokens at 0.1 and 0.2 s; at 1.1 and 1.2 s; those of the last request come after 3 s.
    assert blocks["throughput_tok_s"].tolist() == pytest.approx([2.0, 1.0])
    assert blocks["mean_kv_usage"].tolist() == pytest.approx([0.3, 0.9])


def test_windows_of_a_mirrored_load_are_of_time(tmp_path):
    settings = [setting(0.0, rate_rps=2.0), setting(2.0, alpha=None, beta_s=None, rate_rps=1.0)]
    mirrored = facts("api", settings, time_factor=0.5, rate_factor=2.0, n_windows=2)
    rows = [served(API, 0.5, 0.1), served(API, 1.5, 0.1), failed(API, 2.0)]
    rows += [served(API, due_s, 0.1) for due_s in np.linspace(2.1, 4.0, 7)]
    cell = write_cell(tmp_path, rows, levels={API: mirrored}, kind="burst")
    (phase,) = phases(read_cell(cell))
    windows = phase.by_setting
    assert windows["n_requests"].tolist() == [2, 8]
    assert windows["failure_rate"].tolist() == [0.0, 0.125]
    assert windows["mean_kv_usage"].isna().all()
    # Ten requests in two slices; tokens of the last, due at 4 s, come later.
    slices = phase.over_time
    assert slices["end_s"].tolist() == [2.0, 4.0]
    assert slices["n_requests"].tolist() == [2, 8]
    assert slices["throughput_tok_s"].tolist() == [2.0, 6.0]


def whole_cell(folder, alpha_latencies=(0.2, 2.0, 0.2), alpha_fails=1, **options):
    """All phases: the API fails, alpha's second block fails, beta slows, theta hardly matters."""
    search = {
        "rate_rps": 4.0,
        "trials": [{"rate_rps": 4.0, "kv_usage": 0.33, "failed_fraction": 0.0}],
        "single_request_kv_usage": 0.05,
        "single_request_s": 0.5,
    }
    window = {"time_factor": 0.5, "rate_factor": 1.0, "n_windows": 1}
    alphas = [setting(0.0), setting(1.0, alpha=0.125), setting(2.0)]
    betas = [setting(0.0), setting(1.0, beta_s=0.3), setting(2.0, beta_s=0.125)]
    thetas = [setting(0.0), setting(1.0, theta=1.5), setting(2.0, theta=1.9)]
    levels = {
        WARMUP: facts("warm-up", [setting()], search=search, is_within_limits=True),
        CONVERSATION: facts("conversation", [setting()], **window),
        API: facts("api", [setting()], **(window | {"rate_factor": 2.0})),
        ALPHA: facts("alpha", alphas, n_per_change=1 + alpha_fails),
        BETA: facts("beta", betas, n_per_change=1),
        THETA: facts("theta", thetas, n_per_change=1),
    }
    rows = [served(level, 0.0, 0.2) for level in (WARMUP, CONVERSATION, API)]
    rows += [failed(API, 0.5)]
    for block, latency_s in enumerate(alpha_latencies):
        rows.append(served(ALPHA, block, latency_s))
        other = failed if block == 1 else lambda level, due_s: served(level, due_s, 0.2)
        rows += [other(ALPHA, block + 0.1)] * alpha_fails
    rows += [served(BETA, due_s, latency) for due_s, latency in enumerate((0.2, 0.22, 0.8))]
    rows += [served(THETA, due_s, latency) for due_s, latency in enumerate((0.2, 0.25, 0.2))]
    return write_cell(folder, rows, levels=levels, kind="burst", **options)


def test_the_papers_findings_are_judged(tmp_path):
    cell = whole_cell(tmp_path / "cell")
    analysis = analyse(study_data(tmp_path, [cell]))
    (numbers,) = analysis.numbers["cells"]
    assert [each["holds"] for each in numbers["findings"]] == [True, True, True, True]
    api, alpha, beta, theta = (each["here"] for each in numbers["findings"])
    assert api == (
        "Failed: 0 % of the conversation's 1 requests, 50 % of the API's 2, at 2 times the rate."
    )
    assert alpha == "Failed: 0 % at alpha 0.5, at most 50 % (at 0.125), 0 % when it was 0.5 again."
    assert beta == (
        "Mean token latency is 1.1 times that of the first block at 60 % of beta, 4 times at 25 %."
    )
    assert "1.25 times the smallest while theta changes, 4 times while beta does" in theta
    assert analysis.summary == (
        "llm on 1xGPU: 2 of 16 requests failed (12.5 %), the largest share in phase api (50 %); "
        "of the paper's 4 findings 4 hold here, 0 do not, 0 cannot be judged."
    )
    assert [phase["name"] for phase in numbers["phases"]] == [
        *("warm-up", "conversation", "api", "alpha", "beta", "theta")
    ]


def test_a_server_without_failures_leaves_the_finding_on_alpha_open(tmp_path):
    cell = whole_cell(tmp_path / "cell", alpha_fails=0)
    analysis = analyse(study_data(tmp_path, [cell]))
    finding = analysis.numbers["cells"][0]["findings"][1]
    assert finding["holds"] is None
    assert finding["here"].endswith("Token latency grew at most 10 times.")


def test_missing_phases_and_failed_ones_are_said(tmp_path):
    only = sweep_cell(tmp_path / "only", [failed(BETA, due_s) for due_s in range(4)])
    infeasible = write_cell(tmp_path / "infeasible", verdict=TOO_LARGE, llm_id="big", kind="burst")
    analysis = analyse(study_data(tmp_path, [only, infeasible]))
    assert len(analysis.numbers["cells"]) == 1
    assert "4 of 4 requests failed (100 %)" in analysis.summary
    assert "of the paper's 4 findings 0 hold here, 0 do not, 4 cannot be judged" in analysis.summary
    held = {each["here"] for each in analysis.numbers["cells"][0]["findings"]}
    assert "Too few requests were served to compare latencies." in held
    (phase,) = analysis.numbers["cells"][0]["phases"]
    assert phase["by_setting"]["failure_rate"].tolist() == [1, 1]
