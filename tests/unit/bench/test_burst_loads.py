"""Loads of the burst study: what each phase sends, and when."""

import numpy as np
import pytest

from sextant.bench import burst
from sextant.bench.burst import phase_load, read_windows
from sextant.experiment.scenarios import Burst
from sextant.workload.published import zipf_request_model

MODEL = zipf_request_model(1.1, 1, 100, 20)
"""Inputs of 1 to 100 tokens, 20 of output."""
PLAN = Burst(levels=(1.0,), burstiness=0.5, warmup_s=1000.0, duration_s=40.0)
HEADER = "service\tstart_s\tduration_s\tn_requests\talpha\n"


@pytest.fixture
def windows(tmp_path, monkeypatch):
    """Ten seconds of 30 requests with alpha 2, then ten of 10 requests without a fit."""
    path = tmp_path / "windows.tsv"
    rows = "api\t100\t10\t30\t2\napi\t110\t10\t10\t\nconversation\t0\t5\t8\t0.5\n"
    path.write_text(f"# a comment\n{HEADER}{rows}")
    monkeypatch.setattr(burst, "WINDOWS_FILE", path)
    return path


def of(load, name):
    return [setting[name] for setting in load.settings]


def test_the_warmup_is_steady_at_the_rate_and_shape():
    load = phase_load(1, PLAN, 4.0, MODEL, seed=1)
    assert load.settings == [
        {"start_s": 0.0, "alpha": 0.5, "beta_s": 0.5, "rate_rps": 4.0, "theta": 1.1}
    ]
    # 4,000 on average; gaps of alpha 0.5 give the count a standard deviation of √(4000 / 0.5).
    assert abs(len(load.arrival_s) - 4000) < 4 * 90
    assert load.arrival_s.max() < 1000
    gaps = np.diff(load.arrival_s)
    assert gaps.std() / gaps.mean() == pytest.approx(2**0.5, rel=0.1)
    assert set(load.output_tokens) == {20}
    assert len(load.input_tokens) == len(load.output_tokens) == len(load.arrival_s)


def test_alpha_falls_to_a_quarter_and_rises_again_while_beta_stays():
    load = phase_load(4, PLAN, 4.0, MODEL, seed=1)
    # 0.125 + 0.375 · ((u - 4) / 4)²
    assert of(load, "alpha")[:5] == pytest.approx([0.5, 0.3359375, 0.21875, 0.1484375, 0.125])
    assert of(load, "alpha")[5:] == pytest.approx([0.1484375, 0.21875, 0.3359375, 0.5])
    assert of(load, "beta_s") == pytest.approx([0.5] * 9)
    assert of(load, "rate_rps")[4] == pytest.approx(16.0)
    assert load.facts == {"n_per_change": 200}
    assert len(load.arrival_s) == 1800


def test_a_setting_begins_with_the_last_request_before_it():
    load = phase_load(5, PLAN, 4.0, MODEL, seed=1)
    assert of(load, "start_s")[:2] == [0.0, load.arrival_s[199]]
    assert of(load, "beta_s") == pytest.approx(np.linspace(0.5, 0.125, 9))
    assert of(load, "alpha") == pytest.approx([0.5] * 9)
    first, last = load.arrival_s[199], load.arrival_s[1799] - load.arrival_s[1599]
    assert last < first  # 200 gaps of a quarter of the mean


def test_theta_makes_inputs_shorter_step_by_step():
    load = phase_load(6, PLAN, 4.0, MODEL, seed=1)
    assert of(load, "theta") == pytest.approx(np.linspace(1.1, 1.9, 9))
    blocks = load.input_tokens.reshape(9, 200)
    assert blocks[0].mean() > 2 * blocks[-1].mean()
    assert of(load, "rate_rps") == pytest.approx([4.0] * 9)


def test_windows_are_stretched_and_scaled_to_the_rate(windows):
    load = phase_load(3, PLAN, 2.5, MODEL, seed=1)
    # 20 s become 40; 40 requests become 200: 150 in the first 20 s, 50 in the next.
    assert load.facts == {"time_factor": 2.0, "rate_factor": 2.0, "n_windows": 2}
    assert of(load, "start_s") == [0.0, 20.0]
    assert of(load, "rate_rps") == pytest.approx([7.5, 2.5])
    assert of(load, "alpha") == [2.0, None]
    assert load.settings[0]["beta_s"] == pytest.approx(1 / 15)
    assert load.settings[1]["beta_s"] is None
    n_first, n_second = np.histogram(load.arrival_s, [0, 20, 40])[0]
    assert n_first + n_second == len(load.arrival_s)
    assert abs(n_first - 150) < 5 * (150 / 2) ** 0.5
    assert abs(n_second - 50) < 5 * 50**0.5


def test_the_windows_that_ship_cover_both_services():
    for service in ("conversation", "api"):
        windows = read_windows(service)
        assert len(windows) == 29
        assert (windows["n_requests"] > 300).all()


def test_the_same_seed_gives_the_same_load_and_phases_differ():
    first, again = (phase_load(4, PLAN, 4.0, MODEL, seed=3) for _ in range(2))
    assert np.array_equal(first.arrival_s, again.arrival_s)
    assert np.array_equal(first.input_tokens, again.input_tokens)
    other = phase_load(6, PLAN, 4.0, MODEL, seed=3)
    assert not np.array_equal(first.arrival_s[:100], other.arrival_s[:100])
