"""How many cells have to be measured until answers are as good as after a full sweep.

    python benchmarks/measure_less.py llm [--source archive:inferencex]  # one new LLM
    python benchmarks/measure_less.py cluster [--source ...]  # nothing known
    python benchmarks/measure_less.py tables  # of all that was run
    python benchmarks/measure_less.py figure  # docs/measure_less.png

`llm` holds each LLM out in turn and measures one cell of it after another; `cluster` starts from
nothing but the law's prior and measures rounds of cells of all LLMs. Each way to choose the next
cell is judged by the same predictor and decision: S/O over all SLOs against the archive's truth.
Ways: `plan` (`sextant plan --budget-hours`), `untold` (the same, told stand-ins in place of the
SLOs), `random` (one curve a seed), `determinant` (largest determinant of what is measured),
`references` (weakest and strongest GPU profile, then at random: PARIS, Selecta, LLM-Pilot).
Finished curves are kept in a file and not run again; `--only` runs some ways alone.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.ask.source import load_sources
from sextant.decide.decision import worth_of
from sextant.decide.sizing import candidates, recommend_cheapest, size_replicas
from sextant.experiment.scenarios import ClosedLoop
from sextant.experiment.servers import Variant
from sextant.facts.slo import SLO, load_slos
from sextant.judge.configurations import separate_configurations
from sextant.judge.score import so_score
from sextant.judge.task import task_of_characterization
from sextant.law.roofline import Roofline
from sextant.plan.cell_order import Budget, Candidate, order_cells
from sextant.plan.estimate import ASSUMED, cell_s
from sextant.plan.measurements import given_measurements
from sextant.plan.value import Decisions, expected_so, weigh_decisions
from sextant.points.frame import (
    IDENTIFIERS,
    KEYS,
    LENGTHS,
    SERVING,
    TARGETS,
    at_percentile,
    has_latency,
)
from sextant.predict.predictor import Draws, TrainingRows, reference_profiles

SEED = 42
RANDOM_SEEDS = 3
SHEETS = {
    "archive:llm-pilot": "config/slos.tsv",
    "archive:inferencex": "benchmarks/modern_slos.tsv",
}
MAX_SERVER_STARTS = 5
LEVEL = {"warmup_s": 10.0, "duration_s": 120.0}
AFTER_CELLS = (0, 1, 2, 3, 5)
SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4)
Cell = tuple[str, str]


class Archive:
    """Every point of an archive, and what it says is right."""

    def __init__(self, source: str, seed: int) -> None:
        known, _ = load_sources([source])
        every = task_of_characterization(known)
        task = separate_configurations(every) if every.has_fixed_lengths else every
        points = at_percentile(task.points, (50, 50))
        points = points[has_latency(points)].reset_index(drop=True)
        if not task.has_fixed_lengths:  # the workload is known before anything is measured
            points = points.assign(**points[LENGTHS].median())
        self.source, self.seed, self.profiles = source, seed, task.facts.profiles
        self.slos = [slo for name, slo in load_slos(SHEETS[source]).items() if name != "paper"]
        self.X, self.y = points[[*KEYS, *LENGTHS]], points[TARGETS]
        # Configurations have names of their own; the law wants the LLM's and the GPU profile's.
        plain = {name: points[name].str.split(" ").str[0] for name in IDENTIFIERS}
        self.fold = plain["llm_id"].to_numpy(str)
        model = Roofline(self.slos[0], known.profiles, seed)
        asked = points[[*KEYS, *SERVING, *LENGTHS]].assign(**plain)
        self.design = model.design(asked, every.facts)
        self.gib = {name: llm.weight_bytes / 2**30 for name, llm in task.facts.llms.items()}
        self.truth = self._truth()

    def _truth(self) -> dict[tuple[str, str], tuple[dict[str, float], float]]:
        """Return what a replica truly serves and the best price, by SLO and LLM."""
        measured, found = self.X.join(self.y), {}
        llm_ids = sorted(self.X["llm_id"].unique())
        for slo in self.slos:
            rows = candidates(measured, llm_ids, self.profiles, slo)
            best = recommend_cheapest(rows).set_index("llm_id")["usd_per_hour"].dropna()
            served = rows.dropna(subset=["load_per_replica"])
            for llm_id, part in served.groupby("llm_id"):
                loads = dict(zip(part["gpu_profile_id"], part["load_per_replica"], strict=True))
                found[slo.slo_id, str(llm_id)] = loads, best[llm_id]
        return found

    def cells(self, of: np.ndarray) -> list[Cell]:
        """Return the cells of some rows."""
        return list(dict.fromkeys(self.X.loc[of, IDENTIFIERS].itertuples(index=False, name=None)))

    def is_of(self, cell: Cell) -> np.ndarray:
        """Return which rows a cell has."""
        return ((self.X["llm_id"] == cell[0]) & (self.X["gpu_profile_id"] == cell[1])).to_numpy()

    def candidate(self, cell: Cell) -> Candidate:
        """Return a cell with what it costs: the formula of `sextant plan`."""
        none, one = (
            cell_s(
                ClosedLoop(levels=levels, **LEVEL),
                Variant(),
                self.gib[cell[0]],
                MAX_SERVER_STARTS,
                ASSUMED["gpu"],
            )
            / 3600
            for levels in ((1,), (1, 2))
        )
        level_hours, profile = one - none, self.profiles[cell[1]]
        users = tuple(self.X.loc[self.is_of(cell), "users"])
        start_hours = none - level_hours
        return Candidate(
            *cell, users, start_hours, level_hours, profile.n_gpus, profile.usd_per_hour
        )

    def gpu_hours(self, cell: Cell, n_levels: int | None = None) -> float:
        """Return the device hours of a cell, of all its levels unless given."""
        it = self.candidate(cell)
        hours = it.start_hours + (n_levels or len(it.levels)) * it.level_hours
        return hours * it.n_devices

    def draws(self, known: np.ndarray, open_rows: np.ndarray) -> Draws:
        """Return draws of the open rows by a fit to the known ones, which some may be among."""
        X = self.design.reset_index(drop=True)
        model = Roofline(self.slos[0], self.profiles, self.seed)
        model.fit(TrainingRows(X[known], self.y[known]))
        places = np.flatnonzero(open_rows)
        samples_ms = model.sample(X.iloc[places])
        keys = self.X.iloc[places].reset_index(drop=True)
        truth = self.y.iloc[places].reset_index(drop=True)
        truth[~known[places]] = np.nan
        samples_ms = given_measurements(keys, samples_ms, truth, self.seed)
        return Draws(keys, samples_ms)

    def decisions(self, draws: Draws, slos: Sequence[SLO] | None = None) -> Decisions:
        """Return the decisions."""
        return weigh_decisions(draws, self.profiles, slos or self.slos, self.seed)

    def verdicts(self, decisions: Decisions) -> list[dict[str, Any]]:
        """Judge what would be answered now; what no profile truly serves is not judged."""
        slos, rows = {slo.slo_id: slo for slo in self.slos}, []
        for place, option in enumerate(chosen_now(decisions)):
            slo_id, llm_id, _ = decisions.decisions[place]
            if (slo_id, llm_id) not in self.truth:
                continue
            loads, best_usd = self.truth[slo_id, llm_id]
            can_serve = np.isfinite(decisions.ratios[:, place, option]).any()
            chosen = decisions.options.loc[(place, option)] if can_serve else None
            row = {"slo_id": slo_id, "llm_id": llm_id, "met": 0, "spent": 0.0}
            if chosen is not None:
                load = loads.get(chosen["gpu_profile_id"], 0.0)
                if chosen["replicas"] >= size_replicas(slos[slo_id].load, load):
                    row |= {"met": 1, "spent": float(chosen["usd_per_hour"] / best_usd - 1)}
            rows.append(row)
        return rows


def score(verdicts: pd.DataFrame) -> float:
    """Return the mean S/O over the SLOs."""
    by_slo = verdicts.groupby("slo_id").agg(
        n=("met", "size"), met=("met", "sum"), spent=("spent", "sum")
    )
    return float(
        np.mean(
            [so_score(r.met / r.n, r.spent / r.met if r.met else None) for r in by_slo.itertuples()]
        )
    )


def chosen_now(decisions: Decisions) -> np.ndarray:
    """Return the option of each decision that is worth most as things stand (`choose`)."""
    return worth_of(decisions.ratios).mean(axis=0).argmax(axis=-1)


def expected(decisions: Decisions) -> float:
    """Return the S/O that is expected of what would be answered now."""
    chosen = np.broadcast_to(chosen_now(decisions), decisions.can_be_met.shape)
    names = [decision.slo_id for decision in decisions.decisions]
    return expected_so(names, decisions.ratios_of(chosen), decisions.can_be_met)


class State(NamedTuple):
    """What is known when the next cells are chosen."""

    archive: Archive
    draws: Draws
    decisions: Decisions
    left: list[Cell]
    measured: list[Cell]
    rng: np.random.Generator


Chosen = list[tuple[Cell, Sequence[int] | None]]
"""Cells, each with its levels; None: all."""


def by_plan(state: State, n: int, per_hour: bool, decisions: Decisions | None = None) -> Chosen:
    offered = [state.archive.candidate(cell) for cell in state.left]
    if not per_hour:  # counted in cells, each costs the same
        offered = [
            replace(candidate, start_hours=1.0, level_hours=0.0, n_devices=1)
            for candidate in offered
        ]
    found = order_cells([decisions or state.decisions], offered, Budget(at_once=n, rounds=1))
    return [(cell.pair, cell.levels) for round_ in found.rounds for cell in round_.cells]


def by_untold_plan(state: State, n: int, per_hour: bool) -> Chosen:
    """Plan for stand-ins: limits at quantiles of what is expected, three loads."""
    medians = np.median(state.draws.samples_ms, axis=0)
    limits = np.quantile(medians, (0.1, 0.3, 0.5, 0.7, 0.9), axis=0)
    slos = [
        SLO(
            f"{i}-{j}-{users}",
            nttft_ms=float(limits[i, 0]),
            itl_ms=float(limits[j, 1]),
            percentile=50,
            users=users,
        )
        for i in range(5)
        for j in range(5)
        for users in (30, 300)
    ]
    return by_plan(state, n, per_hour, state.archive.decisions(state.draws, slos))


def by_chance(state: State, n: int, per_hour: bool) -> Chosen:
    picked = state.rng.permutation(len(state.left))[:n]
    return [(state.left[place], None) for place in picked]


def by_references(state: State, n: int, per_hour: bool) -> Chosen:
    """Take the weakest and strongest profiles of each LLM that can serve it, then any."""
    wanted = []
    for llm_id in dict.fromkeys(cell[0] for cell in state.left + state.measured):
        own = [cell[1] for cell in state.left + state.measured if cell[0] == llm_id]
        ends = reference_profiles({name: state.archive.profiles[name] for name in own})
        wanted += [(llm_id, name) for name in ends]
    first = [cell for cell in dict.fromkeys(wanted) if cell in state.left][:n]
    rest = [cell for cell in state.left if cell not in first]
    picked = state.rng.permutation(len(rest))[: n - len(first)]
    return [(cell, None) for cell in [*first, *(rest[place] for place in picked)]]


def by_determinant(state: State, n: int, per_hour: bool) -> Chosen:
    """D-optimal design: the most uncertain log-latencies together, one cell after another."""
    logs = np.log(state.draws.samples_ms)
    keys, chosen, rows = state.draws.X, [], []
    for _ in range(min(n, len(state.left))):
        best = None
        for cell in state.left:
            if cell in chosen:
                continue
            is_it = (keys["llm_id"] == cell[0]) & (keys["gpu_profile_id"] == cell[1])
            own = [*rows, *np.flatnonzero(is_it)]
            values = logs[:, own].reshape(len(logs), -1)
            spread = np.cov(values, rowvar=False) / 0.05**2 + np.eye(values.shape[1])
            gain = np.linalg.slogdet(spread)[1]
            if best is None or gain > best[0]:
                best = gain, cell, own
        chosen.append(best[1])
        rows = best[2]
    return [(cell, None) for cell in chosen]


WAYS: dict[str, Callable[[State, int, bool], Chosen]] = {
    "plan": by_plan,
    "untold": by_untold_plan,
    "determinant": by_determinant,
    "references": by_references,
    **{f"random {seed}": by_chance for seed in range(RANDOM_SEEDS)},
}


def curve(
    archive: Archive,
    way: str,
    open_rows: np.ndarray,
    *,
    at_once: int,
    most: tuple[int, float],
    per_hour: bool,
) -> list[dict[str, Any]]:
    """Measure cells of the open rows until enough is measured; return the verdicts on the way.

    All other rows are known; enough are `most` cells or GPU-hours.
    """
    left, measured, hours, found = archive.cells(open_rows), [], 0.0, []
    known, (most_cells, most_hours) = ~open_rows, most
    rng = np.random.default_rng([SEED, int(way.split(" ")[-1]) if " " in way else 0])
    while True:
        draws = archive.draws(known, open_rows)
        state = State(archive, draws, archive.decisions(draws), left, measured, rng)
        verdicts = archive.verdicts(state.decisions)
        step = {"n_cells": len(measured), "gpu_hours": hours, "expected": expected(state.decisions)}
        found.append(step | {"verdicts": verdicts})
        so = score(pd.DataFrame(verdicts))
        print(
            f"  {way}: {len(measured)} cells, {hours:.1f} GPU-hours, S/O {so:.3f}, "
            f"expected {step['expected']:.3f}",
            flush=True,
        )
        chosen = []
        if len(measured) < most_cells and hours < most_hours and left:
            chosen = WAYS[way](state, min(at_once, most_cells - len(measured)), per_hour)
        if not chosen:
            return found
        for cell, levels in chosen:
            rows = archive.is_of(cell)
            if levels is not None:
                rows = rows & archive.X["users"].isin(levels).to_numpy()
            known = known | rows
            hours += archive.gpu_hours(cell, int(rows.sum()))
            measured.append(cell)
        left = [cell for cell in left if cell not in measured]


def run(
    part: str,
    source: str,
    only: Sequence[str],
    llms: Sequence[str],
    most_share: float,
    file: Path,
) -> None:
    """Run what the file has not yet, and add it."""
    done = {tuple(row["name"]) for row in saved(file)}
    archive = Archive(source, SEED)
    everything = np.ones(len(archive.X), dtype=bool)
    total = sum(archive.gpu_hours(cell) for cell in archive.cells(everything))
    folds = llms or sorted(set(archive.fold)) if part == "llm" else ["all"]
    for way in only or WAYS:
        for fold in folds:
            name = (part, source, way, fold)
            if name in done:
                continue
            open_rows = archive.fold == fold if part == "llm" else everything
            at_once, most = 1, (max(AFTER_CELLS), np.inf)
            if part != "llm":
                at_once, most = len(archive.cells(everything)) // 16, (10**9, total * most_share)
            steps = curve(
                archive, way, open_rows, at_once=at_once, most=most, per_hour=part != "llm"
            )
            with file.open("a", encoding="utf-8") as handle:
                row = {"name": name, "total_gpu_hours": total, "steps": steps}
                handle.write(json.dumps(row) + "\n")
            print(*name, flush=True)


def saved(file: Path) -> list[dict[str, Any]]:
    """Return what was run before."""
    if not file.is_file():
        return []
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def lines(file: Path) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """Return S/O over what was measured of each way, by part and source."""
    by_way: dict[tuple[str, str, str], list[dict]] = {}
    for row in saved(file):
        part, source, way, _ = row["name"]
        by_way.setdefault((part, source, way.split(" ")[0]), []).append(row)
    found: dict[tuple[str, str], dict[str, dict[str, float]]] = {}
    for (part, source, way), rows in by_way.items():
        line = _llm_line(rows) if part == "llm" else _cluster_line(rows)
        found.setdefault((part, source), {})[way] = line
    return found


def tables(file: Path) -> None:
    """Print the tables."""
    for (part, source), table in lines(file).items():
        print(
            f"\n{part}, {source}\n{pd.DataFrame(table).T.to_string(float_format='{:.3f}'.format)}"
        )


def _llm_line(rows: Sequence[dict]) -> dict[str, float]:
    """Return S/O over all held-out LLMs by cells measured; over seeds the mean."""
    line = {}
    for n in AFTER_CELLS:
        by_seed: dict[str, list] = {}
        for row in rows:
            step = [it for it in row["steps"] if it["n_cells"] <= n][-1]
            by_seed.setdefault(row["name"][2], []).extend(step["verdicts"])
        line[f"{n} cells"] = float(np.mean([score(pd.DataFrame(it)) for it in by_seed.values()]))
    return line


def _cluster_line(rows: Sequence[dict]) -> dict[str, float]:
    """Return S/O by the share of the full sweep's GPU-hours; over seeds the mean."""
    line = {}
    for share in SHARES:
        scores = []
        for row in rows:
            within = [s for s in row["steps"] if s["gpu_hours"] <= share * row["total_gpu_hours"]]
            if row["steps"][-1]["gpu_hours"] >= share * row["total_gpu_hours"]:
                scores.append(score(pd.DataFrame(within[-1]["verdicts"])))
        line[f"{share:.0%}"] = float(np.mean(scores)) if scores else np.nan
    return line


def figure(file: Path, out: Path) -> None:
    """Draw S/O over what was measured, a panel for each part and source."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = lines(file)
    names = list(dict.fromkeys(way.split(" ")[0] for way in WAYS))
    drawn, axes = pyplot.subplots(
        1, len(panels), figsize=(4.2 * len(panels), 3.2), squeeze=False, layout="constrained"
    )
    for ((part, source), found), axis in zip(panels.items(), axes[0], strict=True):
        for way, line in found.items():
            x = [float(name.split(" ")[0].rstrip("%")) for name in line]
            color = f"C{names.index(way)}"  # the same in every panel
            axis.plot(x, [*line.values()], color=color, marker="o", markersize=3, label=way)
        axis.set_title(f"{'a new LLM' if part == 'llm' else 'a new cluster'}, {source}", fontsize=9)
        axis.set_xlabel("cells measured" if part == "llm" else "% of the full sweep's GPU-hours")
        axis.set_ylabel("S/O")
        axis.grid(alpha=0.3)
    axes[0][0].legend(fontsize=8)
    drawn.savefig(out, dpi=80)


def main() -> None:
    """Run a part, print the tables or draw the figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("part", choices=("llm", "cluster", "tables", "figure"))
    parser.add_argument("--source", default="archive:llm-pilot", choices=SHEETS)
    parser.add_argument("--only", nargs="*", default=[], help="ways to choose")
    parser.add_argument("--llms", nargs="*", default=[], help="LLMs to hold out")
    parser.add_argument(
        "--most-share", type=float, default=0.4, help="of the GPU-hours, for a cluster"
    )
    parser.add_argument("--file", type=Path, default=Path("results/measure_less.jsonl"))
    arguments = parser.parse_args()
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    if arguments.part == "tables":
        tables(arguments.file)
    elif arguments.part == "figure":
        figure(arguments.file, Path("docs/measure_less.png"))
    else:
        told_all = arguments.part, arguments.source, arguments.only, arguments.llms
        run(*told_all, arguments.most_share, arguments.file)


if __name__ == "__main__":
    main()
