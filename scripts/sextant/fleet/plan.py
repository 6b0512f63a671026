"""Plan a fleet: the program solved by priority, and what would change the plan."""

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from math import inf
from typing import TypeVar

import numpy as np

from sextant.decide import fleet_program
from sextant.decide.fleet import (
    FleetDemand,
    FleetOption,
    FleetPlan,
    GPUPool,
)
from sextant.decide.fleet_program import Choice, Program
from sextant.fleet.answer import ChangeWorth, FleetAnswer, LimitWorth, Mend, NodeWorth

RISK = 0.1
TIME_LIMIT_S = 120.0
_CHANGE_TIME_SHARE = 0.1  # Share of the time limit for each change.
_MOST_CHANGES = 10  # The most demands for which looser limits, or more nodes, are tried.
_OUT_OF_TIME = "The time limit (--time-limit) ended the search for what would change the plan."
_ONE_NODE = "all replicas lie on one node; no other has room, or none is rented."
_T = TypeVar("_T")
Looser = Mapping[str, Mapping[float, Sequence[FleetOption]]]
"""By demand and factor: options with limits that are looser by the factor, the smallest first."""


def plan_fleet(
    demands: Sequence[FleetDemand],
    pools: Sequence[GPUPool],
    options: Iterable[FleetOption],
    *,
    risk: float = RISK,
    time_limit_s: float = TIME_LIMIT_S,
) -> FleetPlan:
    """Return which demand gets which devices at the lowest cost.

    All demands are served if possible. If not, as many demands as possible of the first priority
    are served, then of the next priority, and so on; the cheapest such plan is returned. Draw `i`
    is the same possible truth in all options. `risk` is the largest probability that a served
    demand misses its limits. Each program returns its best plan within `time_limit_s`.
    """
    program = make_program(demands, pools, options, risk)
    solution, most_served = program.serve_most(time_limit_s)

    placements = fleet_program.replicas_on_nodes(program, solution)
    n_gpus = {choice.option.gpu_profile_id: choice.option.n_gpus for choice in solution.chosen}
    pool_uses = fleet_program.pool_uses(pools, placements, n_gpus)

    pool_price = {pool.pool_id: pool.usd_per_hour for pool in pools}
    usd_per_device: dict[str, float] = defaultdict(float)  # one of each replica, by demand
    for placement in placements:
        usd_per_device[placement.demand_id] += placement.replicas * pool_price[placement.pool_id]
    served = [
        choice.served(demands[choice.demand], usd_per_device[choice.option.demand_id])
        for choice in sorted(solution.chosen, key=lambda choice: choice.demand)
    ]

    usd_per_hour = sum(use.usd_per_hour for use in pool_uses)
    # The program's cost has tie-breakers on top.
    n_devices = sum(pool.nodes * pool.devices_per_node for pool in pools)
    ties_usd = fleet_program.TIE_USD * n_devices + fleet_program.TIE_RISK_USD * len(demands)
    bound = max(solution.bound - ties_usd, 0.0)

    is_met = np.array([choice.option.is_met(choice.replicas) for choice in solution.chosen])
    served_ids = {served_demand.demand.demand_id for served_demand in served}
    return FleetPlan(
        served=tuple(served),
        unserved=tuple(demand for demand in demands if demand.demand_id not in served_ids),
        placements=tuple(placements),
        pools=tuple(pool_uses),
        usd_per_hour=usd_per_hour,
        bound_usd_per_hour=bound,
        most_served=most_served,
        joint_probability_met=float(is_met.all(axis=0).mean()) if len(is_met) else 1.0,
        product_probability_met=float(
            np.prod([served_demand.probability_met for served_demand in served])
        ),
        gap=max(usd_per_hour - bound, 0.0) / usd_per_hour if usd_per_hour else 0.0,
    )


def make_program(
    demands: Sequence[FleetDemand],
    pools: Sequence[GPUPool],
    options: Iterable[FleetOption],
    risk: float,
) -> Program:
    """Return the program: the options that are enough, where some node has room for a replica."""
    index_of = {demand.demand_id: index for index, demand in enumerate(demands)}
    merged_pools, members = fleet_program.merge_pools(pools)

    choices = []
    for option in options:
        index = index_of[option.demand_id]
        replicas = option.replicas(risk, demands[index].least_replicas)
        most_gpus = max(
            (pool.devices_per_node for pool in merged_pools if pool.gpu_id == option.gpu_id),
            default=0,
        )
        if replicas is not None and option.n_gpus <= most_gpus:
            probability_met = float(option.is_met(replicas).mean())
            choices.append(Choice(option, index, replicas, probability_met))

    return Program(demands, merged_pools, choices, members)


def answer_fleet(
    demands: Sequence[FleetDemand],
    pools: Sequence[GPUPool],
    options: Sequence[FleetOption],
    looser: Looser,
    *,
    risk: float = RISK,
    time_limit_s: float = TIME_LIMIT_S,
    warnings: Iterable[str] = (),
) -> FleetAnswer:
    """Return the plan (see `plan_fleet`), and what would change it, each change solved again.

    With an empty `looser` no limits are changed. All changes together get the time limit once
    more; a warning says if it ended the search.
    """
    problem = _FleetProblem(demands, pools, options, risk, time_limit_s)
    plan = problem.plan()

    changed = replace(
        problem,
        time_limit_s=max(time_limit_s * _CHANGE_TIME_SHARE, 1.0),
        ends_at_s=time.monotonic() + time_limit_s,
    )
    # The order counts where time runs out.
    looser_limits = changed.looser_limits(plan, looser)
    further_nodes = changed.further_nodes(plan)
    by_priority = sorted(plan.unserved, key=lambda demand: demand.priority)
    mends = [
        changed.mend(plan, demand, looser)
        for demand in changed.in_time(by_priority[:_MOST_CHANGES])
    ]
    conflict = changed.conflict() if plan.unserved else []

    crowded = [f"{served.demand.demand_id}: {_ONE_NODE}" for served in plan.crowded()]
    out_of_time = [] if changed.is_in_time() else [_OUT_OF_TIME]
    return FleetAnswer(
        plan=plan,
        risk=risk,
        further_nodes=tuple(further_nodes),
        looser_limits=tuple(looser_limits),
        mends=tuple(mends),
        conflict=tuple(conflict),
        warnings=(*warnings, *crowded, *out_of_time),
    )


@dataclass(frozen=True)
class _FleetProblem:
    """A fleet, to be solved again with something changed."""

    demands: Sequence[FleetDemand]
    pools: Sequence[GPUPool]
    options: Sequence[FleetOption]
    risk: float
    time_limit_s: float  #: Of one program.
    ends_at_s: float = inf  #: When nothing more is tried, on the monotonic clock.

    def is_in_time(self) -> bool:
        """Whether there is time to try more."""
        return time.monotonic() < self.ends_at_s

    def in_time(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield items until the time is over."""
        return takewhile(lambda _: self.is_in_time(), items)

    def plan(self) -> FleetPlan:
        """Return the plan; see `plan_fleet`."""
        return plan_fleet(
            self.demands,
            self.pools,
            self.options,
            risk=self.risk,
            time_limit_s=self.time_limit_s,
        )

    @cached_property
    def program(self) -> Program:
        """The program; see `make_program`."""
        return make_program(self.demands, self.pools, self.options, self.risk)

    def with_options(self, demand_id: str, options: Sequence[FleetOption]) -> "_FleetProblem":
        """Return the fleet with other options of one demand."""
        others = [option for option in self.options if option.demand_id != demand_id]
        return replace(self, options=[*others, *options])

    def can_serve(self, must: Collection[int]) -> bool | None:
        """Return whether the demands of these indices can all be served; None: not decided in
        time."""
        try:
            return self.program.solve(must=must, time_limit_s=self.time_limit_s) is not None
        except TimeoutError:
            return None

    def looser_limits(self, plan: FleetPlan, looser: Looser) -> list[LimitWorth]:
        """Return what the smallest factor on the limits is worth, for the most expensive demands of
        a plan."""
        by_cost = sorted(plan.served, key=lambda served: -served.usd_per_hour)
        worths = []
        for served in self.in_time(by_cost[: _MOST_CHANGES if looser else 0]):
            demand_id = served.demand.demand_id
            factor, options = next(iter(looser[demand_id].items()))
            worth = _compare(plan, self.with_options(demand_id, options).plan())
            worths.append(LimitWorth(**vars(worth), demand_id=demand_id, factor=factor))
        return worths

    def further_nodes(self, plan: FleetPlan) -> list[NodeWorth]:
        """Return what one further node is worth to a plan, for one pool of each kind."""
        merged_pools, _ = fleet_program.merge_pools(self.pools)
        worths = []
        for grown in self.in_time(merged_pools):
            pools = [
                replace(pool, nodes=pool.nodes + 1) if pool.pool_id == grown.pool_id else pool
                for pool in self.pools
            ]
            worth = _compare(plan, replace(self, pools=pools).plan())
            worths.append(NodeWorth(**vars(worth), pool_id=grown.pool_id))
        return worths

    def mend(self, plan: FleetPlan, demand: FleetDemand, looser: Looser) -> Mend:
        """Return what would let a demand be served besides the demands that a plan serves."""
        demand_id = demand.demand_id
        wanted = {demand_id, *(served.demand.demand_id for served in plan.served)}
        must = [index for index, other in enumerate(self.demands) if other.demand_id in wanted]
        has_option = any(choice.option.demand_id == demand_id for choice in self.program.choices)

        more_nodes: dict[str, int] = {}
        for index, pool in self.in_time(enumerate(self.program.pools if has_option else ())):
            with suppress(TimeoutError):
                solution = self.program.solve(
                    self.program.further_nodes_objective(index),
                    must=must,
                    growing=index,
                    time_limit_s=self.time_limit_s,
                )
                if solution:
                    more_nodes[pool.pool_id] = round(solution.value)

        enough_factors = (
            factor
            for factor, options in looser.get(demand_id, {}).items()
            if self.with_options(demand_id, options).can_serve(must)
        )
        return Mend(
            demand_id=demand_id,
            reason="no_room" if has_option else "no_option",
            more_nodes=more_nodes,
            limit_factor=next(enough_factors, None),
        )

    def conflict(self) -> list[str]:
        """Return demands that cannot all be served, though without any one of them the others can.

        A deletion filter: each demand in turn, the lowest priority first, is left out if the others
        still cannot all be served. A demand stays where the time limit leaves it open. If the time
        of all changes has passed, the result is empty.
        """
        order = sorted(range(len(self.demands)), key=lambda i: -self.demands[i].priority)

        kept = order
        for index in self.in_time(order):
            others = [other for other in kept if other != index]
            if self.can_serve(others) is False:
                kept = others

        if not self.is_in_time():
            return []
        return [self.demands[index].demand_id for index in sorted(kept)]


def _compare(plan: FleetPlan, other: FleetPlan) -> ChangeWorth:
    """Return what a change is worth that leads from a plan to another one. A change for the worse
    is the solver's gap, or its time limit: it counts as no change."""
    at_most = plan.usd_per_hour - other.bound_usd_per_hour
    saved = plan.usd_per_hour - other.usd_per_hour

    demands = [*plan.unserved, *(served.demand for served in plan.served)]
    priorities = sorted({demand.priority for demand in demands})
    before = [plan.n_served(priority) for priority in priorities]
    after = [other.n_served(priority) for priority in priorities]
    if after < before or (after == before and saved < 0):
        return ChangeWorth(0, 0.0, at_most, (), ())

    n_more = len(other.served) - len(plan.served)
    if after == before:
        return ChangeWorth(n_more, saved, at_most, (), ())

    ids_before = {served.demand.demand_id for served in plan.served}
    ids_after = {served.demand.demand_id for served in other.served}
    serves = tuple(sorted(ids_after - ids_before))
    drops = tuple(sorted(ids_before - ids_after))
    return ChangeWorth(n_more, saved, at_most, serves, drops)
