"""An import from beginning to end: everything is checked before anything is written."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import read_json, write_json
from sextant.cells.integrity import CELL_FILES
from sextant.experiment.experiment import Experiment
from sextant.importing.copying import copy_cell
from sextant.importing.decisions import Here, Judged, Verdict, judge, provenance_conflicts
from sextant.importing.found import find_cells, opened


@dataclass(frozen=True)
class Report:
    """What an import came to."""

    judged: tuple[Judged, ...]
    conflicts: tuple[str, ...]
    """Versions and machines that differ from those of the cells here."""
    is_done: bool
    """False if it was a dry run, or if conflicts kept it from writing anything."""

    def cells(self, verdict: Verdict) -> list[Judged]:
        """Return the cells with a verdict."""
        return [judged for judged in self.judged if judged.verdict is verdict]

    @property
    def counts(self) -> dict[str, int]:
        """Number of cells by verdict."""
        found = Counter(judged.verdict for judged in self.judged)
        return {verdict.value: found[verdict] for verdict in Verdict}

    @property
    def all_conflicts(self) -> list[str]:
        """Everything that speaks against the import."""
        others = self.cells(Verdict.other_measurement)
        return [
            *self.conflicts,
            *(f"{it.cell.place}: another measurement, {it.detail}" for it in others),
        ]


def import_cells(
    place: Path,
    experiment: Experiment,
    config: Mapping[str, Any],
    *,
    folder: Path = Path(),
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
        folder: that paths of the configuration start from.
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
    here = Here(experiment, config, folder)
    with opened(place) as unpacked:
        cells = find_cells(unpacked)
        if not cells:
            fix = "give a folder of results, e.g. results or results/benchmarks/measured"
            raise InputError("no cell is in it", file=place, fix=fix)
        judged = tuple(judge(cells, here))
        new = [it.cell for it in judged if it.verdict is Verdict.new]
        ours = list(here.runs.values())
        conflicts = tuple(provenance_conflicts([cell.run for cell in new], ours))
        report = Report(judged, conflicts, is_done=False)
        if is_dry_run or (report.all_conflicts and not allow_conflicts):
            return report
        names = (*CELL_FILES, "run.json")
        before_writing([here.cells / cell.key.folder / name for cell in new for name in names])
        with _recorded(judged, here, after_writing):
            for cell in new:
                copy_cell(cell, here, str(place.resolve()), list(conflicts))
    return Report(judged, conflicts, is_done=True)


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
        it.cell.key.folder
        for it in judged
        if it.verdict is Verdict.new
        or (it.verdict is Verdict.duplicate and it.cell.key.folder in left)
    }
    if cells:
        write_json(note, sorted(left | cells))
    yield
    if cells:
        record([here.cells / cell / "run.json" for cell in sorted(cells)])
        write_json(note, sorted(left - cells))
    if cells and left <= cells:
        note.unlink()
