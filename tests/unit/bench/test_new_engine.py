"""A new engine: one file (`tests/stub_engine.py`), one row, and its cells are like any others."""

from dataclasses import replace

import pandas as pd
import pytest
from test_cell import LONGEST_REQUEST, MOST_TOKENS, SETTINGS, prepare_cell, read, weights

from sextant.base.job_log import Progress
from sextant.bench.cell import measure_cell
from sextant.engine.registry import ENGINES, check_settings, missing_engine
from sextant.points.summarize import aggregate_points
from stub_engine import StubEngine

STUB = replace(SETTINGS, name="stub", python="/no/such/interpreter", max_server_starts=2)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENGINES, "stub", StubEngine(most_tokens=1000))


def test_a_new_engine_is_tuned_measured_and_aggregated(tmp_path) -> None:
    cell, outputs = prepare_cell(tmp_path, levels=(1, 2))
    measure_cell(cell, STUB, outputs.folder, outputs.server_log, Progress("test", 1))
    assert weights(outputs) == [(MOST_TOKENS, "out_of_memory"), (LONGEST_REQUEST, "ok")]
    run = read(outputs.run)
    assert (run["server"]["version"], run["server"]["command"]) == ("1.2", ["stub", "serve"])
    server = pd.read_parquet(outputs.server)
    assert (server[["n_running", "kv_cache_usage"]] == [2, 0.5]).all(axis=None)
    assert len(pd.read_parquet(outputs.telemetry)) > 0
    tables = [tmp_path / f"{name}.parquet" for name in ("point", "feasibility", "telemetry")]
    aggregate_points([outputs.run.parent], *tables)
    points, (feasible,) = pd.read_parquet(tables[0]), pd.read_parquet(tables[1]).itertuples()
    assert list(points["users"]) == [1, 2] and (points["n_failed"] == 0).all()
    assert set(points["batch_weight_tokens"]) == {LONGEST_REQUEST}
    assert feasible.is_feasible and feasible.n_server_starts == 2


def test_its_settings_are_checked_by_itself() -> None:
    settings = replace(STUB, extra_arguments=("--fast",))
    assert check_settings(settings, "config.yaml") == ["--fast is not known here"]


def test_an_interpreter_that_cannot_be_started_is_named_before_a_run(tmp_path) -> None:
    program = tmp_path / "python"
    for what in ("is not there", "is no program"):
        error = missing_engine(replace(SETTINGS, name="vllm", python=str(program)))
        assert f"{program} {what}" in str(error) and "Fix: `make" in str(error)
        program.touch(mode=0o644)
    program.chmod(0o755)
    assert missing_engine(replace(SETTINGS, name="vllm", python=str(program))) is None
