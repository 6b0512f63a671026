"""Are intervals honest once a cell of a new LLM was measured, whichever way it was chosen?

    python benchmarks/one_probe.py [--source archive:llm-pilot] [--slos config/slos.tsv]

Each LLM is held out in turn; then one cell of it (a GPU profile; where a source served in many
ways, a profile, a way and a length of requests) is measured and joins the fit: none; the one that
most answers would take, of an SLO of the sheet each (`answer`); the one whose measurement tells
most of the SLOs (`tells`); one at random (`random`). It is measured at all of its loads, or at the
middle one alone. Prints, over all points that were not measured, the median error of TTFT and ITL
and the share inside the 90% intervals: on `others`, and for one load at the other loads of the
cell (`same`), where draws go through what was measured.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.ask.source import load_sources
from sextant.decide.decision import best_probe, choose, weigh
from sextant.facts.slo import SLO, load_slos
from sextant.judge.accuracy import held_out_folds
from sextant.judge.configurations import as_options
from sextant.judge.folds import share_lengths
from sextant.judge.task import Task, task_of_characterization
from sextant.law.calibration import Calibration
from sextant.law.roofline import Roofline
from sextant.points.frame import IDENTIFIERS, LENGTHS, TARGETS, at_percentile, is_usable
from sextant.predict.predictor import Draws, TrainingRows
from sextant.predict.tuning import results_of

SEED = 42
EXTENTS = ("all", "one")
_SLOS = 12


class Fold(NamedTuple):
    """A held-out LLM: its points, and those of the others."""

    name: str
    task: Task
    training: TrainingRows
    asked: TrainingRows
    """`X` is the design matrix."""
    cells: pd.DataFrame
    """Of each asked row `llm_id, gpu_profile_id`, which name its cell."""


def folds(task: Task) -> Iterator[Fold]:
    """Yield the folds of a task."""
    points = at_percentile(task.points, (50, 50), "ttft" if task.has_fixed_lengths else "nttft")
    points = points[is_usable(points)].reset_index(drop=True).astype({"users": "int64"})
    for name, rows in held_out_folds(points, task, "llm"):
        training, asked = points[~rows], points[rows]
        if not task.has_fixed_lengths:
            training, asked = share_lengths(training, asked)
        model = Roofline(SLO("any", itl_ms=1.0, users=1, percentile=50), task.facts.profiles, SEED)
        design = model.design(pd.concat([training, asked]), task.facts)
        n, named = len(training), as_options(_rounded(asked)) if task.has_fixed_lengths else asked
        yield Fold(
            name,
            task,
            TrainingRows(design.iloc[:n], training[TARGETS]),
            TrainingRows(
                design.iloc[n:].reset_index(drop=True), asked[TARGETS].reset_index(drop=True)
            ),
            named[IDENTIFIERS].reset_index(drop=True),
        )


def _rounded(points: pd.DataFrame) -> pd.DataFrame:
    """Return points whose lengths are those of their cell, not what a run happened to have."""
    steps = np.log(1.25)
    return points.assign(**np.exp((np.log(points[LENGTHS]) / steps).round() * steps))


def chosen_cells(fold: Fold, draws: Draws, slos: Sequence[SLO]) -> Iterator[tuple[str, pd.Series]]:
    """Yield each way to choose a cell, and which rows are of the cell."""
    pairs = fold.cells.drop_duplicates()
    bought = []
    profiles = fold.task.facts.profiles
    profiles = {
        name: profiles[fold.asked.X["gpu_profile_id"][place]]
        for place, name in pairs["gpu_profile_id"].items()
    }
    for slo in slos:
        found = choose(weigh(draws, profiles, slo)).dropna(subset=["gpu_profile_id"])
        bought += list(found[IDENTIFIERS].itertuples(index=False, name=None))
    rng = np.random.default_rng(SEED)
    ways = {"random": [tuple(pairs.iloc[i]) for i in rng.permutation(len(pairs))[:1]]}
    if bought:
        counts = pd.Series(bought).value_counts(sort=False)
        ways["answer"] = [counts.idxmax()]
    if not fold.task.has_fixed_lengths:
        ways["tells"] = [(pairs["llm_id"].iloc[0], best_probe(draws, profiles, slos))]
    for way, cells in ways.items():
        for cell in cells:
            yield way, (fold.cells == list(cell)).all(axis=1)


def judge(fold: Fold, slos: Sequence[SLO], extents: Sequence[str]) -> pd.DataFrame:
    """Return a row a point, way to choose, and extent of the measurement."""
    model = Roofline(SLO("any", itl_ms=1.0, users=1, percentile=50), fold.task.facts.profiles, SEED)
    X, y = fold.asked
    samples_ms = model.fit(fold.training).sample(X)
    keys = fold.cells.assign(users=X["users"], input_tokens=X["input_tokens"])
    keys = keys.assign(output_tokens=X["output_tokens"])
    once = ~keys.duplicated([*IDENTIFIERS, "users"])
    draws = Draws(keys[once].reset_index(drop=True), samples_ms[:, once])
    parts = [_rows(fold, "none", "all", np.zeros(len(X), bool), np.zeros(len(X), bool), samples_ms)]
    for way, cell in chosen_cells(fold, draws, slos):
        places = np.flatnonzero(cell)
        middle = places[
            [np.argsort(X["users"].to_numpy()[places], kind="stable")[len(places) // 2]]
        ]
        for extent, at in {"all": places, "one": middle}.items():
            if extent not in extents:
                continue
            is_probe = np.isin(np.arange(len(X)), at)
            model.fit(fold.training, TrainingRows(X[is_probe], y[is_probe]))
            samples_ms = model.sample(X)
            untold_ms = model.untold_.sample(X[is_probe])
            here = cell.to_numpy()
            points = fold.cells.join(X["users"]).join(y)
            own = Calibration(
                points[is_probe].reset_index(drop=True), samples_ms[:, is_probe], SEED, untold_ms
            )
            samples_ms[:, here] = own.corrected(points[here], samples_ms[:, here])
            parts.append(_rows(fold, way, extent, is_probe, here, samples_ms))
    return pd.concat(parts)


def _rows(fold, way, extent, is_probe, here, samples_ms) -> pd.DataFrame:
    low, middle, high = np.quantile(samples_ms, (0.05, 0.5, 0.95), axis=0)
    frame = pd.DataFrame(
        {"fold": fold.name, "way": way, "extent": extent}, index=fold.asked.X.index
    )
    frame["where"] = np.where(is_probe, "is_probe", np.where(here, "same", "others"))
    for side, target in enumerate(TARGETS):
        name, truth = ("ttft", "itl")[side], fold.asked.y[target].to_numpy()
        frame[f"error_{name}"] = np.abs(middle[:, side] / truth - 1)
        inside = (low[:, side] <= truth) & (truth <= high[:, side])
        frame[f"inside_{name}"] = np.where(np.isfinite(truth), inside, np.nan)
        frame[f"width_{name}"] = np.log(high[:, side] / low[:, side])
    return frame


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default="archive:llm-pilot")
    parser.add_argument("--slos", type=Path, default=Path("config/slos.tsv"))
    parser.add_argument("--extents", nargs="+", default=EXTENTS, choices=EXTENTS)
    arguments = parser.parse_args()
    known, _ = load_sources([arguments.source])
    every = list(load_slos(arguments.slos).values())
    rng = np.random.default_rng(SEED)
    slos = [every[i] for i in rng.permutation(len(every))[:_SLOS]]
    jobs = [
        lambda fold=fold: judge(fold, slos, arguments.extents)
        for fold in folds(task_of_characterization(known))
    ]
    judged = pd.concat(results_of(jobs, 1))
    by = judged.groupby(["way", "extent", "where"])
    columns = [name for name in judged if "_" in name]
    table = by[columns].mean().join(by.size().rename("points"))
    medians = [name for name in columns if not name.startswith("inside")]
    table[medians] = by[medians].median()
    print(table.round(3).to_string())


if __name__ == "__main__":
    main()
