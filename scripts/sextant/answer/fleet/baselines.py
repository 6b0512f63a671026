"""Simpler ways to share nodes: each team alone, first fit by price, each demand's own best."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from sextant.answer.fleet.packing import uses
from sextant.answer.fleet.plan import Baseline, Placement, Served
from sextant.answer.fleet.planning import RISK, plan_fleet
from sextant.answer.fleet.problem import Demand, Option, Pool


def each_team_alone(
    demands: Sequence[Demand],
    pools: Sequence[Pool],
    options: Sequence[Option],
    risk: float = RISK,
    time_limit_s: float = np.inf,
) -> Baseline:
    """Return what the teams come to if each has all pools for itself, and shares no node.

    Their nodes together may be more than there are.
    """
    choices: list[Served] = []
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
    demands: Sequence[Demand], pools: Sequence[Pool], options: Sequence[Option], risk: float = RISK
) -> Baseline:
    """Return what comes of serving one demand after another, by priority.

    Each takes the cheapest of its options whose replicas all find room on the first nodes that
    have it.
    """
    return _in_turn("first_fit_by_price", demands, pools, options, risk, n_tried=None)


def own_best_choices(
    demands: Sequence[Demand], pools: Sequence[Pool], options: Sequence[Option], risk: float = RISK
) -> Baseline:
    """Return what comes of each demand taking its cheapest option, as `sextant recommend` has it.

    Those whose replicas find no room, by priority, are not served.
    """
    return _in_turn("own_best_choices", demands, pools, options, risk, n_tried=1)


def _in_turn(
    name: str,
    demands: Sequence[Demand],
    pools: Sequence[Pool],
    options: Sequence[Option],
    risk: float,
    n_tried: int | None,
) -> Baseline:
    free = {pool.pool_id: np.full(pool.nodes, pool.devices_per_node) for pool in pools}
    choices, placements, n_served = [], [], 0
    sizes = {option.gpu_profile_id: option.n_gpus for option in options}
    for demand in sorted(demands, key=lambda each: each.priority):
        priced = _priced(demand, pools, options, risk)[:n_tried]
        for place, (usd, option, replicas) in enumerate(priced):
            lying = _first_fit(option, replicas, pools, free)
            if lying or place == len(priced) - 1:
                met = float(option.is_met(np.array([replicas])).mean())
                chosen = option.gpu_profile_id, option.n_gpus, (replicas,), met, usd
                choices += [Served(demand, *chosen)] if lying or n_tried else []
                placements += lying
                n_served += bool(lying)
                break
    usd_per_hour = sum(use.usd_per_hour for use in uses(pools, placements, sizes, 1))
    return Baseline(name, tuple(choices), n_served, usd_per_hour)


def _priced(
    demand: Demand, pools: Sequence[Pool], options: Sequence[Option], risk: float
) -> list[tuple[float, Option, int]]:
    """Return a demand's options with the replicas of the peak, cheapest first."""
    found = []
    for option in options:
        own = [pool for pool in pools if pool.nodes and pool.gpu_id == option.gpu_id]
        if option.demand_id == demand.demand_id and own:
            replicas = option.replicas(risk, demand.least_replicas)
            if replicas is not None:
                most = int(replicas.max())
                usd = min(pool.usd_per_hour for pool in own)
                found.append((most * option.n_gpus * usd, option, most))
    return sorted(found, key=lambda each: (each[0], each[1].gpu_profile_id))


def _first_fit(
    option: Option, replicas: int, pools: Sequence[Pool], free: dict[str, np.ndarray]
) -> list[Placement]:
    """Take devices of the first nodes with room, cheapest pools first; nothing unless all fit."""
    taken, left = [], replicas
    for pool in sorted(pools, key=lambda each: each.usd_per_hour):
        if pool.gpu_id != option.gpu_id:
            continue
        rooms = free[pool.pool_id] // option.n_gpus
        here = np.clip(left - (np.cumsum(rooms) - rooms), 0, rooms)
        taken.append((pool.pool_id, here))
        left -= int(here.sum())
    if left:
        return []
    placements = []
    for pool_id, here in taken:
        free[pool_id] -= here * option.n_gpus
        placements += [
            Placement(
                0, pool_id, int(node), option.demand_id, option.gpu_profile_id, int(here[node])
            )
            for node in np.flatnonzero(here)
        ]
    return placements
