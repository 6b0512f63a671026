"""How the servers of a cell are set up: rows of `variants.tsv`."""

from dataclasses import dataclass, fields
from typing import Any

DEFAULT_VARIANT = "default"


@dataclass(frozen=True)
class Variant:
    """How servers are set up; fields as in `workflow/schemas/variants.schema.yaml`."""

    variant_id: str = DEFAULT_VARIANT
    replicas: int = 1
    placement: str = "own"
    batch_weight_tokens: int | None = None
    cpu_cores: int | None = None
    memory_limit_gib: float | None = None

    @property
    def memory_share(self) -> float:
        """Fraction of the usable device memory that each replica gets."""
        return 1 / self.replicas if self.placement == "shared" else 1.0

    @property
    def n_device_sets(self) -> int:
        """How often the devices of the GPU profile are needed."""
        return 1 if self.placement == "shared" else self.replicas


def without_defaults(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults.

    A definition says no more, so that a field that is new makes no measurement stale.
    """
    return {
        field.name: getattr(value, field.name)
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }
