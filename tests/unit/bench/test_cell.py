"""One cell from end to end on the fake engine: what it writes, and what it does when all fails."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pyarrow.parquet as pq
import pytest

from sextant.base.errors import InputError
from sextant.base.files import read_provenance
from sextant.base.job_log import Progress
from sextant.bench.cell import measure_cell, server_specs
from sextant.bench.measurement import Cell, cell_from_definition
from sextant.engine import devices
from sextant.engine.protocol import ServerError
from sextant.experiment.servers import EngineSettings
from sextant.facts.llm import load_llm
from sextant.points.cell_files import CELL_FILES, TABLES, damaged_files, drop_checkpoints, read_run
from sextant.trace.job import ingest_trace
from sextant.workload.fit import WorkloadFiles, fit_workload
from support import FAKE_PYTHON, PATIENCE_S, ROOT

# Two layers of size 64: a token's K and V take 2 · 2 · 64 · 2 = 512 bytes.
CONFIG = {"model_type": "opt", "hidden_size": 64, "ffn_dim": 256, "num_hidden_layers": 2}
CONFIG |= {"num_attention_heads": 2, "word_embed_proj_dim": 64, "max_position_embeddings": 2048}
CONFIG |= {"vocab_size": 1000, "do_layer_norm_before": True, "torch_dtype": "float32"}
# 1000 · 64 + 2050 · 64 + 2 · (4 · 64² + 2 · 64 · 256) matrices and look-ups, then
# 2 · (4 · 64 + 256 + 64 + 4 · 64) + 2 · 64 biases and norms: 295,296 of 2 bytes as served.
WEIGHT_BYTES = 590_592
MOST_TOKENS = 4000
# Half of it may be used: the weights and 4000 tokens, and a little less than one more.
MEMORY_GIB = 2 * (WEIGHT_BYTES + 512 * MOST_TOKENS + 100) / 2**30
LONGEST_REQUEST = 64 + 8

ENGINE = {"python": str(FAKE_PYTHON), "dtype": "bfloat16", "block_size_tokens": 16}
ENGINE |= {"max_num_seqs": 8, "memory_utilization": 0.5, "max_server_starts": 8}
SETTINGS = EngineSettings(**ENGINE, start_timeout_s=PATIENCE_S, request_timeout_s=30.0)


class CellOutputs:
    """The files of a cell that is measured in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server_log = folder / "out", folder / "server.log"
        self.requests, self.server, self.telemetry = (
            self.folder / f"{name}.parquet" for name in ("requests", "server", "telemetry")
        )
        self.run, self.tuning = self.folder / "run.json", self.folder / "tuning.json"


def prepare_cell(folder: Path, levels=(1,), duration_s=0.3, memory_gib=MEMORY_GIB, **given):
    """Write a cell's inputs: of a scenario, a variant, a kind of devices that may be given."""
    (folder / "llm.json").write_text(json.dumps(CONFIG))
    workload = pd.DataFrame({"input_tokens": [20, 60], "output_tokens": [4, 8], "count": [1, 1]})
    workload.to_parquet(folder / "workload.parquet")
    devices = {"kind": given.get("kind", "cpu"), "n_gpus": 1, "memory_gib": memory_gib}
    definition = {"source": "measured", "llm_id": "tiny", "gpu_profile_id": "1xcore"}
    definition |= {"workload_id": "chat", "variant": given.get("variant", {})}
    definition |= {"config_path": str(folder / "llm.json"), "model": None, "devices": devices}
    definition |= {"max_input_tokens": 64, "max_output_tokens": 8, "seed": 0}
    definition |= {"engine": {"what the cell": "does not use"}, "scenario_id": "users"}
    scenario = given.get("scenario", {"kind": "closed_loop", "duration_s": duration_s})
    definition["scenario"] = {"levels": list(levels), "warmup_s": 0.1} | scenario
    return cell_from_definition(definition, folder / "workload.parquet"), CellOutputs(folder)


def measure_prepared(
    cell: Cell, outputs: CellOutputs, settings: EngineSettings = SETTINGS
) -> CellOutputs:
    measure_cell(cell, settings, outputs.folder, outputs.server_log, Progress("test", 1))
    return outputs


def measure(folder: Path, settings: EngineSettings = SETTINGS, **changes) -> CellOutputs:
    return measure_prepared(*prepare_cell(folder, **changes), settings)


def fake(patch: pytest.MonkeyPatch, **settings: object) -> None:
    """Have the fake engine do what its variables `FAKE_…` say."""
    for name, value in settings.items():
        patch.setenv(f"FAKE_{name}", str(value))


def written(folder: Path) -> list[str]:
    """Return the results; what an attempt has kept for the next is none."""
    return sorted(path.name for path in (folder / "out").iterdir() if path.name != "partial")


def read(path: Path) -> dict:
    return json.loads(path.read_text())


def weights(outputs: CellOutputs) -> list[tuple[int, str]]:
    probes = read(outputs.tuning)["probes"]
    return [(probe["batch_weight_tokens"], probe["outcome"]) for probe in probes]


@pytest.fixture(autouse=True)
def no_orphans():
    """Whatever happens to a cell, no process of it is left."""
    before = set(psutil.Process().children(recursive=True))
    yield
    left = set(psutil.Process().children(recursive=True)) - before
    assert not [process for process in left if process.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> CellOutputs:
    folder = tmp_path_factory.mktemp("cell")
    return measure(folder, levels=(1, 3), duration_s=1.3)


def test_every_output_is_written_with_its_schema_and_origin(whole):
    origin = read(whole.run)["provenance"]
    assert origin["seed"] == 0 and len(origin["inputs_sha256"]["workload"]) == 64
    for name, schema in TABLES.items():
        path = getattr(whole, name)
        assert pq.read_schema(path).remove_metadata().equals(schema)
        assert read_provenance(path) == origin
        assert set(pq.read_table(path).column("level").to_pylist()) == {1, 3}
    assert written(whole.run.parent.parent) == sorted(
        path.name for path in (whole.run, whole.tuning, *(getattr(whole, name) for name in TABLES))
    )


def test_the_run_says_what_was_run(whole):
    run = read(whole.run)
    ids = ("source", "llm_id", "gpu_profile_id", "workload_id", "scenario_id")
    assert [run[name] for name in ids] == ["measured", "tiny", "1xcore", "chat", "users"]
    assert run["verdict"] == {"outcome": "feasible", "numbers": {}, "source": None}
    assert run["batch_weight_tokens"] == MOST_TOKENS
    assert run["server"]["command"][0] == str(FAKE_PYTHON)
    assert run["server"]["version"] == "fake"
    assert run["server"]["batch_weight_tokens"] == MOST_TOKENS
    assert run["server"]["devices"] == [[min(os.sched_getaffinity(0))]]  # of one replica
    assert {"system", "processor", "python", "gpu_driver"} <= set(run["host"])
    assert run["started_at"].endswith("Z") and whole.server_log.exists()


def test_the_run_says_what_it_depends_on_and_vouches_for_the_other_files(whole):
    run, folder = read(whole.run), whole.run.parent
    assert run["definition"]["engine"] == {"what the cell": "does not use"}
    assert list(run["files"]) == list(CELL_FILES) and damaged_files(folder) == {}
    (folder.parent / "other.parquet").write_bytes(b"another workload")
    again, other = (
        cell_from_definition(run["definition"], folder.parent / f"{name}.parquet")
        for name in ("workload", "other")
    )
    assert again.definition_sha256 == run["definition_sha256"] != other.definition_sha256


def test_the_served_type_sizes_the_model_not_the_published_one(whole):
    tuning = read(whole.tuning)
    assert tuning["memory"]["weight_gib"] == pytest.approx(WEIGHT_BYTES / 2**30)
    assert weights(whole) == [(MOST_TOKENS, "ok")]
    # 4000 tokens are 250 blocks of 16, and vLLM's own one.
    arguments = read(whole.run)["server"]["command"]
    assert arguments[arguments.index("--num-gpu-blocks-override") + 1] == "251"
    assert arguments[arguments.index("--max-model-len") + 1] == str(LONGEST_REQUEST)
    assert arguments[arguments.index("--kv-cache-memory-bytes") + 1] == str(251 * 16 * 512)


def test_levels_agree_with_their_requests_and_the_server(whole):
    frame = pd.read_parquet(whole.requests)
    assert (frame["status"] == "ok").all()
    for level in read(whole.run)["levels"]:
        rows = frame[frame["level"] == level["level"]]
        assert set(rows["user"]) == set(range(level["level"]))
        assert rows["sent_s"].min() >= level["started_s"]
        assert rows["last_token_s"].max() <= level["started_s"] + level["duration_s"]
        assert level["duration_s"] >= 1.3 and level["n_warmup_requests"] >= level["level"]
        assert level["n_prepared_late"] >= 0
        assert level["client_lag_ms"]["p99"] <= level["client_lag_ms"]["max"]
        gaps_ms = np.concatenate([np.diff(offsets) for offsets in rows["token_offsets_ms"]])
        # Two clocks in two processes: what we saw is what the server says of itself.
        assert level["server_mean_itl_ms"] == pytest.approx(gaps_ms.mean(), rel=0.25, abs=1.0)
    starts = [level["started_s"] for level in read(whole.run)["levels"]]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("memory_gib", "tokens", "reason"),
    [
        (WEIGHT_BYTES / 2**30, None, "the weights take"),
        (2 * (WEIGHT_BYTES + 512 * 71 + 10) / 2**30, None, "the KV cache holds 71 tokens"),
        (MEMORY_GIB, 5000, "holds 4000 tokens"),
        (MEMORY_GIB, 50, "longest request needs 72"),
    ],
)
def test_what_is_ruled_out_starts_no_server(tmp_path, memory_gib, tokens, reason):
    settings = replace(SETTINGS, python="/no/such/interpreter")
    variant = {"variant_id": "odd", "batch_weight_tokens": tokens}
    outputs = measure(tmp_path, settings, memory_gib=memory_gib, variant=variant)
    run, tuning = read(outputs.run), read(outputs.tuning)
    assert reason in read_run(outputs.folder).verdict.reason
    assert run["verdict"] == tuning["verdict"]
    assert run["batch_weight_tokens"] is tuning["batch_weight_tokens"] is None
    assert (run["levels"], run["server"], tuning["probes"]) == ([], None, [])
    for name, schema in TABLES.items():
        table = pq.read_table(getattr(outputs, name))
        assert table.num_rows == 0 and table.schema.remove_metadata().equals(schema)
    assert not outputs.server_log.exists()


def test_a_cell_that_no_weight_fits_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LIMIT_TOKENS", "10")
    outputs = measure(tmp_path, replace(SETTINGS, max_server_starts=2))
    assert weights(outputs) == [(MOST_TOKENS, "out_of_memory"), (LONGEST_REQUEST, "out_of_memory")]
    assert read_run(outputs.folder).verdict.reason == (
        "does not fit: no batch weight passed in 2 server starts"
    )
    assert pq.read_metadata(outputs.requests).num_rows == 0
    assert "CUDA out of memory" in read(outputs.tuning)["probes"][0]["detail"]


@pytest.mark.parametrize("where", ["start", "2"])
def test_a_weight_that_runs_out_of_memory_is_lowered(tmp_path, monkeypatch, where):
    fake(monkeypatch, LIMIT_TOKENS=3000, FAIL_AT=where)
    outputs = measure(tmp_path, replace(SETTINGS, max_server_starts=3))
    # After the first failure the middle of 71 and 4000 passes; the middle of what is left
    # does not: of 2035 and 4000 it is 3017, which takes 3024 as blocks.
    assert weights(outputs)[:2] == [(MOST_TOKENS, "out_of_memory"), (2035, "ok")]
    assert weights(outputs)[-1] == (2035, "ok") and len(weights(outputs)) <= 3
    run = read(outputs.run)
    assert run["batch_weight_tokens"] == run["server"]["batch_weight_tokens"] == 2035
    assert (pd.read_parquet(outputs.requests)["status"] == "ok").all()


def test_a_weight_that_passes_the_probe_and_fails_under_load_is_lowered(tmp_path, monkeypatch):
    # The corner cases are up to 8 requests at once; 10 users are more. The API server answers on,
    # and its engine has ended.
    fake(monkeypatch, LIMIT_TOKENS=3000, FAIL_AT=9, LIVES_ON=1)
    outputs = measure(tmp_path, replace(SETTINGS, max_server_starts=2), levels=(1, 10))
    lowered = int(0.7 * MOST_TOKENS)
    assert weights(outputs) == [(MOST_TOKENS, "out_of_memory"), (lowered, "ok")]
    run = read(outputs.run)
    assert run["verdict"]["outcome"] == "feasible"
    assert run["server"]["batch_weight_tokens"] == lowered
    # Of the server that failed nothing is left in the results.
    assert [level["level"] for level in run["levels"]] == [1, 10]
    frame = pd.read_parquet(outputs.requests)
    assert (frame["status"] == "ok").all()
    assert frame["sent_s"].min() >= run["levels"][0]["started_s"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"FAIL_AT": "start"}, "unknown kernel"),
        ({"FAIL_AT": "1"}, "unknown kernel"),
        # Its API server answers on, and its engine has ended.
        ({"FAIL_AT": "9", "LIVES_ON": 1}, "the engine ended at level 10"),
    ],
)
def test_a_crash_is_an_error_and_leaves_no_results(tmp_path, monkeypatch, settings, said):
    fake(monkeypatch, CRASH="RuntimeError: unknown kernel", **settings)
    with pytest.raises(ServerError, match=said) as caught:
        measure(tmp_path, levels=(1, 10))
    assert not caught.value.is_out_of_memory
    assert written(tmp_path) == []
    assert "unknown kernel" in (tmp_path / "server.log").read_text()


def test_a_server_that_the_kernel_kills_under_load_ran_out_of_memory(tmp_path, monkeypatch):
    fake(monkeypatch, LIMIT_TOKENS=3000, FAIL_AT=2)
    counter = tmp_path / "vmstat"
    counter.write_text("oom_kill 0\n")
    monkeypatch.setattr(devices, "_VMSTAT", counter)
    monkeypatch.setenv("FAKE_KILLED", str(counter))
    outputs = measure(tmp_path, replace(SETTINGS, max_server_starts=2))
    assert weights(outputs) == [(MOST_TOKENS, "out_of_memory"), (LONGEST_REQUEST, "ok")]


def test_requests_beyond_the_context_are_refused_before_all_else(tmp_path):
    cell, outputs = prepare_cell(tmp_path)
    cell = replace(cell, max_input_tokens=2045)
    with pytest.raises(InputError, match=r"2053 tokens exceed 2048 .*max_input_tokens"):
        measure_prepared(cell, outputs)


def test_a_disk_without_room_is_told_before_the_server_starts(tmp_path, monkeypatch):
    usage = type("usage", (), {"free": 2**20})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(InputError, match="1 MiB of disk are free"):
        measure(tmp_path)
    assert written(tmp_path) == []


def test_a_disk_that_fills_up_leaves_nothing_that_passes_for_whole(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text('{"of an earlier run": true}')
    folders = [*map(str, (ROOT / "tests", Path(__file__).parent, ROOT / "scripts"))]
    measure_under_a_limit = """
import resource, signal, sys
from pathlib import Path
from sextant.base.errors import InputError
from test_cell import measure
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3500, resource.RLIM_INFINITY))
try:
    measure(Path(sys.argv[1]))
except InputError as error:
    print("failed:", error)
"""
    done = subprocess.run(
        # Room for the small inputs, not for the requests' table.
        [sys.executable, "-c", measure_under_a_limit, str(tmp_path)],
        # What it starts has the limit too, and would leave byte code that is cut off.
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
    folder = tmp_path / "out" / "partial" / "level-1"
    assert f"failed: {folder}: no room to write requests.parquet" in done.stdout, done.stderr
    assert "Fix: free some space or raise the quota, and run again" in done.stdout
    # What is there is whole, and the former results stay.
    assert read(tmp_path / "out" / "run.json") == {"of an earlier run": True}
    assert not [*(tmp_path / "out").glob(".*")]
    for path in (tmp_path / "out").glob("*.parquet"):
        pq.read_table(path)


def test_a_batch_is_sent_at_once_and_its_cap_makes_requests_wait(tmp_path):
    batch = {"kind": "batch", "levels": [2, 6], "n_requests": 6}
    outputs = measure(tmp_path, scenario=batch)
    frame = pd.read_parquet(outputs.requests)
    assert frame.groupby("level").size().to_dict() == {2.0: 6, 6.0: 6}
    for level, rows in frame.groupby("level"):
        assert rows["scheduled_s"].nunique() == 1
        in_flight = (rows.query("sent_s <= @at < last_token_s") for at in rows["sent_s"])
        assert max(map(len, in_flight)) <= level
    levels = read(outputs.run)["levels"]
    assert [level["n_warmup_requests"] > 0 for level in levels] == [True, True]
    # Those of the stop rule count from the time sent, and would hide the wait.
    assert not any(level["medians"] for level in levels)


def test_rates_leave_warm_up_and_cool_down_out_and_infinity_is_all_at_once(tmp_path):
    rates = {"kind": "open_loop", "levels": [60], "duration_s": 0.5, "cooldown_s": 0.2}
    outputs = measure(tmp_path, scenario=rates)
    (level,) = read(outputs.run)["levels"]
    frame = pd.read_parquet(outputs.requests)
    since_s = frame["scheduled_s"] - level["started_s"]
    assert since_s.min() >= 0 and since_s.max() < 0.5 and len(frame) > 5
    assert level["n_warmup_requests"] > 0 and level["n_cooldown_requests"] > 0
    endless = {"kind": "open_loop", "levels": ["inf"], "n_requests": 7}
    (tmp_path / "inf").mkdir()
    outputs = measure(tmp_path / "inf", scenario=endless)
    frame = pd.read_parquet(outputs.requests)
    assert len(frame) == 7 and frame["scheduled_s"].nunique() == 1
    assert np.isinf(frame["level"]).all() and read(outputs.run)["levels"][0]["level"] == "inf"


def test_a_traces_own_arrivals_are_replayed_and_belong_to_the_definition(tmp_path):
    gaps_s = np.array([0.0, 0.01, 0.01, 0.2, 0.01, 0.01, 0.01, 0.25, 0.01, 0.01])
    rows = [f"{at:g},20,4" for at in np.cumsum(gaps_s)]
    (tmp_path / "trace.csv").write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    names = ("trace.parquet", "rejected.parquet", "report.json")
    ingest_trace(tmp_path / "trace.csv", "sextant", *(tmp_path / name for name in names))
    fit_workload(tmp_path / "trace.parquet", WorkloadFiles.in_folder(tmp_path))
    own_rps = 9 / gaps_s.sum()
    # It lasts 0.52 s, and begins again a mean gap later.
    scenario = {"kind": "open_loop", "levels": [own_rps], "duration_s": 0.55, "warmup_s": 0.0}
    cell, outputs = prepare_cell(tmp_path, scenario=scenario | {"arrivals": "replay"})
    definition = dict(cell.definition)
    cell = cell_from_definition(definition, tmp_path / "requests.parquet")
    frame = pd.read_parquet(measure_prepared(cell, outputs).requests).sort_values("scheduled_s")
    assert np.diff(frame["scheduled_s"]) == pytest.approx(gaps_s[1:], abs=1e-6)
    stored = tmp_path / "arrivals.json"
    stored.write_text(stored.read_text() + "\n")
    changed = cell_from_definition(definition, tmp_path / "requests.parquet")
    assert changed.definition_sha256 != cell.definition_sha256
    steady, digests = definition | {"scenario": scenario | {"burstiness": 0.5}}, set()
    for text in (stored.read_text(), "{}"):
        stored.write_text(text)
        digests.add(cell_from_definition(steady, tmp_path / "requests.parquet").definition_sha256)
    assert len(digests) == 1


def test_a_sweep_ends_once_both_limits_are_far_exceeded_and_says_so(tmp_path):
    stop = {"stop_nttft_ms": 1e-4, "stop_itl_ms": 1e-4, "stop_factor": 2.0}
    sweep = {"kind": "closed_loop", "duration_s": 2.0} | stop
    outputs = measure(tmp_path, levels=(1, 2, 4), scenario=sweep)
    run = read(outputs.run)
    assert run["levels"][0]["medians"]["itl_ms"] > 1e-4
    assert [level["level"] for level in run["levels"]] == [1]
    assert run["left_out"]["levels"] == [2, 4]
    assert run["left_out"]["stop"]["factor"] == 2.0


def test_replicas_get_the_same_share_of_the_requests(tmp_path):
    pair = {"variant_id": "pair", "replicas": 2, "placement": "shared"}
    # Each has half of the memory, and the model's weights take the same of it.
    outputs = measure(tmp_path, levels=(4,), variant=pair)
    run = read(outputs.run)
    assert run["variant_id"] == "pair" and len(run["server"]["devices"]) == 2
    assert run["batch_weight_tokens"] < MOST_TOKENS / 2
    frame = pd.read_parquet(outputs.requests)
    pairs = set(zip(frame["user"], frame["replica"], strict=True))
    assert pairs == {(0, 0), (1, 1), (2, 0), (3, 1)}
    watched = pd.read_parquet(outputs.server)
    assert set(watched["replica"]) <= {0, 1}
    assert (tmp_path / "server.log").exists() and (tmp_path / "server.1.log").exists()


@pytest.mark.parametrize(("placement", "n_cores"), [("own", 2), ("shared", 1)])
def test_replicas_of_their_own_devices_have_cores_of_their_own(tmp_path, placement, n_cores):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    pair = {"variant_id": "pair", "replicas": 2, "placement": placement, "cpu_cores": 1}
    cell, _ = prepare_cell(tmp_path, variant=pair)
    specs = server_specs(cell, load_llm(cell.config_path, "bfloat16"), tmp_path, tmp_path, 100)
    assert [len(spec.cores) for spec in specs] == [1, 1]
    assert len({spec.cores for spec in specs}) == n_cores


def test_a_batch_weight_that_is_given_is_not_tuned(tmp_path, monkeypatch):
    given = {"variant_id": "small", "batch_weight_tokens": 500}
    assert weights(measure(tmp_path, variant=given)) == [(500, "ok")]
    monkeypatch.setenv("FAKE_LIMIT_TOKENS", "300")
    (tmp_path / "oom").mkdir()
    outputs = measure(tmp_path / "oom", variant=given)
    assert weights(outputs) == [(500, "out_of_memory")]
    assert not read_run(outputs.folder).verdict.is_feasible


def test_results_that_nobody_has_read_are_not_measured_again(tmp_path):
    first = pd.read_parquet(measure(tmp_path, levels=(1, 2)).requests)
    # Snakemake was killed meanwhile: its successor deletes the results and starts a job.
    for name in written(tmp_path):
        (tmp_path / "out" / name).unlink()
    for _ in range(2):
        again = pd.read_parquet(measure(tmp_path, levels=(1, 2)).requests)
        pd.testing.assert_frame_equal(again, first)
        drop_checkpoints([tmp_path / "out"])  # nor what has been read
    (tmp_path / "out" / "run.json").unlink()
    anew = pd.read_parquet(measure(tmp_path, levels=(1, 2)).requests)
    assert not set(anew["sent_s"]) & set(first["sent_s"])


def test_what_another_engine_or_definition_measured_is_measured_anew(tmp_path, monkeypatch):
    with monkeypatch.context() as first:
        fake(first, CRASH="boom", FAIL_AT=9, VERSION="older")
        with pytest.raises(ServerError):
            measure(tmp_path, levels=(1, 10))
    before = pd.read_parquet(tmp_path / "out" / "partial" / "level-1" / "requests.parquet")
    outputs = measure(tmp_path, levels=(1, 10))
    assert [level["engine_version"] for level in read(outputs.run)["levels"]] == ["fake", "fake"]
    assert not set(pd.read_parquet(outputs.requests)["sent_s"]) & set(before["sent_s"])
    (level,) = read(measure(tmp_path, levels=(1,), duration_s=0.4).run)["levels"]
    assert level["duration_s"] >= 0.4


def test_a_server_that_hangs_ends_the_measurement_with_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_STALL_AT", "9")
    with pytest.raises(ServerError, match="level 10"):
        measure(tmp_path, replace(SETTINGS, request_timeout_s=4.0), levels=(2, 10))
    assert written(tmp_path) == []  # and the level before is kept for the next attempt
    assert (tmp_path / "out" / "partial" / "level-2" / "level.json").exists()
