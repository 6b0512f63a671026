"""Plan a fleet: the program solved by priority, and what would change the plan."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from math import floor, inf
from typing import TypeVar

import numpy as np

from sextant.decide import fleet, fleet_program
from sextant.decide.fleet import FleetDemand, FleetOption, FleetPlan, GPUPool
from sextant.decide.fleet_program import Choice, Program, Solution

RISK = 0.1
GAP = 1e-6  # Share of the cost by which a plan may be above the least one.
TIME_LIMIT_S = 120.0
_PART = 0.1  # Share of the time limit for each change.
_MOST_CHANGES = 10  # The most demands for which looser limits, or more nodes, are tried.
_ENDED = "The time limit (--time-limit) ended the search for what would change the plan."
_T = TypeVar("_T")
Looser = Mapping[str, Mapping[float, Sequence[FleetOption]]]
"""Options with limits that are looser by a factor, the smallest first, by demand."""


def plan_fleet(
    demands: Sequence[FleetDemand],
    pools: Sequence[GPUPool],
    options: Iterable[FleetOption],
    *,
    risk: float = RISK,
    time_limit_s: float = TIME_LIMIT_S,
) -> FleetPlan:
    """Return which demand gets which devices at the lowest cost; all are served if possible. If
    not, as many demands as possible of the first priority are served, then of the next, and of all
    such plans the cheapest one is returned. The options' draws are the same throughout; `risk` is
    the largest probability that a served demand misses its limits. The best plan that each program
    finds within `time_limit_s` is taken."""
    program = make_program(demands, pools, options, risk)
    solution, most = _solve(program, time_limit_s)
    placements = fleet_program.replicas_on_nodes(program, solution)
    sizes = {each.option.gpu_profile_id: each.option.n_gpus for each in solution.chosen}
    in_use = fleet_program.pool_uses(pools, placements, sizes)
    price = {pool.pool_id: pool.usd_per_hour for pool in pools}
    usd: dict[str, float] = defaultdict(float)
    for each in placements:
        usd[each.demand_id] += each.replicas * price[each.pool_id]
    served = []
    for choice in sorted(solution.chosen, key=lambda each: each.demand):
        option, demand = choice.option, demands[choice.demand]
        profile = option.gpu_profile_id, option.n_gpus, choice.replicas
        own_usd = usd[demand.demand_id] * option.n_gpus
        served.append(fleet.ServedDemand(demand, *profile, choice.probability_met, own_usd))
    met = np.array([each.option.is_met(each.replicas) for each in solution.chosen])
    names = {each.demand.demand_id for each in served}
    ties = fleet_program.TIE_USD * sum(pool.nodes * pool.devices_per_node for pool in pools)
    ties += fleet_program.TIE_RISK_USD * len(demands)
    cost, bound = sum(use.usd_per_hour for use in in_use), max(solution.bound - ties, 0.0)
    return FleetPlan(
        tuple(served),
        tuple(demand for demand in demands if demand.demand_id not in names),
        tuple(placements),
        tuple(in_use),
        cost,
        bound,
        most,
        float(met.all(axis=0).mean()) if len(met) else 1.0,
        float(np.prod([each.probability_met for each in served])),
        max(cost - bound, 0.0) / cost if cost else 0.0,
    )


def make_program(
    demands: Sequence[FleetDemand],
    pools: Sequence[GPUPool],
    options: Iterable[FleetOption],
    risk: float,
) -> Program:
    """Return the program: the options that are enough, where some node has room for a replica."""
    places = {demand.demand_id: place for place, demand in enumerate(demands)}
    kinds, members = fleet_program.merge_pools(pools)
    choices = []
    for option in options:
        place = places[option.demand_id]
        replicas = option.replicas(risk, demands[place].least_replicas)
        most = max((p.devices_per_node for p in kinds if p.gpu_id == option.gpu_id), default=0)
        if replicas is not None and option.n_gpus <= most:
            met = float(option.is_met(replicas).mean())
            choices.append(Choice(option, place, replicas, met))
    return Program(demands, kinds, choices, members)


def _solve(program: Program, time_limit_s: float) -> tuple[Solution, int]:
    """Return the cheapest solution that serves the most by priority, and a bound on how many.
    Within the time limit: the solution that serves the most may then not be the cheapest."""
    cost, everyone = program.usd_per_hour, range(len(program.demands))
    solve = partial(program.solve, time_limit_s=time_limit_s)
    with suppress(TimeoutError):
        if (solution := solve(cost, must=everyone, gap=GAP)) is not None:
            return solution, len(program.demands)
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


def answer_fleet(
    demands: Sequence[FleetDemand],
    pools: Sequence[GPUPool],
    options: Sequence[FleetOption],
    looser: Looser,
    *,
    risk: float = RISK,
    time_limit_s: float = TIME_LIMIT_S,
    warnings: Iterable[str] = (),
) -> fleet.FleetAnswer:
    """Return the plan (see `plan_fleet`), and what would change it, each change solved again.
    `looser` may be empty: then no limits are changed. All changes together get the time limit once
    more; a warning says if it ended the search."""
    case = _Case(demands, pools, options, risk, time_limit_s)
    plan = case.plan()
    ends_at_s = time.monotonic() + time_limit_s
    case = replace(case, time_limit_s=max(time_limit_s * _PART, 1.0), ends_at_s=ends_at_s)
    unserved = sorted(plan.unserved, key=lambda demand: demand.priority)
    costly = sorted(plan.served, key=lambda served: -served.usd_per_hour)
    looser_limits = []
    for served in case.in_time(costly[: _MOST_CHANGES if looser else 0]):
        name = served.demand.demand_id
        factor, own = next(iter(looser[name].items()))
        change = _change(plan, case.with_options(name, own).plan())
        looser_limits.append(fleet.LimitWorth(*change, name, factor))
    further_nodes = []
    for pool in case.in_time(fleet_program.merge_pools(pools)[0]):
        more = [replace(each, nodes=each.nodes + (each.pool_id == pool.pool_id)) for each in pools]
        change = _change(plan, replace(case, pools=more).plan())
        further_nodes.append(fleet.NodeWorth(*change, pool.pool_id))
    mends = [_mend(case, plan, each, looser) for each in case.in_time(unserved[:_MOST_CHANGES])]
    conflict = _conflict(case) if plan.unserved else ()
    said, why = [*warnings], "all replicas lie on one node; no other has room, or none is rented."
    for served in plan.served:
        name = served.demand.demand_id
        nodes = {(each.pool_id, each.node) for each in plan.placements if each.demand_id == name}
        if served.demand.least_replicas > 1 and len(nodes) == 1:
            said.append(f"{name}: {why}")
    said += [] if case.is_in_time() else [_ENDED]
    changes = tuple(further_nodes), tuple(looser_limits), tuple(mends), conflict
    return fleet.FleetAnswer(plan, risk, *changes, tuple(said))


@dataclass(frozen=True)
class _Case:
    """A fleet, to be solved again with something changed."""

    demands: Sequence[FleetDemand]
    pools: Sequence[GPUPool]
    options: Sequence[FleetOption]
    risk: float
    time_limit_s: float  #: Of one program.
    ends_at_s: float = inf  #: When nothing more is tried, on the monotonic clock.

    def is_in_time(self) -> bool:
        return time.monotonic() < self.ends_at_s

    def in_time(self, items: Iterable[_T]) -> Iterator[_T]:
        return takewhile(lambda _: self.is_in_time(), items)

    def plan(self) -> FleetPlan:
        how = {"risk": self.risk, "time_limit_s": self.time_limit_s}
        return plan_fleet(self.demands, self.pools, self.options, **how)

    def program(self) -> Program:
        return make_program(self.demands, self.pools, self.options, self.risk)

    def with_options(self, demand_id: str, options: Sequence[FleetOption]) -> "_Case":
        others = [option for option in self.options if option.demand_id != demand_id]
        return replace(self, options=[*others, *options])


def _are_servable(program: Program, must: Collection[int], time_limit_s: float) -> bool | None:
    """Return whether these demands can all be served; None: not known in time."""
    try:
        return program.solve(must=must, time_limit_s=time_limit_s) is not None
    except TimeoutError:
        return None


def _change(
    plan: FleetPlan, other: FleetPlan
) -> tuple[int, float, float, tuple[str, ...], tuple[str, ...]]:
    """Return how many more are served, what that saves, a bound on it, and who is and is not. What
    looks like a change for the worse is the solver's gap, or its time limit."""
    n_more, saved = len(other.served) - len(plan.served), plan.usd_per_hour - other.usd_per_hour
    at_most = plan.usd_per_hour - other.bound_usd_per_hour
    demands = [*plan.unserved, *(served.demand for served in plan.served)]
    priorities = sorted({demand.priority for demand in demands})
    before, after = (
        [sum(each.demand.priority == p for each in of.served) for p in priorities]
        for of in (plan, other)
    )
    if after < before or (after == before and saved < 0):
        return 0, 0.0, at_most, (), ()
    if after == before:
        return n_more, saved, at_most, (), ()
    names, others = ({each.demand.demand_id for each in of.served} for of in (plan, other))
    return n_more, saved, at_most, tuple(sorted(others - names)), tuple(sorted(names - others))


def _mend(case: _Case, plan: FleetPlan, demand: FleetDemand, looser: Looser) -> fleet.Mend:
    """Return what would let a demand be served besides those that are."""
    name, program = demand.demand_id, case.program()
    wanted = {name, *(served.demand.demand_id for served in plan.served)}
    must = [place for place, each in enumerate(case.demands) if each.demand_id in wanted]
    is_possible = any(choice.option.demand_id == name for choice in program.choices)
    nodes: dict[str, int] = {}
    for place, pool in case.in_time(enumerate(program.pools if is_possible else ())):
        objective, limit = program.further_nodes(place), case.time_limit_s
        with suppress(TimeoutError):
            grown = program.solve(objective, must=must, growing=place, time_limit_s=limit)
            nodes |= {pool.pool_id: round(grown.value)} if grown else {}
    factors = (
        factor
        for factor, options in looser.get(name, {}).items()
        if _are_servable(case.with_options(name, options).program(), must, case.time_limit_s)
    )
    return fleet.Mend(name, "no_room" if is_possible else "no_option", nodes, next(factors, None))


def _conflict(case: _Case) -> tuple[str, ...]:
    """Return demands that cannot all be served, though without any one of them the others can. A
    deletion filter: one demand after another, those of the lowest priority first, is left out if
    the others still cannot all be served. A demand stays where the time limit leaves it open; none
    is named where the time of all changes has passed."""
    program = case.program()
    order = sorted(range(len(case.demands)), key=lambda place: -case.demands[place].priority)
    kept = [*order]
    for place in case.in_time(order):
        others = [each for each in kept if each != place]
        if _are_servable(program, others, case.time_limit_s) is False:
            kept = others
    if not case.is_in_time():
        return ()
    return tuple(case.demands[place].demand_id for place in sorted(kept))
