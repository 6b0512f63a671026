"""What `characterization.yaml` says of a folder's points: whose they are, and what they mean."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sextant.base.sheets import SCHEMAS, read_yaml, validate

FILE = "characterization.yaml"


@dataclass(frozen=True, kw_only=True)
class Description:
    """The keys of `workflow/schemas/characterization.schema.yaml`, which explains them."""

    source: str
    licence: str
    attribution: str
    statistic: str
    load: str
    lengths: str
    defaults: Mapping[str, Any] = field(default_factory=dict)
    engine_settings: Mapping[str, Any] = field(default_factory=dict)
    dtype: str | None = None
    memory_utilization: float | None = None
    longest_request_tokens: int | None = None
    workload_id: str = "as-published"
    scenario_id: str = "as-published"
    llm_features: str | None = None
    gpu_features: str | None = None
    note: str | None = None


def load_description(folder: Path) -> Description:
    """Read the description of a folder's points.

    Raises:
        InputError: there is none, or a key is unknown, missing, there twice or has a wrong value.
    """
    path = folder / FILE
    facts = read_yaml(path)
    validate(facts, SCHEMAS / "characterization.schema.yaml", path)
    return Description(**facts)
