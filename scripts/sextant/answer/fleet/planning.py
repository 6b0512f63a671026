"""Plan a fleet: options to choices, the program solved in the order of priorities, nodes named."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import floor

import numpy as np

from sextant.answer.fleet.packing import placed, uses
from sextant.answer.fleet.plan import FleetPlan, Placement, Served
from sextant.answer.fleet.problem import Demand, Option, Pool
from sextant.answer.fleet.program import TIE_USD, Choice, Program, Solution, merged, usable

RISK = 0.1
GAP = 1e-4
"""Share of the cost by which a plan may be above the least one."""
TIME_LIMIT_S = 120.0


def plan_fleet(
    demands: Sequence[Demand],
    pools: Sequence[Pool],
    options: Iterable[Option],
    *,
    risk: float = RISK,
    is_elastic: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
) -> FleetPlan:
    """Return who gets what at the lowest cost; all are served if that is possible.

    If not, as many demands as possible of the first priority are served, then of the next, and
    of all such plans the cheapest one is returned.

    Args:
        demands: what to serve.
        pools: the nodes that there are.
        options: of each demand, any number; their draws and slots are the same throughout.
        risk: largest probability that a served demand misses its limits.
        is_elastic: whether replicas and nodes change by slot; else they are those of the peak.
        time_limit_s: of one program; the best plan found until then is returned, with its gap.

    Raises:
        InputError: replicas of a GPU have sizes that do not divide one another.
    """
    program, slots = program_of(demands, pools, options, risk, is_elastic)
    solution, most = _solved(program, time_limit_s)
    placements = placed(program, solution, slots.tolist())
    sizes = {c.option.gpu_profile_id: c.option.n_gpus for c in solution.chosen}
    in_use = uses(pools, placements, sizes, len(slots))
    served = _served(program, solution, slots, placements, pools)
    met = np.array([c.option.is_met(c.replicas[slots]) for c in solution.chosen])
    names = {each.demand.demand_id for each in served}
    return FleetPlan(
        tuple(served),
        tuple(demand for demand in demands if demand.demand_id not in names),
        tuple(placements),
        tuple(in_use),
        sum(use.usd_per_hour for use in in_use),
        max(solution.bound - TIE_USD * sum(p.nodes * p.devices_per_node for p in pools), 0.0),
        most,
        float(met.all(axis=0).mean()) if len(met) else 1.0,
        float(np.prod([each.probability_met for each in served])),
    )


def program_of(
    demands: Sequence[Demand],
    pools: Sequence[Pool],
    options: Iterable[Option],
    risk: float,
    is_elastic: bool,
) -> tuple[Program, np.ndarray]:
    """Return the program, and which of its slots each slot of the day is."""
    places = {demand.demand_id: place for place, demand in enumerate(demands)}
    found = []
    for option in options:
        place = places[option.demand_id]
        replicas = option.replicas(risk, demands[place].least_replicas)
        if replicas is not None:
            by_slot = replicas if is_elastic else replicas.max(keepdims=True)
            found.append((option, place, by_slot))
    ones, members = merged(pools)
    rows = np.broadcast_arrays(np.zeros(1, int), *(by_slot for *_, by_slot in found))
    table = np.array(rows[1:] or rows)
    kept, slots, counts = np.unique(table, axis=1, return_inverse=True, return_counts=True)
    choices = [  # where some node has room for a replica; there may be too few of them
        Choice(option, place, kept[row])
        for row, (option, place, _) in enumerate(found)
        if any(p.gpu_id == option.gpu_id and usable(p, option.n_gpus) for p in ones)
    ]
    weights = counts / counts.sum()
    return Program(demands, ones, choices, weights, members), slots.reshape(-1)


def _solved(program: Program, time_limit_s: float) -> tuple[Solution, int]:
    """Return the cheapest solution that serves the most by priority, and a bound on how many.

    What is not found in time is left out: one that serves the most may not be the cheapest.
    """
    cost, everyone = program.usd_per_hour, range(len(program.demands))
    solve = partial(program.solve, time_limit_s=time_limit_s)
    with suppress(TimeoutError):
        if (found := solve(cost, must=everyone, gap=GAP)) is not None:
            return found, len(program.demands)
    best, bound = Solution([], {}, 0.0, 0.0), 0
    least: dict[int, int] = {}
    for priority in sorted({demand.priority for demand in program.demands}):
        at_most = sum(demand.priority == priority for demand in program.demands)
        with suppress(TimeoutError):
            if most := solve(program.number_served(priority), at_least=least):
                best, at_most = replace(most, bound=0.0), floor(-most.bound + 1e-6)
                least[priority] = round(-most.value)
        bound += at_most
    with suppress(TimeoutError):
        best = solve(cost, at_least=least, gap=GAP) or best
    return best, bound


def _served(
    program: Program,
    solution: Solution,
    slots: np.ndarray,
    placements: Sequence[Placement],
    pools: Sequence[Pool],
) -> list[Served]:
    price = {pool.pool_id: pool.usd_per_hour for pool in pools}
    usd: dict[str, float] = defaultdict(float)
    for each in placements:
        usd[each.demand_id] += each.replicas * price[each.pool_id] / len(slots)
    found = []
    for choice in sorted(solution.chosen, key=lambda each: each.demand):
        option, demand = choice.option, program.demands[choice.demand]
        replicas = choice.replicas[slots]
        found.append(
            Served(
                demand,
                option.gpu_profile_id,
                option.n_gpus,
                tuple(replicas.tolist()),
                float(option.is_met(replicas).mean()),
                usd[demand.demand_id] * option.n_gpus,
            )
        )
    return found
