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

from sextant.benchmark.cell import measure_cell
from sextant.benchmark.definition import CellOutputs, cell_from_definition
from sextant.engine.vllm import EngineSettings, ServerError
from sextant.errors import InputError
from sextant.files import read_provenance
from sextant.gpu import Devices
from sextant.load import server_metrics, telemetry
from sextant.load.level import REQUEST_SCHEMA
from sextant.progress import Progress
from support import FAKE_PYTHON

# Two layers of size 64: a token's K and V take 2 · 2 · 64 · 2 = 512 bytes.
CONFIG = {
    "model_type": "opt",
    "hidden_size": 64,
    "ffn_dim": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "word_embed_proj_dim": 64,
    "max_position_embeddings": 2048,
    "vocab_size": 1000,
    "do_layer_norm_before": True,
    "torch_dtype": "float32",
}
# 1000 · 64 + 2050 · 64 + 2 · (4 · 64² + 2 · 64 · 256) matrices and look-ups, then
# 2 · (4 · 64 + 256 + 64 + 4 · 64) + 2 · 64 biases and norms: 295,296 of 2 bytes as served.
WEIGHT_BYTES = 590_592
MOST_TOKENS = 4000
# Half of it may be used: the weights and 4000 tokens, and a little less than one more.
MEMORY_GIB = 2 * (WEIGHT_BYTES + 512 * MOST_TOKENS + 100) / 2**30
LONGEST_REQUEST = 64 + 8

SETTINGS = EngineSettings(
    python=str(FAKE_PYTHON),
    dtype="bfloat16",
    block_size_tokens=16,
    max_num_seqs=8,
    memory_utilization=0.5,
    start_timeout_s=60.0,
    request_timeout_s=30.0,
    max_server_starts=8,
)
TABLES = {
    "requests": REQUEST_SCHEMA,
    "server": server_metrics.SCHEMA,
    "telemetry": telemetry.SCHEMA,
}


def prepare_cell(folder: Path, levels=(1,), duration_s=0.3, memory_gib=MEMORY_GIB):
    """Write the inputs of a cell into a folder; return the cell and its outputs."""
    (folder / "llm.json").write_text(json.dumps(CONFIG))
    workload = pd.DataFrame({"input_tokens": [20, 60], "output_tokens": [4, 8], "count": [1, 1]})
    workload.to_parquet(folder / "workload.parquet")
    definition = {
        "source": "measured",
        "llm_id": "tiny",
        "config_path": str(folder / "llm.json"),
        "model": None,
        "gpu_profile_id": "1xcore",
        "devices": {"kind": "cpu", "n_gpus": 1, "memory_gib": memory_gib},
        "workload_id": "chat",
        "max_input_tokens": 64,
        "max_output_tokens": 8,
        "scenario_id": "users",
        "levels": list(levels),
        "warmup_s": 0.1,
        "duration_s": duration_s,
        "seed": 0,
        "engine": {"what the cell": "does not use"},
    }
    out = folder / "out"
    outputs = CellOutputs(
        requests=out / "requests.parquet",
        server=out / "server.parquet",
        telemetry=out / "telemetry.parquet",
        run=out / "run.json",
        tuning=out / "tuning.json",
        server_log=folder / "server.log",
    )
    return cell_from_definition(definition, folder / "workload.parquet"), outputs


def measure(folder: Path, settings: EngineSettings = SETTINGS, **changes) -> CellOutputs:
    cell, outputs = prepare_cell(folder, **changes)
    measure_cell(cell, settings, outputs, Progress("test", 1))
    return outputs


def written(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "out").iterdir())


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


# A cell that goes well


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
    assert (run["is_feasible"], run["reason"]) == (True, "fits")
    assert run["batch_weight_tokens"] == MOST_TOKENS
    assert run["server"]["command"][0] == str(FAKE_PYTHON)
    assert run["server"]["version"] == "fake"
    assert run["server"]["batch_weight_tokens"] == MOST_TOKENS
    assert run["server"]["devices"] == [min(os.sched_getaffinity(0))]
    assert {"system", "processor", "python", "gpu_driver"} == set(run["host"])
    assert run["started_at"].endswith("+00:00")


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


def test_the_log_of_the_server_is_kept(whole):
    assert whole.server_log.exists()


# Cells that do not fit: a result


@pytest.mark.parametrize(
    ("memory_gib", "reason"),
    [
        (WEIGHT_BYTES / 2**30, "the weights take"),
        (2 * (WEIGHT_BYTES + 512 * 71 + 10) / 2**30, "the KV cache holds 71 tokens"),
    ],
)
def test_a_cell_that_memory_rules_out_starts_no_server(tmp_path, memory_gib, reason):
    settings = replace(SETTINGS, python="/no/such/interpreter")
    outputs = measure(tmp_path, settings, memory_gib=memory_gib)
    run, tuning = read(outputs.run), read(outputs.tuning)
    for result in (run, tuning):
        assert result["is_feasible"] is False
        assert result["reason"].startswith("does not fit") and reason in result["reason"]
        assert result["batch_weight_tokens"] is None
    assert (run["levels"], run["server"], tuning["probes"]) == ([], None, [])
    for name, schema in TABLES.items():
        table = pq.read_table(getattr(outputs, name))
        assert table.num_rows == 0 and table.schema.remove_metadata().equals(schema)
    assert not outputs.server_log.exists()


def test_a_cell_that_no_weight_fits_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LIMIT_TOKENS", "10")
    outputs = measure(tmp_path, replace(SETTINGS, max_server_starts=2))
    assert weights(outputs) == [
        (MOST_TOKENS, "out_of_memory"),
        (LONGEST_REQUEST, "out_of_memory"),
    ]
    run = read(outputs.run)
    assert run["is_feasible"] is False
    assert run["reason"] == "does not fit: no batch weight passed in 2 server starts"
    assert pq.read_metadata(outputs.requests).num_rows == 0
    assert "CUDA out of memory" in read(outputs.tuning)["probes"][0]["detail"]


# Out of memory: a lower weight


@pytest.mark.parametrize("where", ["start", "2"])
def test_a_weight_that_runs_out_of_memory_is_lowered(tmp_path, monkeypatch, where):
    monkeypatch.setenv("FAKE_LIMIT_TOKENS", "3000")
    monkeypatch.setenv("FAKE_FAIL_AT", where)
    outputs = measure(tmp_path, replace(SETTINGS, max_server_starts=3))
    # After the first failure the middle of 72 and 4000 passes; the middle of what is left
    # does not, or just so: of 2036 and 4000 it is 3018, which takes 3024 as blocks.
    assert weights(outputs)[:2] == [(MOST_TOKENS, "out_of_memory"), (2036, "ok")]
    tuned = weights(outputs)[-1]
    assert tuned == (2036, "ok")
    assert len(weights(outputs)) <= 3
    run = read(outputs.run)
    assert run["batch_weight_tokens"] == run["server"]["batch_weight_tokens"] == 2036
    assert (pd.read_parquet(outputs.requests)["status"] == "ok").all()


def test_a_weight_that_passes_the_probe_and_fails_under_load_is_lowered(tmp_path, monkeypatch):
    # The corner cases are up to 8 requests at once; 10 users are more.
    monkeypatch.setenv("FAKE_LIMIT_TOKENS", "3000")
    monkeypatch.setenv("FAKE_FAIL_AT", "9")
    outputs = measure(tmp_path, replace(SETTINGS, max_server_starts=2), levels=(1, 10))
    assert weights(outputs) == [(MOST_TOKENS, "out_of_memory"), (LONGEST_REQUEST, "ok")]
    run = read(outputs.run)
    assert run["is_feasible"] is True
    assert run["server"]["batch_weight_tokens"] == LONGEST_REQUEST
    # Of the server that failed nothing is left in the results.
    assert [level["level"] for level in run["levels"]] == [1, 10]
    frame = pd.read_parquet(outputs.requests)
    assert (frame["status"] == "ok").all()
    assert frame["sent_s"].min() >= run["levels"][0]["started_s"]


# Any other failure: an error, and no results


@pytest.mark.parametrize("where", ["start", "1", "9"])
def test_a_crash_is_an_error_and_leaves_no_results(tmp_path, monkeypatch, where):
    monkeypatch.setenv("FAKE_CRASH", "RuntimeError: unknown kernel")
    monkeypatch.setenv("FAKE_FAIL_AT", where)
    with pytest.raises(ServerError, match="unknown kernel") as caught:
        measure(tmp_path, levels=(1, 10))
    assert not caught.value.is_out_of_memory
    assert written(tmp_path) == []
    assert "unknown kernel" in (tmp_path / "server.log").read_text()


def test_a_server_that_the_kernel_kills_under_load_ran_out_of_memory(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_LIMIT_TOKENS", "3000")
    monkeypatch.setenv("FAKE_FAIL_AT", "2")
    monkeypatch.setenv("FAKE_KILLED", "1")
    outputs = measure(tmp_path, replace(SETTINGS, max_server_starts=2))
    assert weights(outputs) == [(MOST_TOKENS, "out_of_memory"), (LONGEST_REQUEST, "ok")]


def test_requests_beyond_the_context_are_refused_before_all_else(tmp_path):
    cell, outputs = prepare_cell(tmp_path)
    cell = replace(cell, max_input_tokens=2045)
    with pytest.raises(InputError, match=r"2053 tokens exceed 2048 .*max_input_tokens"):
        measure_cell(cell, SETTINGS, outputs, Progress("test", 1))


def test_devices_that_the_job_lacks(tmp_path):
    cell, outputs = prepare_cell(tmp_path)
    cell = replace(cell, devices=Devices("cpu", 4096, MEMORY_GIB))
    with pytest.raises(InputError, match="4096 devices"):
        measure_cell(cell, SETTINGS, outputs, Progress("test", 1))


def test_a_disk_without_room_is_told_before_the_server_starts(tmp_path, monkeypatch):
    usage = type("usage", (), {"free": 2**20})
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage)
    with pytest.raises(InputError, match="1 MiB of disk are free"):
        measure(tmp_path)
    assert written(tmp_path) == []


MEASURE_UNDER_A_LIMIT = """
import resource, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_cell import measure
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), resource.RLIM_INFINITY))
try:
    measure(Path(sys.argv[2]))
except OSError as error:
    print("failed:", error)
"""


def test_a_disk_that_fills_up_leaves_nothing_that_passes_for_whole(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "run.json").write_text('{"of an earlier run": true}')
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]
    done = subprocess.run(
        # Room for the small inputs, not for the requests' table.
        [sys.executable, "-c", MEASURE_UNDER_A_LIMIT, folders[1], str(tmp_path), "3500"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(folders)},
        capture_output=True,
        text=True,
    )
    assert "failed:" in done.stdout, done.stderr
    # What is there is whole, and the file that declares the cell whole is not there.
    assert "run.json" not in written(tmp_path)
    for path in (tmp_path / "out").iterdir():
        assert not path.name.startswith(".")
        assert path.suffix != ".parquet" or pq.read_table(path).num_rows >= 0
