"""An import from beginning to end: everything is checked before anything is written."""

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import atomic_path, read_json, sha256_file, write_json
from sextant.base.scratch import cell_lock
from sextant.bench.definition import definition_sha256
from sextant.experiment.experiment import Experiment
from sextant.points.cells.files import write_run
from sextant.points.cells.integrity import ALL_FILES, CELL_FILES, damaged_files, recorded_facts
from sextant.points.cells.run import CellRun, ImportedFrom
from sextant.points.importing.decisions import Here, Judged, Status, judge, provenance_conflicts
from sextant.points.importing.found import WholeCell, find_cells, opened


@dataclass(frozen=True)
class Report:
    """What an import came to."""

    judged: tuple[Judged, ...]
    conflicts: tuple[str, ...]
    """Versions and machines that differ from those of the cells here."""
    is_done: bool
    """False if it was a dry run, or if conflicts kept it from writing anything."""

    def cells(self, status: Status) -> list[Judged]:
        """Return the cells of a status."""
        return [judged for judged in self.judged if judged.status is status]

    @property
    def counts(self) -> dict[str, int]:
        """Number of cells by status."""
        found = Counter(judged.status for judged in self.judged)
        return {status.value: found[status] for status in Status}

    @property
    def new(self) -> list[WholeCell]:
        """The cells to take over."""
        return [it.cell for it in self.cells(Status.new) if isinstance(it.cell, WholeCell)]

    @property
    def all_conflicts(self) -> list[str]:
        """Everything that speaks against the import."""
        others = self.cells(Status.other_measurement)
        return [
            *self.conflicts,
            *(f"{it.cell.place}: another measurement, {it.detail}" for it in others),
        ]


def import_cells(
    place: Path,
    experiment: Experiment,
    config: Mapping[str, Any],
    *,
    is_dry_run: bool = False,
    allow_conflicts: bool = False,
    before_writing: Callable[[Sequence[Path]], None] = lambda paths: None,
    after_writing: Callable[[Sequence[Path]], None] = lambda paths: None,
) -> Report:
    """Take over the cells of other results that are asked for here and are not here yet.

    Args:
        place: a folder of results, any folder with cells below it, or a tar of one.
        experiment: all sheets, of `config`.
        config: the configuration here.
        is_dry_run: say what would be done, and write nothing.
        allow_conflicts: take cells over though versions or machines differ; `run.json` then
            says in what. Cells that are here already stay as they are all the same.
        before_writing: called with the files to be written, while nothing has been.
        after_writing: called with `run.json` of each cell that was taken over.

    Returns:
        What was found, and whether it was done: not with conflicts unless they are allowed.

    Raises:
        InputError: no cell is there, `place` cannot be read, or the configuration measures
            nothing, since it imports an archive.
    """
    if "archive" in config:
        fix = "leave it out: what an archive holds is not measured, so nothing can be added"
        raise InputError("the configuration imports an archive", field="archive", fix=fix)
    here = Here(experiment, config)
    with opened(place) as unpacked:
        cells = find_cells(unpacked)
        if not cells:
            fix = "give a folder of results, e.g. results or results/benchmarks/measured"
            raise InputError("no cell is in it", file=place, fix=fix)
        judged = tuple(judge(cells, here))
        report = Report(judged, (), is_done=False)
        ours = list(here.runs.values())
        conflicts = provenance_conflicts([cell.run for cell in report.new], ours)
        report = replace(report, conflicts=tuple(conflicts))
        if is_dry_run or (report.all_conflicts and not allow_conflicts):
            return report
        before_writing([here.folder(cell) / name for cell in report.new for name in ALL_FILES])
        with _recorded(judged, here, after_writing):
            for cell in report.new:
                _copy(cell, here, str(place.resolve()), report.conflicts)
    return replace(report, is_done=True)


@contextlib.contextmanager
def _recorded(
    judged: Sequence[Judged], here: Here, record: Callable[[Sequence[Path]], None]
) -> Iterator[None]:
    """Record the cells that the block takes over, and those of an import that did not get so far.

    A list of them lies beside the cells until they have been recorded.
    """
    note = here.cells / ".unrecorded.json"
    left = set(read_json(note)) if note.exists() else set()
    cells = {
        it.cell.run.key.folder
        for it in judged
        if isinstance(it.cell, WholeCell)
        and (
            it.status is Status.new
            or (it.status is Status.duplicate and it.cell.run.key.folder in left)
        )
    }
    if cells:
        write_json(note, sorted(left | cells))
    yield
    if cells:
        record([here.cells / cell / "run.json" for cell in sorted(cells)])
        write_json(note, sorted(left - cells))
    if cells and left <= cells:
        note.unlink()


def _copy(cell: WholeCell, here: Here, origin: str, conflicts: Sequence[str]) -> None:
    """Copy a cell's files to where its own would be measured: whole or not at all.

    Raises InputError: a job has measured it meanwhile, or a file is not what was read before.
    """
    target = here.folder(cell)
    target.mkdir(parents=True, exist_ok=True)
    with cell_lock(target) as has_waited:
        if has_waited and (target / "run.json").exists():
            fix = "import again to compare them"
            raise InputError("a job has measured this cell meanwhile", file=target, fix=fix)
        (target / "run.json").unlink(missing_ok=True)
        for name in CELL_FILES:
            with atomic_path(target / name) as temporary:
                shutil.copyfile(cell.folder / name, temporary)
        write_run(target, _run(cell, here, origin, conflicts), recorded_facts(cell.folder))
    if damage := damaged_files(target):
        (target / "run.json").unlink()
        fix = "look after the disk, and import again"
        problem = "; ".join(f"{name} {why}" for name, why in damage.items())
        raise InputError(problem, file=target, fix=fix)


def _run(cell: WholeCell, here: Here, origin: str, conflicts: Sequence[str]) -> CellRun:
    """Return the run as if the cell had been measured here, and where it came from."""
    run, key = cell.run, cell.run.key
    definition = here.definition(key)
    return replace(
        run,
        source=here.config["source"],
        definition=definition,
        definition_sha256=definition_sha256(definition, *here.inputs_sha256(key, definition)),
        imported=ImportedFrom(
            origin=origin,
            place=cell.place,
            at=datetime.now(UTC).replace(microsecond=0),
            source=run.source,
            definition_sha256=run.definition_sha256,
            run_sha256=sha256_file(cell.folder / "run.json"),
            mixed=tuple(conflicts),
        ),
    )


_WORDS = {
    Status.new: "to take over",
    Status.duplicate: "here already",
    Status.not_asked_for: "not asked for here",
    Status.damaged: "damaged",
    Status.other_definition: "measured by another definition",
    Status.other_measurement: "measured here too, and differently",
}
_PLAIN = (Status.new, Status.duplicate)
"""Cells of which the count says it all."""


def report_text(report: Report) -> str:
    """Return the count of each status, the cells that are left out and why, the conflicts."""
    words = _WORDS | ({Status.new: "taken over"} if report.is_done else {})
    lines = [f"{len(report.judged)} cells found"]
    for status, word in words.items():
        cells = report.cells(status)
        lines += [f"  {len(cells):6,} {word}"] if cells else []
        if status not in _PLAIN:
            lines += [f"         {it.cell.place}: {it.detail}" for it in cells]
    if report.conflicts:
        lines.append("Measured with what the cells here were not:")
        lines += [f"  {conflict}" for conflict in report.conflicts]
    return "\n".join(lines)
