"""A plan, and what would change it: further nodes, looser limits, who conflicts, simpler ways."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from sextant.answer.fleet.baselines import each_team_alone, first_fit_by_price, own_best_choices
from sextant.answer.fleet.plan import Baseline, FleetAnswer, FleetPlan, LimitWorth, Mend, NodeWorth
from sextant.answer.fleet.planning import RISK, TIME_LIMIT_S, plan_fleet, program_of
from sextant.answer.fleet.problem import Demand, Option, Pool
from sextant.answer.fleet.program import Program, merged

Looser = Mapping[str, Mapping[float, Sequence[Option]]]
"""Options with limits that are looser by a factor, the smallest first, by demand."""
_PART = 0.1
"""Share of the time limit that each change has."""
N_TOLD = 10
"""The most demands of which it is said what looser limits, or more nodes, would change."""


def answer_fleet(
    demands: Sequence[Demand],
    pools: Sequence[Pool],
    options: Sequence[Option],
    looser: Looser,
    *,
    risk: float = RISK,
    is_elastic: bool = False,
    time_limit_s: float = TIME_LIMIT_S,
    warnings: Iterable[str] = (),
) -> FleetAnswer:
    """Return the plan (see `plan_fleet`), and what would change it, each change solved again.

    `looser` may be empty: then nothing is said of limits.
    """
    case = _Case(demands, pools, options, risk, is_elastic, time_limit_s)
    plan = case.plan()
    case = replace(case, time_limit_s=max(time_limit_s * _PART, 1.0))
    unserved = sorted(plan.unserved, key=lambda demand: demand.priority)
    costly = sorted(plan.served, key=lambda served: -served.usd_per_hour)
    return FleetAnswer(
        plan,
        risk,
        is_elastic,
        tuple(_further_node(case, plan, pool) for pool in merged(pools)[0]),
        tuple(
            _looser(case, plan, served.demand, looser)
            for served in costly[: N_TOLD if looser else 0]
        ),
        tuple(_mend(case, plan, demand, looser) for demand in unserved[:N_TOLD]),
        _conflict(case) if plan.unserved else (),
        tuple(_baselines(case)),
        (*warnings, *_lone_nodes(plan)),
    )


def _lone_nodes(plan: FleetPlan) -> Iterator[str]:
    """Yield the demands that ask for several replicas and have them all on one node."""
    for served in plan.served:
        nodes: dict[int, set[tuple[str, int]]] = {}
        for each in plan.placements:
            if each.demand_id == served.demand.demand_id:
                nodes.setdefault(each.slot, set()).add((each.pool_id, each.node))
        if served.demand.least_replicas > 1 and min(map(len, nodes.values())) == 1:
            name = served.demand.demand_id
            yield f"{name}: all replicas lie on one node; no other has room, or none is rented."


@dataclass(frozen=True)
class _Case:
    """A fleet, to be solved again with something changed."""

    demands: Sequence[Demand]
    pools: Sequence[Pool]
    options: Sequence[Option]
    risk: float
    is_elastic: bool
    time_limit_s: float

    def plan(self) -> FleetPlan:
        return plan_fleet(
            self.demands,
            self.pools,
            self.options,
            risk=self.risk,
            is_elastic=self.is_elastic,
            time_limit_s=self.time_limit_s,
        )

    def program(self) -> Program:
        of = self.demands, self.pools, self.options
        return program_of(*of, self.risk, self.is_elastic)[0]

    def with_options(self, demand_id: str, options: Sequence[Option]) -> "_Case":
        others = [option for option in self.options if option.demand_id != demand_id]
        return replace(self, options=[*others, *options])

    def places(self, names: Collection[str]) -> list[int]:
        return [place for place, each in enumerate(self.demands) if each.demand_id in names]


def _further_node(case: _Case, plan: FleetPlan, pool: Pool) -> NodeWorth:
    more = [replace(each, nodes=each.nodes + (each.pool_id == pool.pool_id)) for each in case.pools]
    return NodeWorth(*_change(plan, replace(case, pools=more).plan()), pool.pool_id)


def _looser(case: _Case, plan: FleetPlan, demand: Demand, looser: Looser) -> LimitWorth:
    """Return what the smallest of the looser limits changes."""
    factor, options = next(iter(looser[demand.demand_id].items()))
    other = case.with_options(demand.demand_id, options).plan()
    return LimitWorth(*_change(plan, other), demand.demand_id, factor)


def _change(
    plan: FleetPlan, other: FleetPlan
) -> tuple[int, float, float, tuple[str, ...], tuple[str, ...]]:
    """Return how many more are served, what that saves, a bound on it, and who is and is not.

    No change is for the worse, as the plan itself remains possible: what looks so is the solver's
    gap, or its time limit.
    """
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
    names, others = ({each.demand.demand_id for each in of.served} for of in (plan, other))
    if after == before:
        return n_more, saved, at_most, (), ()
    return n_more, saved, at_most, tuple(sorted(others - names)), tuple(sorted(names - others))


def _mend(case: _Case, plan: FleetPlan, demand: Demand, looser: Looser) -> Mend:
    """Return what would have a demand served beside those that are."""
    name, program = demand.demand_id, case.program()
    must = case.places({name, *(served.demand.demand_id for served in plan.served)})
    is_possible = any(choice.option.demand_id == name for choice in program.choices)
    nodes: dict[str, int] = {}
    for place, pool in enumerate(program.pools if is_possible else ()):
        objective = program.further_nodes(place)
        with suppress(TimeoutError):
            found = program.solve(
                objective, must=must, growing=place, time_limit_s=case.time_limit_s
            )
            nodes |= {pool.pool_id: round(found.value)} if found else {}
    factors = (
        factor
        for factor, options in looser.get(name, {}).items()
        if _are_servable(case.with_options(name, options).program(), must, case.time_limit_s)
    )
    return Mend(name, "no_room" if is_possible else "no_option", nodes, next(factors, None))


def _conflict(case: _Case) -> tuple[str, ...]:
    """Return demands that cannot all be served, though without any one of them the others can.

    A deletion filter: one demand after another, those of the lowest priority first, is left out
    if the others still cannot all be served. What cannot be told in time stays.
    """
    program = case.program()
    order = sorted(range(len(case.demands)), key=lambda place: -case.demands[place].priority)
    kept = [*order]
    for place in order:
        others = [each for each in kept if each != place]
        if _are_servable(program, others, case.time_limit_s) is False:
            kept = others
    return tuple(case.demands[place].demand_id for place in sorted(kept))


def _are_servable(program: Program, must: Collection[int], time_limit_s: float) -> bool | None:
    """Return whether these demands can all be served; None: not known in time."""
    nothing = np.zeros(program.n_variables)
    try:
        return program.solve(nothing, must=must, time_limit_s=time_limit_s) is not None
    except TimeoutError:
        return None


def _baselines(case: _Case) -> Iterator[Baseline]:
    of = case.demands, case.pools, case.options, case.risk
    yield each_team_alone(*of, time_limit_s=case.time_limit_s)
    yield first_fit_by_price(*of)
    yield own_best_choices(*of)
    if case.is_elastic:
        plan = replace(case, is_elastic=False).plan()
        yield Baseline("for_the_peak", plan.served, len(plan.served), plan.usd_per_hour)
