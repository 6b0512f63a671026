"""What Kubernetes calls GPUs: the resource that a container asks for, and the label of a node.

`resources/kubernetes_gpus.csv` has both. The label is that of NVIDIA's GPU feature discovery.
"""

from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from sextant.base.resources import resource
from sextant.base.sheets import load_sheet
from sextant.facts.gpu import GPU, MIG_NAME

PRODUCT_LABEL = "nvidia.com/gpu.product"
"""Label of a node with GPUs of NVIDIA."""
_TABLE = resource("kubernetes_gpus.csv")
_NVIDIA = "nvidia.com/"
_AMD = "amd.com/"


@dataclass(frozen=True, kw_only=True)
class GPUNameRow:
    """resources/kubernetes_gpus.csv: each row is a type of GPU as Kubernetes has it."""

    gpu_id: str  #: the type
    resource: str  #: what a container asks for
    product_label: str | None = None  #: value of the node's label; left out where it is not known


class GPUNames(NamedTuple):
    """A type of GPU as Kubernetes has it."""

    resource: str | None
    """None: no device plugin is known, or it is a CPU."""
    product: str | None
    """Value of `PRODUCT_LABEL`; None: not known."""

    @property
    def maker(self) -> str | None:
        """`nvidia`, `amd`, or None."""
        name = self.resource or ""
        return "nvidia" if name.startswith(_NVIDIA) else "amd" if name.startswith(_AMD) else None


@cache
def _table() -> dict[str, GPUNames]:
    rows = load_sheet(_TABLE, GPUNameRow, delimiter=",")
    return {
        row["gpu_id"]: GPUNames(row["resource"], row.get("product_label") or None) for row in rows
    }


def gpu_names(gpu: GPU) -> GPUNames:
    """Return what Kubernetes calls a type of GPU; a slice is a resource of its own."""
    whole, _, profile = gpu.gpu_id.partition(MIG_NAME)
    names = _table().get(whole, GPUNames(None, None))
    if profile and names.resource is not None:
        return names._replace(resource=f"{_NVIDIA}mig-{profile}")
    return names
