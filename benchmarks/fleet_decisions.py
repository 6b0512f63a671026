"""`sextant fleet` where the truth is known: LLM-Pilot's archive, each LLM predicted unseen.

A fleet is drawn at random: 4 to 12 demands of one to four teams (an LLM of the archive, limits on
nTTFT and ITL, users) and nodes of three to five GPU types, too few for all demands in more than
half of the fleets. Each way of planning sees the predictions alone; its plan is judged by
what was measured: a demand is met if it has devices and its replicas carry its users within the
limits. The optimum with perfect knowledge is the same program on the measured latencies. Columns:

- `met`: demands met, of those that the optimum meets (S);
- `overspend`: cost of the demands that are met over the least cost of meeting exactly these with
  perfect knowledge, less 1, mean over the fleets (O); `S/O` is eq. 7 of LLM-Pilot;
- `all met`: fleets in which every demand that the optimum meets is met;
- `stated`: mean probability that a served demand is met, as the plan states it, beside the share
  of them that are (`kept`).

    .venv/bin/python benchmarks/fleet_decisions.py [--fleets 200] [--figure docs/fleet.png]
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from sextant.decide.fleet import FleetDemand, FleetOption, GPUPool, Placement, ServedDemand
from sextant.decide.fleet_program import pool_uses
from sextant.facts.slo import SLO
from sextant.fleet.fleet import fleet_options, needs_of_draws
from sextant.fleet.plan import RISK, plan_fleet
from sextant.judge.folds import fit_folds
from sextant.judge.score import so_score
from sextant.judge.task import Task, task_of_characterization
from sextant.pages.charts import MARKERS
from sextant.points.folder import SHIPPED, load_folder
from sextant.points.frame import KEYS, LENGTHS, TARGETS, at_percentile
from sextant.predict.predictor import Draws

SEED = 42
NTTFT_MS, ITL_MS, USERS = (10, 25, 100), (30, 40, 50, 75), (20, 50, 100, 200)
RISKS = (0.1, 0.3, 0.5)
PERFECT = "perfect knowledge"


class World(NamedTuple):
    """What was measured, and what a model says that has not seen the LLM of a demand."""

    task: Task
    predicted: Mapping[str, Draws]
    """By LLM, from the fold that holds it out."""
    measured: Mapping[str, Draws]
    """By LLM, as one draw."""

    def options(
        self, draws: Mapping[str, Draws], demands: Sequence[FleetDemand]
    ) -> list[FleetOption]:
        """Return the options of demands, on the profiles that the archive found feasible."""
        profiles = self.task.facts.profiles
        return [
            option
            for demand in demands
            for option in fleet_options(
                demand, needs_of_draws(draws[demand.llm_id], demand.slo), profiles
            )
        ]


class Fleet(NamedTuple):
    """One case."""

    demands: list[FleetDemand]
    pools: list[GPUPool]


def world() -> World:
    """Return the archive with one fit for each LLM that is held out."""
    task = task_of_characterization(load_folder(SHIPPED / "llm-pilot"))
    slo = SLO("any", nttft_ms=100, itl_ms=50, percentile=50, users=1)
    fit = fit_folds(task, slo, "roofline", SEED, 1, lambda text: print(text, flush=True))
    points = at_percentile(task.points, slo.percentiles, slo.first_token)
    measured = {
        llm_id: Draws(
            part[[*KEYS, *LENGTHS]].reset_index(drop=True), part[TARGETS].to_numpy()[None]
        )
        for llm_id, part in points.groupby("llm_id")
    }
    predicted = {each.X["llm_id"].iloc[0]: each for each in fit.draws}
    return World(task, predicted, measured)


def fleet(task: Task, rng: np.random.Generator) -> Fleet:
    """Draw demands and nodes."""
    llm_ids, n_teams = sorted(task.facts.llms), int(rng.integers(1, 5))
    demands = []
    for place in range(int(rng.integers(4, 13))):
        limits = {"nttft_ms": int(rng.choice(NTTFT_MS)), "itl_ms": int(rng.choice(ITL_MS))}
        slo = SLO(f"s{place}", **limits, percentile=50, users=int(rng.choice(USERS)))
        team, llm_id = f"team {rng.integers(n_teams)}", str(rng.choice(llm_ids))
        demands.append(FleetDemand(f"d{place}", team, llm_id, slo))
    usd = device_prices(task)
    pools = [
        GPUPool(gpu_id, gpu_id, int(rng.integers(1, 7)), int(rng.choice((4, 8))), usd[gpu_id])
        for gpu_id in rng.permutation(sorted(usd))[: rng.integers(3, 6)]
    ]
    rented = str(rng.choice(sorted(usd)))
    pools.append(GPUPool("rented", rented, 2, 4, 1.5 * usd[rented], is_owned=False))
    return Fleet(demands, pools)


def device_prices(task: Task) -> dict[str, float]:
    """Return the price of one device in USD per hour: that of the largest profile by its number."""
    profiles = sorted(task.facts.profiles.values(), key=lambda each: each.n_gpus)
    return {each.gpu.gpu_id: each.usd_per_hour / each.n_gpus for each in profiles}


@dataclass(frozen=True)
class Baseline:
    """The result of a simpler way to plan."""

    name: str
    """`each_team_alone`, `first_fit_by_price` or `own_best_choices` (the sum of `recommend`)."""
    choices: tuple[ServedDemand, ...]
    """What it gives each demand, whether or not there are enough devices."""
    n_served: int
    """Demands whose replicas find devices."""
    usd_per_hour: float


def each_team_alone(
    demands: Sequence[FleetDemand],
    pools: Sequence[GPUPool],
    options: Sequence[FleetOption],
    risk: float = RISK,
    time_limit_s: float = np.inf,
) -> Baseline:
    """Return the sum of the teams' plans, each with all pools for itself.

    Their nodes together may be more than there are.
    """
    choices: list[ServedDemand] = []
    usd_per_hour = 0.0
    for _, group in groupby(sorted(demands, key=lambda each: each.team), lambda each: each.team):
        own = [*group]
        names = {demand.demand_id for demand in own}
        mine = [option for option in options if option.demand_id in names]
        plan = plan_fleet(own, pools, mine, risk=risk, time_limit_s=time_limit_s)
        choices += plan.served
        usd_per_hour += plan.usd_per_hour
    return Baseline("each_team_alone", tuple(choices), len(choices), usd_per_hour)


def first_fit_by_price(
    demands: Sequence[FleetDemand],
    pools: Sequence[GPUPool],
    options: Sequence[FleetOption],
    risk: float = RISK,
) -> Baseline:
    """Serve one demand after another, by priority, each by the cheapest option that still fits.

    Its replicas go to the first nodes with room.
    """
    return _one_by_one("first_fit_by_price", demands, pools, options, risk, n_tried=None)


def own_best_choices(
    demands: Sequence[FleetDemand],
    pools: Sequence[GPUPool],
    options: Sequence[FleetOption],
    risk: float = RISK,
) -> Baseline:
    """Give each demand its cheapest option, by priority, as `sextant recommend` chooses it.

    A demand whose replicas no longer fit is not served.
    """
    return _one_by_one("own_best_choices", demands, pools, options, risk, n_tried=1)


def _one_by_one(
    name: str,
    demands: Sequence[FleetDemand],
    pools: Sequence[GPUPool],
    options: Sequence[FleetOption],
    risk: float,
    n_tried: int | None,
) -> Baseline:
    free = {pool.pool_id: np.full(pool.nodes, pool.devices_per_node) for pool in pools}
    choices, placements, n_served = [], [], 0
    sizes = {option.gpu_profile_id: option.n_gpus for option in options}
    own: defaultdict[str, list[FleetOption]] = defaultdict(list)
    for option in options:
        own[option.demand_id].append(option)
    for demand in sorted(demands, key=lambda each: each.priority):
        priced = _priced(demand, pools, own[demand.demand_id], risk)[:n_tried]
        for place, (usd, option, replicas) in enumerate(priced):
            fitted = _first_fit(option, replicas, pools, free)
            if fitted or place == len(priced) - 1:
                met = float(option.is_met(replicas).mean())
                chosen = option.gpu_profile_id, option.n_gpus, replicas, met, usd
                choices += [ServedDemand(demand, *chosen)] if fitted or n_tried else []
                placements += fitted
                n_served += bool(fitted)
                break
    usd_per_hour = sum(use.usd_per_hour for use in pool_uses(pools, placements, sizes))
    return Baseline(name, tuple(choices), n_served, usd_per_hour)


def _priced(
    demand: FleetDemand, pools: Sequence[GPUPool], options: Sequence[FleetOption], risk: float
) -> list[tuple[float, FleetOption, int]]:
    """Return a demand's options with their replicas: the cheapest first, of equal ones
    the likelier, then that of fewer devices.
    """
    priced = []
    for option in options:
        own = [pool for pool in pools if pool.nodes and pool.gpu_id == option.gpu_id]
        if own:
            replicas = option.replicas(risk, demand.least_replicas)
            if replicas is not None:
                usd = min(pool.usd_per_hour for pool in own)
                priced.append((replicas * option.n_gpus * usd, option, replicas))

    def order(each: tuple[float, FleetOption, int]) -> tuple[float, ...]:
        usd, option, replicas = each
        return usd, -float(option.is_met(replicas).mean()), replicas * option.n_gpus

    return sorted(priced, key=order)


def _first_fit(
    option: FleetOption, replicas: int, pools: Sequence[GPUPool], free: dict[str, np.ndarray]
) -> list[Placement]:
    """Take devices of the first nodes with room, cheapest pools first; nothing unless all fit."""
    taken, left = [], replicas
    for pool in sorted(pools, key=lambda each: each.usd_per_hour):
        if pool.gpu_id != option.gpu_id:
            continue
        rooms = free[pool.pool_id] // option.n_gpus
        by_node = np.clip(left - (np.cumsum(rooms) - rooms), 0, rooms)
        taken.append((pool.pool_id, by_node))
        left -= int(by_node.sum())
    if left:
        return []
    placements = []
    names = option.demand_id, option.gpu_profile_id
    for pool_id, by_node in taken:
        free[pool_id] -= by_node * option.n_gpus
        for node in np.flatnonzero(by_node):
            placements.append(Placement(pool_id, int(node), *names, int(by_node[node])))
    return placements


def ways(
    case: Fleet, options: Sequence[FleetOption]
) -> Iterator[tuple[str, Sequence[ServedDemand]]]:
    """Yield what each way of planning gives to the demands, by what was predicted."""
    for risk in RISKS:
        yield f"sextant fleet, risk {risk}", plan_fleet(*case, options, risk=risk).served
    for way in (first_fit_by_price, own_best_choices, each_team_alone):
        found = way(*case, options, RISKS[0])
        yield f"{found.name.replace('_', ' ')}, risk {RISKS[0]}", found.choices


def fixed(choices: Sequence[ServedDemand], options: Sequence[FleetOption]) -> list[FleetOption]:
    """Return options that leave no choice: the chosen replicas on the chosen profiles."""
    known = {(each.demand_id, each.gpu_profile_id): each for each in options}
    found = []
    for each in choices:
        option = known[each.demand.demand_id, each.gpu_profile_id]
        found.append(replace(option, needs=np.array([each.replicas])))
    return found


def judged(
    choices: Sequence[ServedDemand],
    case: Fleet,
    options: Sequence[FleetOption],
    truth: Sequence[FleetOption],
) -> dict[str, float]:
    """Return what comes of choices: who of them finds devices, and is met by what was measured."""
    of = fixed(choices, options)
    placed = plan_fleet(*case, of, risk=0).served
    true = {(each.demand_id, each.gpu_profile_id): each for each in truth}
    met = []
    for each in placed:
        option = true.get((each.demand.demand_id, each.gpu_profile_id))
        if option is not None and option.is_met(each.replicas).all():
            met.append(each.demand)
    stated = {each.demand.demand_id: each.probability_met for each in choices}
    row = {
        "placed": len(placed),
        "met": len(met),
        "stated": sum(stated[each.demand.demand_id] for each in placed),
    }
    if met:
        usd = [
            plan_fleet(met, case.pools, own(each, met), risk=0).usd_per_hour for each in (of, truth)
        ]
        row["overspend"] = usd[0] / usd[1] - 1
    return row


def own(options: Sequence[FleetOption], demands: Sequence[FleetDemand]) -> list[FleetOption]:
    """Return the options of these demands."""
    names = {demand.demand_id for demand in demands}
    return [option for option in options if option.demand_id in names]


def rows(known: World, numbers: Iterable[int]) -> Iterator[dict]:
    """Yield a row a fleet and way; each fleet has a seed of its own."""
    for number in numbers:
        case = fleet(known.task, np.random.default_rng([SEED, number]))
        options = known.options(known.predicted, case.demands)
        truth = known.options(known.measured, case.demands)
        best = plan_fleet(*case, truth, risk=0)
        place = {"fleet": number, "demands": len(case.demands), "possible": len(best.served)}
        yield place | {"way": PERFECT} | judged(best.served, case, truth, truth)
        for way, choices in ways(case, options):
            yield place | {"way": way} | judged(choices, case, options, truth)


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row a way; shares are in percent."""
    found = {}
    for way, part in frame.groupby("way", sort=False):
        met, overspend = part["met"].sum() / part["possible"].sum(), part["overspend"].mean()
        found[way] = {
            "served": 100 * part["placed"].sum() / part["possible"].sum(),
            "met": 100 * met,
            "overspend": 100 * overspend,
            "S/O": 100 * so_score(met, overspend),
            "all met": 100 * (part["met"] == part["possible"]).mean(),
            "stated": 100 * part["stated"].sum() / part["placed"].sum(),
            "kept": 100 * part["met"].sum() / part["placed"].sum(),
        }
    return pd.DataFrame(found).T


def draw(table: pd.DataFrame, out: Path) -> None:
    """Draw demands met against overspend, and the share kept beside what plans state."""
    figure = Figure(figsize=(9, 3.4), layout="constrained")
    panels = (
        (
            "overspend",
            "met",
            "Overspend on the demands met (%)",
            "Demands met, of those possible (%)",
        ),
        ("stated", "kept", "Probability stated (%)", "Placed demands that are met (%)"),
    )
    for axes, (x, y, *labels) in zip(figure.subplots(1, 2), panels, strict=True):
        for place, (way, row) in enumerate(table.iterrows()):
            axes.plot(row[x], row[y], MARKERS[place], label=way if x == "overspend" else "")
        axes.set(xlabel=labels[0], ylabel=labels[1])
        axes.grid(alpha=0.2)
    axes.plot([70, 100], [70, 100], color="black", linewidth=0.8, linestyle=":")
    figure.legend(loc="outside upper left", ncols=4, frameon=False, fontsize=8)
    figure.savefig(out, dpi=110)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=200)
    parser.add_argument("--out", type=Path, help="CSV of all rows")
    parser.add_argument("--figure", type=Path, help="PNG")
    given = parser.parse_args()
    start_s = time.perf_counter()
    known = world()
    fitted_s = time.perf_counter() - start_s
    frame = pd.DataFrame(rows(known, range(given.fleets)))
    table = summary(frame)
    planned_s = time.perf_counter() - start_s - fitted_s
    of_all = frame[frame["way"] == PERFECT]
    n_demands, n_possible = of_all["demands"].sum(), of_all["possible"].sum()
    print(f"{given.fleets} fleets, {n_demands} demands, {n_possible} of them possible")
    print(f"fits {fitted_s:.0f} s, plans {planned_s:.0f} s\n\n{table.round(1).to_string()}")
    if given.out:
        frame.to_csv(given.out, index=False)
    if given.figure:
        draw(table, given.figure)


if __name__ == "__main__":
    main()
