"""A store of cells alone, e.g. of load runs: what it needs of LLMs and GPUs, the cells say."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sextant.base.errors import InputError
from sextant.experiment.scenarios import KINDS
from sextant.experiment.servers import DEFAULT_VARIANT
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.points.cells.files import MeasuredCell, from_json, read_cell
from sextant.points.cells.integrity import DAMAGED, damaged_files
from sextant.points.store.build import build_store, gpu_profile_rows, gpu_rows, llm_rows
from sextant.points.store.points import aggregate_points

STORE = "sextant.duckdb"
_TABLES = ("point", "feasibility", "telemetry")
_LOAD_AGAIN = "load again into this folder, or move it elsewhere"
_T = TypeVar("_T")


def store_of_cells(folder: Path) -> Path:
    """Build the store of all cells below a folder, in this folder; return its path.

    Raises:
        InputError: there is no cell, one is damaged, two are alike, or one does not say what was
            measured on what.
    """
    folders = [path.parent for path in sorted(folder.rglob("run.json"))]
    cells = [_whole_cell(each) for each in folders if not each.name.startswith(DAMAGED)]
    if not cells:
        fix = "give a store, or a folder of what `sextant load` has written"
        raise InputError("there is no measured cell", file=folder, fix=fix)
    _check_distinct(cells)
    store = folder / STORE
    with tempfile.TemporaryDirectory() as scratch:
        files = {name: [Path(scratch) / f"{name}.parquet"] for name in _TABLES}
        aggregate_points([cell.folder for cell in cells], *(files[name][0] for name in _TABLES))
        build_store(store, _rows(cells), files)
    return store


def _whole_cell(folder: Path) -> MeasuredCell:
    """Read a cell. A damaged one stays where it is: no command here measures it again."""
    if damage := damaged_files(folder):
        found = ", ".join(f"{name} {problem}" for name, problem in damage.items())
        raise InputError(f"the cell is damaged: {found}", file=folder, fix=_LOAD_AGAIN)
    return read_cell(folder)


def _check_distinct(cells: Sequence[MeasuredCell]) -> None:
    folders: dict[tuple[str, ...], Path] = {}
    for cell in cells:
        other = folders.setdefault(cell.key, cell.folder)
        if other != cell.folder:
            fix = "move one of them elsewhere"
            raise InputError(f"the same was measured in {other}", file=cell.folder, fix=fix)


def _rows(cells: Sequence[MeasuredCell]) -> dict[str, Sequence[Mapping[str, Any]]]:
    llms: dict[str, LLM] = {}
    profiles: dict[str, GPUProfile] = {}
    workloads: dict[str, dict[str, Any]] = {}
    for cell in cells:
        run = cell.run
        llms[run.llm_id] = _fact(cell, "llm", LLM, "--llm-id or --hf-config")
        options = "--gpu-profile and --usd-per-hour"
        profiles[run.gpu_profile_id] = _fact(cell, "gpu_profile", GPUProfile, options)
        caps = {name: _fact(cell, name, int) for name in ("max_input_tokens", "max_output_tokens")}
        workloads[run.workload_id] = {"workload_id": run.workload_id, **caps}
    return {
        "llm": llm_rows(llms),
        "gpu": gpu_rows(profiles),
        "gpu_profile": gpu_profile_rows(profiles),
        "workload": list(workloads.values()),
        "decision": _decisions(cells),
    }


def _fact(cell: MeasuredCell, name: str, kind: type[_T], options: str = "") -> _T:
    """Return what a cell's definition says, as a `kind`."""
    value, place = (cell.run.definition or {}).get(name), f"definition.{name}"
    path = cell.folder / "run.json"
    if value is None:
        fix = f"load again with {options}" if options else "measure it again with `sextant load`"
        raise InputError("it is not known", file=path, field=place, fix=fix)
    if isinstance(value, dict):  # a price that is not known is null, for a dataclass left out
        value = {key: fact for key, fact in value.items() if fact is not None}
    try:
        return from_json(kind, value)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, (place, *first["loc"])))
        raise InputError(first["msg"], file=path, field=field, fix=_LOAD_AGAIN) from None


def _decisions(cells: Sequence[MeasuredCell]) -> list[Mapping[str, Any]]:
    """Return the workload and scenario that answers rest on, of a source that has but one."""
    found = {
        (run.source, run.workload_id, run.scenario_id)
        for run in (cell.run for cell in cells)
        if KINDS[run.scenario_kind].has_users and run.variant_id == DEFAULT_VARIANT
    }
    if len(found) != 1:
        return []
    ((source, workload_id, scenario_id),) = found
    return [{"source": source, "workload_id": workload_id, "scenario_id": scenario_id}]
