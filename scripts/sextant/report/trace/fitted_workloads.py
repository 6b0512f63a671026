"""The workloads that a report judges: requests, arrivals, and how they were fitted."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.ids import id_of
from sextant.workload.arrivals import ArrivalModel, fit_facts, load_arrivals
from sextant.workload.published import load_request_model
from sextant.workload.request_model import RequestModel

DEFAULT = "default"
"""Name of the model that is judged where no workload is given."""
FILES = ("requests.parquet", "arrivals.json")


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
    """Read fitted workloads, named by the last part of their folder's path.

    Raises InputError if there is no such folder, a file in it is absent or malformed, or two are
    of one name.
    """
    found: dict[str, Fitted] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            problem = "is not a folder" if folder.exists() else "there is no such folder"
            fix = "give the folder of a fitted workload (see `sextant fit`)"
            raise InputError(problem, file=folder, fix=fix)
        name = id_of(folder.resolve().name)
        if name in found:
            fix = "give folders with names of their own"
            raise InputError(f"there are two workloads '{name}'", file=folder, fix=fix)
        model, arrivals = load_request_model(folder), load_arrivals(folder)
        found[name] = Fitted(name, folder, model, arrivals, fit_facts(folder))
    return list(found.values())
