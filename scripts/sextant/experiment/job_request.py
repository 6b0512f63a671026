"""What the job of a cell asks of a scheduler: devices, cores, host memory, minutes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sextant.experiment.experiment import Experiment
from sextant.experiment.servers import SIMULATED
from sextant.experiment.sheets import CellKey

# What LLM-Pilot gave each server (Lazuka et al., SC 2024, section III-C1). It found that neither
# moves latencies; beside GPUs all cells get the same.
_CORES_PER_GPU = 2
_MEMORY_BESIDE_GPUS_MB = 250_000

# LLM-Pilot ran the load client elsewhere; here it shares the job.
_CLIENT_CORES = 1
_CLIENT_MEMORY_MB = 8000

# Of a cell that is simulated: most take seconds.
_REHEARSAL_MINUTES = 30

# For the slow last requests of the levels, and for Python.
_EXTRA_MINUTES = 5


@dataclass(frozen=True)
class JobRequest:
    """What the job of a cell asks of a scheduler."""

    gpus: int  # 0: the cell runs on cores
    gpu_model: str | None  # the scheduler's name of the device type; None: any
    cores: int
    memory_mb: int
    minutes: int


def job_request(
    experiment: Experiment, key: CellKey, engine: Mapping[str, Any], attempt: int = 1
) -> JobRequest:
    """Return what the job of a cell asks for; `engine` is that section of the configuration.

    A second attempt asks for twice the memory and time: the first may have run out of either.
    """
    if experiment.endpoint(key) is not None:
        # The server runs elsewhere: the job is the load client alone.
        return JobRequest(
            gpus=0,
            gpu_model=None,
            cores=_CLIENT_CORES,
            memory_mb=attempt * _CLIENT_MEMORY_MB,
            minutes=attempt * _minutes(experiment, key, engine, n_server_starts=0),
        )

    if engine.get("name") == SIMULATED:
        return JobRequest(
            gpus=0,
            gpu_model=None,
            cores=1,
            memory_mb=attempt * _CLIENT_MEMORY_MB,
            minutes=attempt * _REHEARSAL_MINUTES,
        )

    gpu_profile = experiment.profiles[key.gpu_profile_id]
    variant = experiment.variants[key.variant_id]

    # A scheduler that counts cores as devices has a name for them.
    is_on_cores = gpu_profile.devices.kind == "cpu"
    uses_devices = not is_on_cores or gpu_profile.gpu_model is not None
    cores_per_server = max(_CORES_PER_GPU * gpu_profile.n_gpus, variant.cpu_cores or 0)

    # Host memory: each server's limit, or its weights while they load.
    weights_gib = experiment.llm_facts[key.llm_id].weight_bytes / 2**30
    server_gib = variant.memory_limit_gib or weights_gib
    memory_mb = _CLIENT_MEMORY_MB + int(1024 * server_gib * variant.replicas)
    if not is_on_cores:
        memory_mb = max(_MEMORY_BESIDE_GPUS_MB, memory_mb)

    n_server_starts = engine["max_server_starts"]
    return JobRequest(
        gpus=gpu_profile.n_gpus * variant.n_device_sets if uses_devices else 0,
        gpu_model=gpu_profile.gpu_model,
        cores=cores_per_server * variant.n_device_sets + _CLIENT_CORES,
        memory_mb=attempt * memory_mb,
        minutes=attempt * _minutes(experiment, key, engine, n_server_starts),
    )


def _minutes(
    experiment: Experiment, key: CellKey, engine: Mapping[str, Any], n_server_starts: int
) -> int:
    """Return the minutes of a cell: its server starts and levels, each at its limit of time."""
    starts_s = n_server_starts * engine["start_timeout_s"]
    levels_s = experiment.scenario(key).longest_s(engine["request_timeout_s"])
    return int(starts_s + levels_s) // 60 + _EXTRA_MINUTES
