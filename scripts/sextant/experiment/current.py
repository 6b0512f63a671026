"""Whether results were made from what the sheets ask for, by contents.

A copy or a checkout gives files new dates, and Snakemake's records do not travel along.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import read_object
from sextant.base.sheets import file_name
from sextant.experiment.experiment import (
    LLM_CONFIG,
    ORIGINS,
    Experiment,
    cell_definition,
    definition_sha256,
    inputs_sha256,
    without_levels,
)
from sextant.experiment.scenarios import Burst
from sextant.experiment.sheets import CellKey
from sextant.pages.words import plural
from sextant.trace.choice import CHOICE_FACTS

_MOST_CHARACTERS = 40  # of a value in a message; a longer one is cut
_CUT_CHARACTERS = 12
MEASURE_STALE_CELLS = (
    "run `snakemake --cores all --forcerun ingest_trace fit_workload benchmark_cell`, with your "
    "other options: it measures these cells again and leaves all others"
)


@dataclass(frozen=True)
class Comparison:
    """What differs between a cell's results and what the sheets ask for."""

    changes: tuple[str, ...] = ()
    """Fields that all levels depend on, e.g. `duration_s 4 → 5`."""
    missing_levels: tuple[float, ...] = ()
    """Levels that are asked for and were not measured; the others are kept without `changes`."""

    @property
    def is_current(self) -> bool:
        """Whether nothing has to be measured."""
        return not self.changes and not self.missing_levels

    @property
    def reason(self) -> str:
        """Why the cell is measured again, in a few words."""
        if self.changes:
            return "; ".join(self.changes)
        levels = ", ".join(f"{level:g}" for level in self.missing_levels)
        return f"only the new {'levels' if len(self.missing_levels) > 1 else 'level'} {levels}"


def compare_cells(
    experiment: Experiment, config: Mapping[str, Any], folder: Path = Path()
) -> dict[CellKey, Comparison | None]:
    """Compare the results of all cells, in a folder, with what the sheets ask for."""
    results = folder / config["pathvars"]["results"]
    compared = {}
    for key in experiment.cells:
        place = results / "benchmarks" / config["source"] / key.folder
        workload = results / "workloads" / file_name(key.workload_id) / "requests.parquet"
        compared[key] = compare_cell(place, cell_definition(experiment, key, config), workload)
    return compared


def compare_cell(folder: Path, definition: Mapping[str, Any], workload: Path) -> Comparison | None:
    """Compare a cell's results with its definition by the sheets; None if nothing is known of them.

    Contents that do not exist yet, such as a workload that is not fitted, count as unchanged.
    """
    run = _facts(folder / "run.json")
    measured = run.get("definition")
    if not isinstance(measured, dict) or "scenario" not in measured:
        return None

    changes = changed_fields(measured, definition)
    if not changes and _has_other_contents(run, measured, definition, workload):
        changes = ("the content of its workload or of its LLM's config.json",)
    levels = [level["level"] for level in run.get("levels", ())]
    if not levels:  # the LLM does not fit, at whichever level
        return Comparison(changes)

    left_out = (run.get("left_out") or {}).get("levels", ())
    tried_levels = {float(level) for level in (*levels, *left_out)}
    sheet_levels = map(float, definition["scenario"]["levels"])
    missing = tuple(level for level in sheet_levels if level not in tried_levels)
    if missing and definition["scenario"]["kind"] == Burst.kind:  # each phase rests on the first
        changes = (*changes, "other phases")
    return Comparison(changes, missing)


def changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """Return in which fields two definitions of a cell differ, levels aside: `seed 1 → 2`."""
    # As JSON has them: the results' definition was read from a file.
    both = [json.loads(json.dumps(without_levels(it))) for it in (before, after)]
    if any(LLM_CONFIG not in it for it in both):  # the contents tell whether it has changed
        for it in both:
            it.pop(LLM_CONFIG, None)
    old, new = (dict(_leaves(it)) for it in both)
    return tuple(
        f"{path[-1]} {_shown(old.get(path))} → {_shown(new.get(path))}"
        for path in dict.fromkeys((*old, *new))
        if old.get(path) != new.get(path)
    )


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of nested objects, by their keys."""
    if isinstance(value, dict):
        for name, it in value.items():
            yield from _leaves(it, (*path, name))
    else:
        yield path, value


def _shown(value: object) -> str:
    """Return a value in a message; a digest or a long text is cut."""
    text = "none" if value is None else str(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_CUT_CHARACTERS]}…"


def _has_other_contents(
    run: Mapping[str, Any],
    measured: Mapping[str, Any],
    definition: Mapping[str, Any],
    workload: Path,
) -> bool:
    """Return whether the files that a cell was measured with differ from those that are there."""
    try:
        contents = inputs_sha256(measured, workload, definition["config_path"])
    except OSError:
        return False
    return bool(run.get("definition_sha256") != definition_sha256(measured, *contents))


def stale_cells(comparisons: Iterable[Comparison | None]) -> list[str]:
    """Return a line for each reason why cells are measured again, with the number of cells."""
    reasons = Counter(it.reason for it in comparisons if it and not it.is_current)
    return [f"Measured again: {plural(n, 'cell')}, {reason}" for reason, n in reasons.items()]


def is_workload_of(folder: Path, definition: Mapping[str, Any]) -> bool | None:
    """Return whether a workload was made by a definition, of a workload or of a cell that uses it;
    None if that is not known."""
    made_from = definition["workload"]
    expected = {name: definition[name] for name in ("max_input_tokens", "max_output_tokens")}
    expected |= {name: made_from[name] for name in ORIGINS if name in made_from}
    if "sha256" in made_from:
        expected |= {"n_bins": made_from["n_bins"], "seed": definition["seed"]}
        expected["inputs_sha256"] = {"source": made_from["sha256"]}
        expected |= {name: made_from[name] for name in CHOICE_FACTS if name in made_from}

    recorded = _facts(folder / "arrivals.json").get("fit", {})
    if expected.keys() - recorded.keys():
        return None
    return all(recorded[name] == value for name, value in expected.items())


def _facts(path: Path) -> dict[str, Any]:
    """Return what a file of JSON says; nothing where it is missing or damaged."""
    try:
        return read_object(path)
    except (OSError, InputError):
        return {}
