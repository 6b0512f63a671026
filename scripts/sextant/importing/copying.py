"""Takes a cell over: whole or not at all."""

import shutil
from datetime import UTC, datetime
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import atomic_path, sha256_file, write_json
from sextant.benchmark.definition import definition_sha256
from sextant.cells.integrity import CELL_FILES, damaged_files, sealed
from sextant.importing.decisions import Here
from sextant.importing.found import FoundCell
from sextant.processes.lock import cell_lock


def copy_cell(cell: FoundCell, here: Here, origin: str, conflicts: list[str]) -> None:
    """Copy a cell's files to where its own would be measured.

    `run.json` declares a cell whole, so it goes first if there is one and comes last.

    Args:
        cell: whole, asked for, of the definition here.
        here: where to.
        origin: what was imported, as the user named it.
        conflicts: in what the import differs from what was here, if that was allowed.

    Raises:
        InputError: a file is not what was read before.
    """
    target = here.cells / cell.key.folder
    target.mkdir(parents=True, exist_ok=True)
    with cell_lock(target) as has_waited:
        if has_waited and (target / "run.json").exists():
            fix = "import again to compare them"
            raise InputError("a job has measured this cell meanwhile", file=target, fix=fix)
        (target / "run.json").unlink(missing_ok=True)
        for name in CELL_FILES:
            with atomic_path(target / name) as temporary:
                shutil.copyfile(cell.folder / name, temporary)
        write_json(target / "run.json", sealed(_run(cell, here, origin, conflicts)))
    if damage := damaged_files(target):
        (target / "run.json").unlink()
        fix = "look after the disk, and import again"
        problem = "; ".join(f"{name} {why}" for name, why in damage.items())
        raise InputError(problem, file=target, fix=fix)


def _run(cell: FoundCell, here: Here, origin: str, conflicts: list[str]) -> dict[str, Any]:
    """Return `run.json` as if the cell had been measured here, and where it came from."""
    definition = here.definition(cell.key)
    return cell.run | {
        "source": here.config["source"],
        "definition": definition,
        "definition_sha256": definition_sha256(definition, *here.inputs_sha256(cell.key)),
        "imported": {
            "from": origin,
            "place": cell.place,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "source": cell.run.get("source"),
            "definition_sha256": cell.run["definition_sha256"],
            "run_sha256": sha256_file(cell.folder / "run.json"),
            "mixed": conflicts,
        },
    }
