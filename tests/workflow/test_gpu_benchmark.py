"""benchmarks/gpu/run, which measures a GPU in one command, on the fake engine."""

import re
import subprocess
import sys
import time
from itertools import product
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fake_nvml import use_fake_nvml, use_no_nvml
from sextant.points.folder import load_folder
from support import ROOT

RUN = ROOT / "benchmarks" / "gpu" / "run"
CONFIG = RUN.parent / "config" / "config.yaml"


def run(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(RUN), "--out", str(out), *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def little(folder: Path, **changed: object) -> str:
    """Return a configuration with two tiny LLMs, one pair of lengths and two numbers of users."""
    sheet = folder / "llms.tsv"
    names = ("opt-6m", "llama-16m")
    rows = [f"{name}\tresources/llms/demo-{name}.json" for name in names]
    sheet.write_text("\n".join(["llm_id\tconfig", *rows, ""]))
    lengths = [{"input_tokens": 64, "output_tokens": 16, "users": [1, 4], "duration_s": 0.5}]
    given = {"llms": str(sheet), "lengths": lengths, "start_s": 1, "tail_s": 0.5, **changed}
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(CONFIG.read_text()) | given))
    return str(path)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory):
    """The folder of a run that measured two LLMs, its configuration, and what it printed."""
    folder = tmp_path_factory.mktemp("gpu")
    config = little(folder)
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_fake_nvml(monkeypatch)
        done = run(folder / "out", "--fake", "--config", config)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("a server with 320 tokens starts") == 2
    return folder / "out", config, done.stdout


def test_two_llms_become_a_characterization_with_predictions_beside_it(measured):
    out, _, printed = measured
    assert "opt-6m         start 1 s, 64-in-16-out 2 s; ends after 3 s" in printed
    assert "TTFT of 4 points, law fitted on archive:inferencex: MAPE " in printed
    assert "TPOT of 4 points" in printed and "inside the 90% intervals" in printed
    assert "inferencex, simulated as sent: MAPE " in printed
    known = load_folder(out / "characterization")
    assert known.source == "measured:fake"
    assert known.has_fixed_lengths
    points = known.points.set_index(["llm_id", "users"]).sort_index()
    assert list(points.index) == [*product(("llama-16m", "opt-6m"), (1, 4))]
    assert set(points["gpu_profile_id"]) == {"1xH100-80GB"}
    assert (points["energy_j_per_token"] > 0).all()
    # The fake's gaps last 2.2 ms with one request in flight.
    assert points["median_tpot_ms"].between(2.2, 30).all()
    predicted = pd.read_csv(out / "predictions.csv").set_index(["llm_id", "users"]).sort_index()
    assert predicted["tpot_ms"].to_list() == pytest.approx(points["median_tpot_ms"].to_list())
    assert (predicted["tpot_lo_ms"] < predicted["tpot_predicted_ms"]).all()
    assert (predicted["sent_ttft_predicted_ms"] > 0).all()


@pytest.mark.slow
def test_the_same_command_measures_nothing_twice(measured):
    out, config, printed = measured
    again = run(out, "--fake", "--config", config)
    assert again.returncode == 0, again.stderr
    assert "a server with" not in again.stderr
    assert again.stdout.partition("llm_id")[2] == printed.partition("llm_id")[2]  # the table


@pytest.mark.slow
def test_what_an_h200_gave_is_predicted_as_the_results_say():
    command = [sys.executable, str(RUN.with_name("report.py")), str(RUN.with_name("h200"))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = re.findall(r"MAPE ([\d.]+)%, median ([\d.]+)%, (\d+)% inside", done.stdout)
    page = (ROOT / "docs" / "results.md").read_text().replace("**", "")
    assert len(said) == 9
    assert [each for each in said if ", ".join(each) not in page] == []


def test_without_a_gpu_it_ends_with_one_error(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    use_no_nvml(monkeypatch, tmp_path)
    done = run(tmp_path / "out")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no GPU to measure: unknown GPU. Fix: run on one of NVIDIA H100")
    assert done.stderr.count("\n") == 1


def test_a_level_that_outlasts_the_deadline_is_broken_off(tmp_path):
    lengths = [{"input_tokens": 64, "output_tokens": 16, "users": [1, 4], "duration_s": 300}]
    config = little(tmp_path, lengths=lengths, start_s=0, tail_s=-300, report_s=0)
    began = time.monotonic()
    done = run(tmp_path / "out", "--fake", "--config", config, "--deadline-s", "6")
    assert time.monotonic() - began < 200
    assert "the time is up: the same command goes on from here" in done.stderr
    assert done.returncode == 2  # no cell is whole
