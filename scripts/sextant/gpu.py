"""Facts of devices, and GPU profiles: n devices of one type that serve one replica."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

GIB = 2**30


@dataclass(frozen=True)
class GPU:
    """One device type, as `resources/gpus/<gpu_id>.yaml` describes it."""

    gpu_id: str
    kind: str
    """`gpu`, or `cpu` for a share of a processor that stands in for a device."""
    architecture: str
    memory_gib: float
    memory_bandwidth_gb_s: float
    dense_16bit_tflops: float
    """Peak rate of dense 16-bit products, without structured sparsity: bfloat16, or float16
    where the device has no bfloat16."""
    interconnect_gb_s: float
    """Bandwidth of one device to its peers together, in one direction: PCIe or NVLink."""
    source: str


@dataclass(frozen=True)
class Devices:
    """What a server runs on: the part of a GPU profile that a measurement depends on."""

    kind: str
    n_gpus: int
    memory_gib: float
    """Memory of one device."""

    @property
    def memory_bytes(self) -> float:
        """Memory of all devices together."""
        return self.n_gpus * self.memory_gib * GIB


@dataclass(frozen=True)
class GPUProfile:
    """`n_gpus` devices used by one replica, with a price."""

    gpu_profile_id: str
    gpu: GPU
    n_gpus: int
    usd_per_hour: float
    gpu_model: str | None = None
    """The device type as a cluster's scheduler names it; no measurement depends on it."""

    @property
    def devices(self) -> Devices:
        """What a server on this profile runs on."""
        return Devices(self.gpu.kind, self.n_gpus, self.gpu.memory_gib)


def gpu_path(folder: str | Path, gpu_id: str) -> Path:
    """Return where the facts of a device type stand."""
    return Path(folder) / f"{gpu_id}.yaml"


def profile_from_row(row: dict[str, Any], gpu: GPU) -> GPUProfile:
    """Build a profile from its row in `gpu_profiles.tsv`."""
    names = ("n_gpus", "usd_per_hour", "gpu_model")
    return GPUProfile(row["gpu_profile_id"], gpu, **{n: row[n] for n in names if n in row})
