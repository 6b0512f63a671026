"""A characterization that ships with the project: written from a store, read without one."""

import csv
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.files import atomic_path
from sextant.base.sheets import SCHEMAS, load_sheet, validate
from sextant.base.yaml_files import read_yaml
from sextant.cells.metrics import LATENCIES, PERCENTILES
from sextant.characterizations.characterization import Characterization, load_characterization
from sextant.characterizations.features import Features
from sextant.experiment.variants import DEFAULT_VARIANT
from sextant.hardware.gpu import GPUS, load_gpu, profile_from_row
from sextant.importing.llm_pilot import VERDICTS
from sextant.llm import load_llm

ROOT = SCHEMAS.parents[1]
SHIPPED = ROOT / "resources" / "characterizations"
DEFAULT_NAME = "llm-pilot"

_NUMBERS = (
    "duration_s",
    "throughput_tok_s",
    "mean_input_tokens",
    "mean_output_tokens",
    *(f"{statistic}_{metric.name}" for metric in LATENCIES for statistic in PERCENTILES),
)
_TYPES = {
    "llm_id": "str",
    "gpu_profile_id": "str",
    "users": "int32",
    "n_ok": "Int64",
    "n_failed": "Int64",
    "is_published_median": "bool",
    **dict.fromkeys(_NUMBERS, "float64"),
}


def export_points(database: str | Path, source: str | None, out: Path) -> int:
    """Write the points of a store as the table that ships; return their number.

    Numbers are written in the fewest digits that give the same number back.
    """
    points = load_characterization(database, source).points
    rows = points[list(_TYPES)].sort_values(["llm_id", "gpu_profile_id", "users"])
    with atomic_path(out) as temporary:
        rows.to_csv(temporary, index=False, lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    return len(rows)


@cache
def shipped_facts(name: str = DEFAULT_NAME) -> dict[str, Any]:
    """Return what `characterization.yaml` says: source, precision, longest request, sheets."""
    path = SHIPPED / name / "characterization.yaml"
    facts = read_yaml(path)
    validate(facts, SCHEMAS / "characterization.schema.yaml", path)
    return facts


def shipped_sources() -> dict[str, str]:
    """Return the name of each characterization that ships, by its source."""
    folders = sorted(path.parent for path in SHIPPED.glob("*/characterization.yaml"))
    return {shipped_facts(folder.name)["source"]: folder.name for folder in folders}


def load_shipped(name: str = DEFAULT_NAME) -> Characterization:
    """Read a characterization that ships; like `load_characterization` of its store.

    Only scores of predictors are none.

    Raises:
        InputError: one of its files was altered so that it makes no sense.
    """
    facts = shipped_facts(name)
    setting = {key: facts[key] for key in ("source", "workload_id", "scenario_id")}
    points = pd.read_csv(SHIPPED / name / "points.csv", dtype=_TYPES)
    points = points.assign(
        **setting, variant_id=DEFAULT_VARIANT, level=points["users"].astype(float)
    )
    profiles = {
        row["gpu_profile_id"]: profile_from_row(row, load_gpu(GPUS, row["gpu_id"]))
        for row in _sheet(facts, "gpu_profiles", "gpu_profile_id")
    }
    llms = {
        row["llm_id"]: load_llm(ROOT / row["config"], facts["dtype"])
        for row in _sheet(facts, "llms", "llm_id")
    }
    rows = _sheet(facts, "llm_features", "llm_id"), _sheet(facts, "gpu_features", "gpu_id")
    cells = load_sheet(ROOT / facts["cells"], SCHEMAS / "cells.schema.yaml")
    tried = pd.DataFrame(cells, columns=["llm_id", "gpu_profile_id", "status"])
    return Characterization(
        **setting,
        points=points,
        llms=dict(sorted(llms.items())),
        profiles=dict(sorted(profiles.items())),
        predictors=[],
        features=Features.published(*rows, profiles),
        feasibility=tried.drop(columns="status").assign(
            **setting,
            is_feasible=tried["status"] == "measured",
            verdict=tried["status"].map(lambda status: VERDICTS[status].outcome.value),
            reason=tried["status"].map(lambda status: VERDICTS[status].reason),
            memory_utilization=float("nan"),
        ),
        longest_request_tokens=None,
    )


def _sheet(facts: dict[str, Any], name: str, key: str) -> list:
    return load_sheet(ROOT / facts[name], SCHEMAS / f"{name}.schema.yaml", key)
