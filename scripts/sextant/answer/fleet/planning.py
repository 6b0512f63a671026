"""Plan a fleet: options to choices, the program solved in the order of priorities, nodes named."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from math import floor

import numpy as np

from sextant.answer.fleet.problem import (
    Baseline,
    Demand,
    FleetAnswer,
    FleetPlan,
    LimitWorth,
    Mend,
    NodeWorth,
    Option,
    Placement,
    Pool,
    Served,
)
from sextant.answer.fleet.program import (
    TIE_USD,
    Choice,
    Program,
    Solution,
    merged,
    placed,
    usable,
    uses,
)

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
