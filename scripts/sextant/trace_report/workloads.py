"""The workloads that a report judges: requests, arrivals, and how they were fitted."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sextant.errors import InputError
from sextant.workload.arrivals import ArrivalModel, load_arrivals
from sextant.workload.published import load_request_model
from sextant.workload.request_model import RequestModel

FILES = ("requests.parquet", "arrivals.json")
_TEXTS = ("reason",)


@dataclass(frozen=True)
class Fitted:
    """A workload as its folder has it."""

    name: str
    folder: Path
    model: RequestModel
    arrivals: ArrivalModel
    facts: Mapping[str, Any]
    """How it was fitted, as far as it says: its caps, and what the trace came from."""

    @property
    def files(self) -> dict[str, Path]:
        """Return the files that were read, by a name for each."""
        return {f"{self.name}/{name}": self.folder / name for name in FILES}


def open_workloads(folders: Sequence[str | Path]) -> list[Fitted]:
    """Read fitted workloads; the last part of a folder's path is a workload's name.

    Raises:
        InputError: no folder, a file in it is absent or malformed, or two are of one name.
    """
    found: dict[str, Fitted] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            problem = "is no folder" if folder.exists() else "there is no such folder"
            fix = "give the folder of a fitted workload (see `sextant fit`)"
            raise InputError(problem, file=folder, fix=fix)
        name = folder.resolve().name
        if name in found:
            fix = "give folders with names of their own"
            raise InputError(f"there are two workloads '{name}'", file=folder, fix=fix)
        model, facts = load_request_model(folder), _fit_facts(folder / "arrivals.json")
        found[name] = Fitted(name, folder, model, load_arrivals(folder), facts)
    return list(found.values())


def _fit_facts(path: Path) -> dict[str, Any]:
    """Check what `arrivals.json` holds, and return what it says of the fit."""
    if not path.is_file():
        raise InputError("there is no arrival model", file=path, fix="fit the workload first")
    fix = "fit the workload again"
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"is no JSON ({error})", file=path, fix=fix) from None
    if not isinstance(stored, dict):
        raise InputError("is no JSON object", file=path, fix=fix)
    facts = stored.get("fit", {})
    if not isinstance(facts, dict):
        raise InputError("is no JSON object", file=path, field="fit", fix=fix)
    numbers = {name: stored.get(name) for name in ArrivalModel.__dataclass_fields__}
    numbers |= {name: cap for name, cap in facts.items() if name.startswith("max_")}
    for name, value in numbers.items():
        if name not in _TEXTS and not _is_number_or_null(value):
            raise InputError(f"{value!r} is no number", file=path, field=name, fix=fix)
    if numbers["alpha"] is not None:
        for name in ("alpha_lo", "alpha_hi", "beta_s", "cv", "ks"):
            if numbers[name] is None:
                raise InputError("the number is missing", file=path, field=name, fix=fix)
    return facts


def _is_number_or_null(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
