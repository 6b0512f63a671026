"""Servers of the fake engine, for tests of what runs them."""

from dataclasses import replace
from pathlib import Path

from sextant.engine.protocol import ServerSpec
from sextant.experiment.servers import EngineSettings
from sextant.facts.gpu import Devices
from support import FAKE_PYTHON, PATIENCE_S

SETTINGS = EngineSettings(
    python=str(FAKE_PYTHON),
    dtype="bfloat16",
    block_size_tokens=16,
    max_num_seqs=64,
    memory_utilization=0.9,
    start_timeout_s=PATIENCE_S,
    request_timeout_s=10.0,
    max_server_starts=4,
    extra_arguments=("--max-log-len", "10"),
)
CPU = ServerSpec(
    model=Path("model"),
    load_format="dummy",
    devices=Devices("cpu", 1, 4.0),
    batch_weight_tokens=1000,
    kv_bytes_per_token=512,
    max_request_tokens=100,
    device_indices=(0,),
    seed=3,
)
GPU = replace(CPU, devices=Devices("gpu", 2, 40.0), device_indices=(2, 5), load_format="auto")
