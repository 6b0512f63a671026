"""`sextant serve-and-load` on the fake engine."""

import json
from pathlib import Path

import pandas as pd
import pytest
import yaml
from test_cell import CONFIG

from command import sextant
from sextant.engine.protocol import ServerError
from support import FAKE_PYTHON, ROOT


def serve_and_load(folder: Path, on: dict | None = None, **engine) -> dict:
    """Measure 1 and 10 users with these engine settings; return `tuning.json`."""
    config = yaml.safe_load((ROOT / "config" / "config.yaml").read_text())
    config["engine"] |= {"python": str(FAKE_PYTHON), "max_num_seqs": 8, **engine}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    options = {
        "llm-config": folder / "llm.json",
        "workload": folder / "workload",
        "out": folder / "out",
        "max-input-tokens": 64,
        "max-output-tokens": 8,
        **(on or {"memory-gib": 0.01, "kind": "cpu"}),
        "users": "1,10",
        "duration": 0.3,
        "warmup": 0.1,
        "config": folder / "config.yaml",
    }
    arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
    sextant("serve-and-load", *arguments)
    return json.loads((folder / "out" / "tuning.json").read_text())


@pytest.fixture
def inputs(tmp_path):
    """A folder with an LLM and a workload."""
    (tmp_path / "llm.json").write_text(json.dumps(CONFIG))
    workload = pd.DataFrame({"input_tokens": [20, 60], "output_tokens": [4, 8], "count": [1, 1]})
    (tmp_path / "workload").mkdir()
    workload.to_parquet(tmp_path / "workload" / "requests.parquet")
    return tmp_path


def test_what_was_measured_on_a_gpu_profile_can_be_recommended(inputs):
    serve_and_load(inputs, {"gpu-profile": "1xcpu-core", "usd-per-hour": 0.5})
    limits = ("--users", "20", "--nttft-ms", "10000", "--itl-ms", "10000")
    asked = ("recommend", "--database", str(inputs / "out"), "--llm", "llm", *limits)
    answer = json.loads(sextant(*asked, "--format", "json"))
    assert (answer["gpu_profile_id"], answer["replicas"]) == ("1xcpu-core", 2)
    assert answer["usd_per_hour"] == 1.0


def test_what_another_engine_setting_has_kept_is_not_taken_over(inputs, monkeypatch):
    with monkeypatch.context() as crash:
        crash.setenv("FAKE_CRASH", "RuntimeError: unknown kernel")
        crash.setenv("FAKE_FAIL_AT", "9")
        with pytest.raises(ServerError, match="unknown kernel"):
            serve_and_load(inputs, dtype="bfloat16")
    # In 4 bytes instead of 2 the weights leave less, and a token takes twice as much.
    tuning = serve_and_load(inputs, dtype="float32")
    (probe,) = tuning["probes"]
    assert probe["outcome"] == "ok"
    assert probe["batch_weight_tokens"] == tuning["memory"]["max_batch_weight_tokens"]
