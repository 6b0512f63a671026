"""What cells that were measured took, and how far an estimate of them is off."""

import csv
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sextant.errors import InputError
from sextant.experiment import CellKey, Experiment
from sextant.files import read_json
from sextant.plan.estimate import ASSUMED, Basis, cell_s, level_s


@dataclass(frozen=True)
class Finished:
    """A cell that was measured: its server starts, and the time that it took in all."""

    key: CellKey
    starts_s: tuple[float, ...]
    """Each probe, loading of weights included."""
    n_levels: int
    planned_levels_s: float
    """Of the levels that were measured."""
    wall_s: float | None
    """Of the whole job; None where it was measured elsewhere."""


def finished_cells(
    experiment: Experiment, source: str, results: Path, benchmarks: Path
) -> list[Finished]:
    """Read the cells of an experiment that were measured.

    Args:
        experiment: whose cells.
        source: name of the characterization.
        results: folder of the results.
        benchmarks: folder of the run times of Snakemake's jobs.
    """
    found = []
    for key in experiment.cells:
        folder = results / "benchmarks" / source / key.folder
        times = benchmarks / "benchmark_cell" / source / f"{key.folder}.tsv"
        try:
            run, tuning = (read_json(folder / name) for name in ("run.json", "tuning.json"))
            found.append(_finished(experiment, key, run, tuning, _wall_s(times)))
        except (FileNotFoundError, InputError, KeyError):
            continue  # not measured, or damaged: it tells nothing, and a run will say so
    return [cell for cell in found if cell.n_levels]


def _finished(
    experiment: Experiment, key: CellKey, run: Mapping, tuning: Mapping, wall_s: float | None
) -> Finished:
    scenario = experiment.scenarios[key.scenario_id]
    levels = [float(entry["level"]) for entry in run["levels"]]
    return Finished(
        key=key,
        starts_s=tuple(probe["duration_s"] for probe in tuning["probes"]),
        n_levels=len(levels),
        planned_levels_s=sum(level_s(scenario, level) for level in levels),
        wall_s=None if "imported" in run else wall_s,
    )


def _wall_s(path: Path) -> float | None:
    """Return the seconds in a benchmark file of Snakemake's, of the last attempt."""
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    return float(rows[-1]["s"]) if rows else None


def basis(experiment: Experiment, key: CellKey, finished: Sequence[Finished]) -> Basis:
    """Return what to reckon a cell with: medians of the nearest cells, or what is assumed.

    Nearest are those of the same LLM on the same GPU profile, then those on the same GPU
    profile, then those on the same kind of device.
    """
    kind = experiment.profiles[key.gpu_profile_id].gpu.kind
    tests: dict[str, Callable[[CellKey], bool]] = {
        "of this LLM on this GPU profile": lambda other: (
            (other.llm_id, other.gpu_profile_id) == (key.llm_id, key.gpu_profile_id)
        ),
        "on this GPU profile": lambda other: other.gpu_profile_id == key.gpu_profile_id,
        f"on the same kind of device ({kind})": lambda other: (
            experiment.profiles[other.gpu_profile_id].gpu.kind == kind
        ),
    }
    for name, is_near in tests.items():
        near = [cell for cell in finished if is_near(cell.key) and cell.starts_s]
        if near:
            return _medians(experiment, near, ASSUMED[kind], name)
    return ASSUMED[kind]


def _medians(experiment: Experiment, near: Sequence[Finished], assumed: Basis, name: str) -> Basis:
    starts = [
        max(0.0, start_s - _weight_gib(experiment, cell) / assumed.load_gib_per_s)
        for cell in near
        for start_s in cell.starts_s
    ]
    # A batch weight that is given is started once, whatever a search takes.
    searched = [
        cell
        for cell in near
        if experiment.variants[cell.key.variant_id].batch_weight_tokens is None
    ]
    extras = [
        max(0.0, cell.wall_s - sum(cell.starts_s) - cell.planned_levels_s - assumed.cell_extra_s)
        / cell.n_levels
        for cell in near
        if cell.wall_s is not None
    ]
    measured = replace(
        assumed, start_s=statistics.median(starts), origin=f"medians of {len(near)} cells {name}"
    )
    if searched:
        n_starts = statistics.median(len(cell.starts_s) for cell in searched)
        measured = replace(measured, starts=n_starts)
    return replace(measured, level_extra_s=statistics.median(extras)) if extras else measured


def _weight_gib(experiment: Experiment, cell: Finished) -> float:
    return experiment.llm_facts[cell.key.llm_id].weight_bytes / 2**30


@dataclass(frozen=True)
class Error:
    """How an estimate compares with what was measured, over cells."""

    n_cells: int
    median_ratio: float
    """Estimated over measured."""
    lowest_ratio: float
    highest_ratio: float
    total_ratio: float


def estimate_errors(
    experiment: Experiment, config: Mapping[str, Any], finished: Sequence[Finished]
) -> dict[str, Error]:
    """Estimate each cell that was measured as if it had not been, and compare.

    `assumed` uses no measurement at all; `medians` those of all other cells.
    """
    timed = [cell for cell in finished if cell.wall_s is not None]
    pairs: dict[str, list[tuple[float, float]]] = {"assumed": [], "medians": []}
    for cell in timed:
        others = [other for other in finished if other is not cell]
        for name, known in (("assumed", []), ("medians", others)):
            estimate = _estimate_s(experiment, config, cell, basis(experiment, cell.key, known))
            pairs[name].append((estimate, cell.wall_s))
    return {name: _error(found) for name, found in pairs.items() if found}


def _estimate_s(
    experiment: Experiment, config: Mapping[str, Any], cell: Finished, known: Basis
) -> float:
    key = cell.key
    return cell_s(
        experiment.scenarios[key.scenario_id],
        experiment.variants[key.variant_id],
        _weight_gib(experiment, cell),
        config["engine"]["max_server_starts"],
        known,
    )


def _error(pairs: Iterable[tuple[float, float]]) -> Error:
    pairs = list(pairs)
    ratios = [estimate / measured for estimate, measured in pairs]
    total = sum(estimate for estimate, _ in pairs) / sum(measured for _, measured in pairs)
    return Error(len(pairs), statistics.median(ratios), min(ratios), max(ratios), total)
