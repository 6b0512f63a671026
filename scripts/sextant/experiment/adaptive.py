"""Adaptive rows of `benchmarks.tsv`: which of their cells were chosen to be measured.

The sheet of chosen cells lies with the results. `sextant measure` adds rows to it, and a run
measures what it names: so a run that was killed goes on where it was.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import atomic_path
from sextant.base.ids import file_name
from sextant.base.sheets import SCHEMAS, Row, load_sheet
from sextant.experiment.cell_key import CellKey

_COLUMNS = ("round", "llm_id", "gpu_profile_id", "levels")
ADAPTIVE = "adaptive"
"""What `choose` is in rows whose cells are chosen."""
Chosen = dict[CellKey, tuple[int, ...]]
"""The users to measure, by cell."""


def check_adaptive(rows: Sequence[Row], decision: Mapping[str, str], file: str) -> None:
    """Check the adaptive ones of these rows: cells are chosen for the answers of `decision`.

    Raises:
        InputError: a row has another workload or scenario, a study or a variant.
    """
    for row in (row for row in rows if row.get("choose") == ADAPTIVE):
        for name in ("workload_id", "scenario_id"):
            if row[name] != decision[name]:
                problem = f"an adaptive row of another {name} than the configuration's `decision`"
                fix = f"write {decision[name]!r}, or leave `choose` empty to measure all cells"
                raise InputError(problem, file=file, row=row.line, field=name, fix=fix)
        for name in ("study", "variant_ids"):
            if name in row:
                fix = "leave it out, or leave `choose` empty to measure all cells"
                problem = "answers rest on the default variant, and studies on whole sheets"
                raise InputError(problem, file=file, row=row.line, field=name, fix=fix)


def chosen_path(config: Mapping[str, Any]) -> Path:
    """Return where the sheet of chosen cells lies."""
    return Path(config["pathvars"]["results"]) / "adaptive" / f"{file_name(config['source'])}.tsv"


def chosen_cells(config: Mapping[str, Any], candidates: Sequence[CellKey]) -> Chosen:
    """Return the cells that were chosen of these candidates; others of the sheet do not count.

    Raises:
        InputError: the sheet is damaged.
    """
    path = chosen_path(config)
    if not candidates or not path.exists():
        return {}
    levels = {
        (row["llm_id"], row["gpu_profile_id"]): _levels(row, path)
        for row in load_sheet(path, SCHEMAS / "chosen_cells.schema.yaml")
    }
    pairs = {(key.llm_id, key.gpu_profile_id): key for key in candidates}
    return {pairs[pair]: users for pair, users in levels.items() if pair in pairs}


def _levels(row: Row, path: Path) -> tuple[int, ...]:
    users = tuple(map(int, row["levels"].split(",")))
    if list(users) != sorted(set(users)):
        fix = "write each number of users once, in ascending order"
        problem = f"{row['levels']} do not ascend"
        raise InputError(problem, file=path, row=row.line, field="levels", fix=fix)
    return users


def add_chosen(path: Path, number: int, chosen: Chosen) -> None:
    """Add the cells of a round to the sheet of chosen cells."""
    before = path.read_text(encoding="utf-8") if path.exists() else "\t".join(_COLUMNS) + "\n"
    rows = [
        f"{number}\t{key.llm_id}\t{key.gpu_profile_id}\t{','.join(map(str, users))}\n"
        for key, users in chosen.items()
    ]
    with atomic_path(path) as partial:
        partial.write_text(before + "".join(rows), encoding="utf-8")


def last_round(path: Path) -> int:
    """Return the number of the last round in the sheet of chosen cells; 0 before the first."""
    rows = load_sheet(path, SCHEMAS / "chosen_cells.schema.yaml") if path.exists() else []
    return max((row["round"] for row in rows), default=0)
