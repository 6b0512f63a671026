"""The cells that the sheets ask for: rows of `benchmarks.tsv`, or an archive's."""

import itertools
from collections.abc import Collection, Mapping

from sextant.base.errors import InputError
from sextant.base.sheets import SCHEMAS, Row, load_sheet
from sextant.experiment.cell_key import CellKey
from sextant.experiment.variants import DEFAULT_VARIANT

# SLURM's executor makes one folder of a job's wildcards; file systems allow it 255 bytes.
_MAX_CELL_NAME_CHARACTERS = 230

Ids = Mapping[str, Collection[str]]
"""The ids that each sheet defines, by the name of the sheet."""


def cells_of_studies(rows: list[Row], ids: Ids, file: str) -> dict[str | None, tuple[CellKey, ...]]:
    """Return the cells of each study; None is the study of rows that name none.

    Those of adaptive rows are under what they have as `choose`.

    Raises InputError if an id is unknown, or a cell's name is too long for a file.
    """
    cells: dict[str | None, dict[CellKey, None]] = {}
    for row in rows:
        check_known(row["workload_id"], ids["workloads"], file, row, "workload_id")
        check_known(row["scenario_id"], ids["scenarios"], file, row, "scenario_id")
        chosen = itertools.product(
            _selected(row, "llm_ids", ids["llms"], file),
            _selected(row, "gpu_profile_ids", ids["gpu_profiles"], file),
            [row["workload_id"]],
            [row["scenario_id"]],
            _selected(row, "variant_ids", ids["variants"], file),
        )
        cells.setdefault(row.get("choose", row.get("study")), {}).update(
            dict.fromkeys(_short_enough(CellKey(*place), file, row) for place in chosen)
        )
    return {study: tuple(found) for study, found in cells.items()}


def archived_cells(path: str, ids: Ids, decision: Mapping[str, str]) -> list[CellKey]:
    """Return the cells of an archive; InputError if an id is unknown, or a cell is there twice."""
    cells: dict[CellKey, None] = {}
    for row in load_sheet(path, SCHEMAS / "cells.schema.yaml"):
        check_known(row["llm_id"], ids["llms"], path, row, "llm_id")
        check_known(row["gpu_profile_id"], ids["gpu_profiles"], path, row, "gpu_profile_id")
        key = CellKey(row["llm_id"], row["gpu_profile_id"], **decision)
        if key in cells:
            problem = f"{key.llm_id} on {key.gpu_profile_id} has two rows"
            raise InputError(problem, file=path, row=row.line, fix="remove one of the rows")
        cells[key] = None
    return list(cells)


def check_known(value: str, known: Collection[str], file: str, row: Row, field: str) -> None:
    """Raise InputError if an id is not defined."""
    if value not in known:
        fix = f"use one of: {', '.join(known)}"
        raise InputError(f"unknown id {value!r}", file=file, row=row.line, field=field, fix=fix)


def _selected(row: Row, field: str, known: Collection[str], file: str) -> list[str]:
    text = row.get(field, DEFAULT_VARIANT)  # only variants may be left out
    if text == "*":
        return list(known)
    chosen = [part.strip() for part in text.split(",")]
    for value in chosen:
        check_known(value, known, file, row, field)
    return chosen


def _short_enough(cell: CellKey, file: str, row: Row) -> CellKey:
    if len(cell.folder) > _MAX_CELL_NAME_CHARACTERS:
        problem = f"the names of {cell.folder} have {len(cell.folder)} characters"
        fix = f"shorten one of its ids: {_MAX_CELL_NAME_CHARACTERS} together fit into a file name"
        raise InputError(problem, file=file, row=row.line, fix=fix)
    return cell
