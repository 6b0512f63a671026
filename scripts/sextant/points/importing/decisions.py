"""What to do with each cell that was found: whole, asked for, the same, new, in conflict?"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError, printable
from sextant.base.files import sha256_file
from sextant.bench.definition import definition_sha256, inputs_sha256
from sextant.experiment.cells import CellKey
from sextant.experiment.definition import cell_definition
from sextant.experiment.experiment import Experiment
from sextant.points.cells.files import read_run
from sextant.points.cells.integrity import CELL_FILES, damaged_files
from sextant.points.cells.run import CellRun, HostFacts
from sextant.points.importing.found import DamagedCell, FoundCell, WholeCell


class Status(StrEnum):
    """What a cell that was found is to this project, which decides what becomes of it."""

    new = "new"
    duplicate = "duplicate"
    not_asked_for = "not asked for"
    damaged = "damaged"
    other_definition = "other definition"
    other_measurement = "other measurement"
    """Another measurement of a cell that is here already: a conflict."""


@dataclass(frozen=True)
class Judged:
    """A cell that was found, and what to do with it."""

    cell: FoundCell
    status: Status
    detail: str = ""


class Here:
    """The experiment here and its cells, to compare others with."""

    def __init__(self, experiment: Experiment, config: Mapping[str, Any]) -> None:
        self.experiment, self.config = experiment, config
        self.results = Path(config["pathvars"]["results"])
        self.cells = self.results / "benchmarks" / config["source"]

    def folder(self, cell: WholeCell) -> Path:
        """Return where a cell's own files would be."""
        return self.cells / cell.run.key.folder

    def definition(self, key: CellKey) -> dict[str, Any]:
        """Return a cell's definition as JSON has it."""
        return json.loads(json.dumps(cell_definition(self.experiment, key, self.config)))

    def inputs_sha256(self, key: CellKey, definition: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the SHA-256 of a cell's inputs; InputError: its workload is not fitted here."""
        workload = self.results / "workloads" / Path(key.folder).parts[2] / "requests.parquet"
        if not workload.is_file():
            fix = f"make it first: snakemake --cores 1 {workload}"
            raise InputError("cells cannot be compared without it", file=workload, fix=fix)
        config = Path(self.experiment.llms[key.llm_id]["config"])
        return inputs_sha256(definition, workload, config)

    @cached_property
    def runs(self) -> dict[CellKey, CellRun]:
        """The cells that are here whole and as they are asked for now."""
        found = {}
        for key in self.experiment.cells:
            folder = self.cells / key.folder
            if (folder / "run.json").is_file() and not damaged_files(folder):
                run = read_run(folder)
                if not self.differences(key, run):
                    found[key] = run
        return found

    def differences(self, key: CellKey, run: CellRun) -> list[str]:
        """Return in what the definition of a measurement differs from the one here."""
        if not run.definition or not run.definition_sha256:
            return ["definition: not recorded there"]
        definition = self.definition(key)
        found = _field_differences(run.definition, definition)
        inputs = self.inputs_sha256(key, definition)
        if found or definition_sha256(run.definition, *inputs) == run.definition_sha256:
            return found
        if run.workload_sha256 != inputs[0]:
            return ["workload: other content"]
        others = "the LLM's config" + " or the workload's arrivals" * (len(inputs) > 2)
        return [f"{others}: other content"]


# Names of this machine or this project: `definition_sha256` compares the contents.
_OF_MACHINE = ("source", "config_path", "prompts")
_ABSENT = object()


def _field_differences(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    there, here = _flat(theirs), _flat(ours)
    names = [name for name in {**there, **here} if name not in _OF_MACHINE]
    return [
        f"{name}: {_said(there, name)} there, {_said(here, name)} here"
        for name in names
        if there.get(name, _ABSENT) != here.get(name, _ABSENT)
    ]


def _said(values: Mapping[str, Any], name: str) -> str:
    return json.dumps(values[name]) if name in values else "none"


def _flat(definition: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Return the fields of a definition by dotted name, which may be a stranger's.

    The folder of the weights is a path of the machine; whether there is one is a fact.
    """
    flat: dict[str, Any] = {}
    for name, value in definition.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{above}{printable(name)}.")
        elif above + name == "model":
            flat["model"] = "random weights" if value is None else "weights"
        else:
            flat[above + printable(name)] = value
    return flat


def judge(cells: Sequence[FoundCell], here: Here) -> list[Judged]:
    """Say of each cell what to do with it; cells that were given twice count once."""
    judged, taken = [], {key: here.cells / key.folder for key in here.runs}
    for cell in cells:
        status, detail = _judge(cell, here, taken)
        judged.append(Judged(cell, status, detail))
        if status is Status.new and isinstance(cell, WholeCell):
            taken[cell.run.key] = cell.folder
    return judged


def _judge(cell: FoundCell, here: Here, taken: Mapping[CellKey, Path]) -> tuple[Status, str]:
    key = cell.run.key if isinstance(cell, WholeCell) else cell.key
    if key and key not in here.experiment.cells:
        return Status.not_asked_for, "no row of benchmarks.tsv asks for it"
    if isinstance(cell, DamagedCell):
        problems = "; ".join(f"{name} {why}" for name, why in cell.damage.items())
        return Status.damaged, printable(problems)
    if differences := here.differences(cell.run.key, cell.run):
        return Status.other_definition, "; ".join(differences)
    if cell.run.key not in taken:
        return Status.new, ""
    other = taken[cell.run.key]
    if _contents(other) == _contents(cell.folder):
        return Status.duplicate, ""
    there, ours = _moment(cell.run), _moment(read_run(other))
    return Status.other_measurement, f"started at {there} there, at {ours} in {other}"


def _moment(run: CellRun) -> str:
    return run.started_at.isoformat() if run.started_at else "an unknown time"


def _contents(folder: Path) -> list[str]:
    """Return what tells a measurement from another; `run.json` changes when it is taken over."""
    return [sha256_file(folder / name) for name in CELL_FILES]


def provenance_conflicts(new: Iterable[CellRun], here: Iterable[CellRun]) -> list[str]:
    """Return what cells were measured with that those here, or each other, were not.

    Versions have to agree throughout, a GPU profile's machines within the profile: otherwise
    a comparison of cells would compare these too. What was not recorded agrees with anything. Of a
    server that ran already only its own version has to agree.
    """
    incoming, known = _facts(new), _facts(here)
    conflicts = []
    for (scope, name), values in sorted(incoming.items()):
        ours = known.get((scope, name), set())
        if values - ours and len(values | ours) > 1:
            where = f" of {scope}" if scope else ""
            mine = f"{_listed(ours)} here" if ours else "none here"
            conflicts.append(f"{name}{where}: {_listed(values)} there, {mine}")
    return conflicts


def _listed(values: Iterable[str]) -> str:
    return ", ".join(sorted(values))


def _facts(runs: Iterable[CellRun]) -> dict[tuple[str, str], set[str]]:
    """Return the values of each fact by GPU profile or address, or by "" for those of all."""
    found: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        facts = {("", "sextant"): run.sextant_version}
        if run.server and run.server.url:  # the host is that of the load client alone
            facts[run.server.url, "engine"] = run.engine
        else:
            host, profile = run.host or HostFacts(), run.gpu_profile_id
            facts |= {
                (profile, "GPU driver"): host.gpu_driver,
                (profile, "CUDA version"): host.cuda_version,
                (profile, "GPUs"): _listed({str(gpu.name) for gpu in host.gpus or ()}) or None,
                (profile, "processor"): host.processor,
                ("", "engine"): run.engine,
            }
        for fact, value in facts.items():
            if value is not None:
                found.setdefault(fact, set()).add(printable(value))
    return found
