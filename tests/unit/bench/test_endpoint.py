"""Servers that run already: from the sheet to a point."""

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from test_cell import SETTINGS, measure_prepared, prepare_cell, read

from sextant.base.errors import InputError
from sextant.bench.cell import run_job
from sextant.engine.endpoint import endpoint_servers
from sextant.engine.registry import check_settings
from sextant.experiment.experiment import Experiment, cell_definition
from sextant.experiment.loading import load_experiment
from sextant.experiment.servers import Endpoint, EngineSettings, engine_settings
from sextant.facts.gpu import Devices
from sextant.points.summarize import aggregate_points
from stub_server import StubServer, answer_endpoint

KEY = "sk-0123456789abcdefghij"
METRICS = """\
vllm:num_requests_running 3
vllm:num_requests_waiting 1
vllm:kv_cache_usage_perc 0.25
"""


def settings_for(*urls: str, **changes) -> EngineSettings:
    endpoint = Endpoint(urls, "chat-model", "STUB_KEY")
    python = "/no/such/interpreter"
    return replace(SETTINGS, name="endpoint", endpoint=replace(endpoint, **changes), python=python)


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """A cell of a server that runs already, on a device that this machine does not have."""
    folder = tmp_path_factory.mktemp("endpoint")
    cell, outputs = prepare_cell(folder, levels=(1, 3))
    cell = replace(cell, devices=Devices("gpu", 2, 80.0))
    server = StubServer(answer_endpoint("chat-model", key=KEY, metrics=METRICS))
    with server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STUB_KEY", KEY)
        measure_prepared(cell, outputs, settings_for(server.url))
    return outputs.run.parent


def test_it_is_measured_without_a_start_and_without_tuning(measured: Path) -> None:
    run, tuning = read(measured / "run.json"), read(measured / "tuning.json")
    for result in (run, tuning):
        assert (result["verdict"]["outcome"], result["batch_weight_tokens"]) == ("feasible", None)
    assert (tuning["probes"], tuning["memory"]) == ([], None)
    assert (run["server"]["command"], run["server"]["version"]) == (None, "9.9")
    assert run["server"]["engine"] == "endpoint" and run["server"]["url"].startswith("http://")
    assert [level["level"] for level in run["levels"]] == [1, 3]
    assert not (measured.parent / "server.log").exists()
    requests = pd.read_parquet(measured / "requests.parquet")
    assert (requests["status"] == "ok").all() and len(requests) > 4


def test_its_devices_are_not_watched_its_metrics_are(measured: Path) -> None:
    assert pd.read_parquet(measured / "telemetry.parquet").empty
    rows = pd.read_parquet(measured / "server.parquet")
    assert set(rows["level"]) == {1, 3}
    assert (rows[["n_running", "n_waiting", "kv_cache_usage"]] == [3, 1, 0.25]).all(axis=None)
    assert rows["n_preemptions"].isna().all()
    warnings = [level["telemetry_warnings"] for level in read(measured / "run.json")["levels"]]
    assert warnings == [[], []]


def test_it_becomes_points(measured: Path, tmp_path: Path) -> None:
    tables = [tmp_path / f"{name}.parquet" for name in ("point", "feasibility", "telemetry")]
    aggregate_points([measured], *tables)
    points, (feasible,) = pd.read_parquet(tables[0]), pd.read_parquet(tables[1]).itertuples()
    assert list(points["users"]) == [1, 3] and (points["n_ok"] > 0).all()
    assert points[["batch_weight_tokens", "energy_j"]].isna().all(axis=None)
    assert points["median_itl_ms"].notna().all()
    assert feasible.is_feasible and feasible.n_server_starts == 0
    assert pd.read_parquet(tables[2]).empty


@pytest.mark.parametrize(
    ("model", "key", "said"),
    [
        ("other-model", KEY, ["'served_model_name'", "other-model"]),
        ("chat-model", "another key", ["'api_key_env'", "401"]),
        (None, KEY, ["'base_urls'", "does not answer"]),
    ],
)
def test_a_server_that_cannot_be_measured_is_told_before_the_load(
    tmp_path, monkeypatch, model, key, said
) -> None:
    monkeypatch.setenv("STUB_KEY", KEY)
    cell, outputs = prepare_cell(tmp_path)
    with StubServer(answer_endpoint(model or "", key=key)) as server:
        settings = settings_for(server.url if model else "http://127.0.0.1:9")
        with pytest.raises(InputError) as caught:
            measure_prepared(cell, outputs, settings)
        assert not [each for each in server.requests if each.head.startswith("POST")]
    assert all(part in str(caught.value) for part in [*said, "Fix: "])


def test_a_key_that_is_not_in_the_environment_is_an_error(monkeypatch) -> None:
    monkeypatch.delenv("STUB_KEY", raising=False)
    with pytest.raises(InputError, match="'api_key_env': the environment has no STUB_KEY"):
        endpoint_servers(Endpoint(("http://h",), "m", "STUB_KEY"))


HEADER = "llm_id\tgpu_profile_id\tbase_urls\tserved_model_name\tapi_key_env"
ROW = "demo-opt-6m\t1xcpu-core\thttp://h:1\tm\tKEY"


def load(config: dict, *rows: str, header: str = HEADER) -> Experiment:
    """Load the demo's configuration with a sheet of endpoints."""
    config["sheets"]["endpoints"] = "config/endpoints.tsv"
    Path("config/endpoints.tsv").write_text("\n".join([header, *rows, ""]))
    return load_experiment(config, "config.yaml", check_engine=check_settings)


def test_the_sheet_tells_which_cells_run_already(config) -> None:
    experiment = load(config, ROW)
    found = {key: experiment.endpoint(key) for key in experiment.cells}
    (key,) = [key for key, endpoint in found.items() if endpoint]
    assert (key.llm_id, key.gpu_profile_id) == ("demo-opt-6m", "1xcpu-core")
    definition = cell_definition(experiment, key, config)
    served = {"base_urls": ["http://h:1"], "served_model_name": "m"}
    assert definition["engine"] == {"name": "endpoint", **served}
    other = next(key for key, endpoint in found.items() if not endpoint)
    assert cell_definition(experiment, other, config)["engine"]["name"] == "vllm"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([ROW.replace("opt", "none")], ["line 2", "'llm_id'", "'demo-none-6m'", "demo-opt-6m"]),
        ([ROW.replace("1xcpu", "9xcpu")], ["line 2", "'gpu_profile_id'", "2xcpu-core"]),
        ([ROW, ROW.replace("h:1", "h:2")], ["line 3", "'gpu_profile_id'", "line 2 has"]),
        ([ROW, ROW.replace("1xcpu", "2xcpu")], ["line 3", "'base_urls'", "line 2 has the model"]),
        ([ROW.replace("http://", "")], ["line 2", "'base_urls'", "not a base URL"]),
        ([ROW.replace("http://h", "http://[h")], ["line 2", "'base_urls'", "not a base URL"]),
        ([ROW.replace("h:1", "h:1/a b")], ["line 2", "'base_urls'", "not a base URL"]),
        ([ROW.replace("h:1", "h:1?a=b")], ["line 2", "'base_urls'", "not a base URL"]),
        ([ROW, ROW.replace("1x", "2x").replace(":1", ":1/v1")], ["line 3", "has the model"]),
        ([ROW.replace("h:1", "me:secret@h")], ["line 2", "'base_urls'", "user's name"]),
        ([ROW.replace("h:1", "h:1,http://h:2")], ["line 2", "'base_urls'", "2 base URLs"]),
        ([ROW.replace("KEY", "sk-secret")], ["line 2", "'api_key_env'", "environment variable"]),
    ],
)
def test_rows_that_contradict_each_other_are_refused(config, rows, said) -> None:
    with pytest.raises(InputError) as caught:
        load(config, *rows)
    message = str(caught.value)
    assert all(part in message for part in ["config/endpoints.tsv", "Fix: ", *said]), message


@pytest.mark.parametrize("name", ["missing.pem", "empty.pem"])
def test_a_file_without_certificates_is_found_with_the_sheet(config, tmp_path, name) -> None:
    (tmp_path / "empty.pem").write_text("")
    said = rf"endpoints\.tsv, line 2, field 'ca_file': {name}: no certificates.*Fix: .*PEM"
    with pytest.raises(InputError, match=said):
        load(config, f"{ROW}\t{name}", header=f"{HEADER}\tca_file")


def test_a_variant_cannot_set_up_a_server_that_runs_already(config) -> None:
    config["sheets"]["variants"] = "config/variants.tsv"
    Path("config/variants.tsv").write_text("variant_id\tbatch_weight_tokens\nsmall\t900\n")
    benchmarks = Path("config/benchmarks.tsv")
    *_, head, row = benchmarks.read_text().splitlines()
    benchmarks.write_text(f"{head}\tvariant_ids\n{row}\tdefault, small\n")
    with pytest.raises(InputError, match=r"endpoints\.tsv, line 2.*sets batch_weight_tokens"):
        load(config, ROW)


EAGER = {"name": "endpoint", "extra_arguments": ["--enforce-eager"]}


@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"name": "vlm"}, r"config.yaml.*'engine.name'.*'vlm'.*vllm, endpoint"),
        (EAGER, "config.yaml.*'engine.extra_arguments'.* Fix: .*runs already"),
        ({"name": "endpoint"}, r"'engine\.name'.*demo-opt-6m on 2xcpu-core has no row"),
        ({}, r"gpu_profiles\.tsv.*Gaudi-3-128GB.*endpoints\.tsv"),
    ],
)
def test_what_an_engine_cannot_have_is_refused(config, engine, said) -> None:
    config["engine"] |= engine
    if not engine:  # a device without CUDA: its servers have to run already
        profiles = Path("config/gpu_profiles.tsv")
        profiles.write_text(profiles.read_text().replace("cpu-core\t1", "Gaudi-3-128GB\t1"))
    with pytest.raises(InputError, match=said):
        load(config, ROW)


def test_a_job_takes_the_key_from_the_sheet(config, tmp_path, monkeypatch) -> None:
    """It is not in the definition, which results repeat."""
    monkeypatch.setenv("KEY", KEY)
    cell, outputs = prepare_cell(tmp_path)
    definition = dict(cell.definition) | {
        "llm_id": "demo-opt-6m",
        "gpu_profile_id": "1xcpu-core",
        "workload": {},
    }
    receipt = str(outputs.run.with_name("measured.json"))
    logs = {"job": str(tmp_path / "job.log"), "server": str(tmp_path / "server.log")}
    with StubServer(answer_endpoint("m", key=KEY)) as server:
        load(config, ROW.replace("http://h:1", server.url))
        run_job(definition, config, str(cell.workload_path), receipt, logs)
    assert read(outputs.run)["verdict"]["outcome"] == "feasible"
    assert engine_settings(config).name == "vllm"
