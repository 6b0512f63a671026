"""An answer as lines of text, and as facts for JSON."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from sextant.answer.fleet.problem import FleetAnswer, FleetPlan, Mend, Worth
from sextant.answer.text import chance
from sextant.base.rows import jsonable
from sextant.pages.wording import aligned, listed, plural

Rows = list[tuple[str, ...]]
"""Of a table, the header first where there is one."""
BASELINES = {
    "each_team_alone": "each team alone, with all nodes for itself",
    "first_fit_by_price": "one after another, the cheapest that still fits",
    "own_best_choices": "each its own best choice (`recommend`)",
    "for_the_peak": "placed for the peak",
}
_N_NAMED = 10


def facts(answer: FleetAnswer) -> dict[str, Any]:
    """Return the answer for JSON: the fields of `FleetAnswer`, `plan.gap`, and `text`."""
    found = asdict(answer)
    found["plan"]["gap"] = answer.plan.gap
    return jsonable(found | {"text": as_text(answer)})


def as_text(answer: FleetAnswer) -> str:
    """Return the whole answer as lines."""
    plan = answer.plan
    blocks = [
        [headline(answer), *answer.warnings],
        aligned(served_rows(plan)),
        _unserved_lines(answer),
        aligned(pool_rows(plan)),
        aligned(team_rows(plan)),
        _listed("What would change it:", change_rows(answer)),
        _listed("Simpler ways:", baseline_rows(answer)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def headline(answer: FleetAnswer) -> str:
    """Return what is served, at what cost and how surely, in one line."""
    plan = answer.plan
    n = len(plan.served) + len(plan.unserved)
    joint = chance(plan.joint_probability_met)
    independent = chance(plan.product_probability_met)
    return (
        f"{len(plan.served)} of {plural(n, 'demand')} served for {plan.usd_per_hour:.2f} USD/h "
        f"(at most {ceil(1e4 * plan.gap) / 100:g} % above the least cost); each meets its limits "
        f"with probability {1 - answer.risk:.10g} or more, all at once {joint} ({independent} if "
        "their errors were independent)"
    )


def served_rows(plan: FleetPlan) -> Rows:
    """Return who gets what."""
    rows: Rows = [("demand", "team", "LLM", "replicas", "nodes", "USD/h", "probability")]
    for served in plan.served:
        demand, least, most = served.demand, min(served.replicas), max(served.replicas)
        count = f"{most}" if least == most else f"{least} to {most}"
        what = f"{count} × {served.gpu_profile_id}"
        where = nodes_words(plan, demand.demand_id)
        numbers = f"{served.usd_per_hour:.2f}", chance(served.probability_met)
        rows.append((demand.demand_id, demand.team, demand.llm_id, what, where, *numbers))
    return rows


def nodes_words(plan: FleetPlan, demand_id: str) -> str:
    """Return on which nodes a demand lies in any slot, e.g. `rack 0-3,7`."""
    nodes = defaultdict(set)
    for each in plan.placements:
        if each.demand_id == demand_id:
            nodes[each.pool_id].add(each.node)
    return ", ".join(f"{name} {_ranges(found)}" for name, found in nodes.items())


def _ranges(places: set[int]) -> str:
    """Return whole numbers with runs shortened, e.g. `0-3,7`."""
    runs: list[list[int]] = []
    for place in sorted(places):
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _unserved_lines(answer: FleetAnswer) -> list[str]:
    mends = {mend.demand_id: mend for mend in answer.mends}
    n_served, most = len(answer.plan.served), answer.plan.most_served
    lines = [f"Up to {most} may be possible: the time limit ended the search."] * (most > n_served)
    lines += [
        f"Not served: {demand.demand_id} ({demand.team}, priority {demand.priority})"
        f"{': ' + mend_words(mends[demand.demand_id]) if demand.demand_id in mends else '.'}"
        for demand in answer.plan.unserved
    ]
    return [*lines, line] if (line := conflict_line(answer)) else lines


def conflict_line(answer: FleetAnswer) -> str:
    """Return which demands conflict, nothing where it is not more than one."""
    if len(answer.conflict) < 2:
        return ""
    return f"{_few(answer.conflict)} cannot all be served; without any one of them the others can."


def _few(names: Sequence[str]) -> str:
    return listed(names) if len(names) <= _N_NAMED else f"{len(names)} demands (in JSON)"


def mend_words(mend: Mend) -> str:
    """Return why a demand is not served, and what would mend it."""
    why = "no room is left" if mend.reason == "no_room" else "no GPU profile keeps its limits"
    ways = [f"{plural(n, 'more node')} of {name}" for name, n in mend.more_nodes.items()]
    if mend.limit_factor is not None:
        ways.append(f"limits {mend.limit_factor:g} times as high")
    return f"{why}. What would do: {', or '.join(ways) or 'nothing that was tried'}."


def pool_rows(plan: FleetPlan) -> Rows:
    """Return what is in use of each pool."""
    rows: Rows = [("pool", "nodes in use", "devices in use", "USD/h", "of it idle")]
    for use in plan.pools:
        pool, nodes, devices = use.pool, max(use.nodes_used), max(use.devices_used)
        rows.append(
            (
                pool.pool_id,
                f"{nodes} of {pool.nodes}",
                f"{devices} of {pool.nodes * pool.devices_per_node}",
                f"{use.usd_per_hour:.2f}",
                f"{use.idle_usd_per_hour:.2f}",
            )
        )
    return rows


def team_rows(plan: FleetPlan) -> Rows:
    """Return what each team gets, and what that costs."""
    unserved = Counter(demand.team for demand in plan.unserved)
    served: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    usd: defaultdict[str, float] = defaultdict(float)
    for each in plan.served:
        team = each.demand.team
        served[team] += 1
        devices[team] += max(each.replicas) * each.n_gpus
        usd[team] += each.usd_per_hour
    rows: Rows = [("team", "demands served", "devices", "USD/h")]
    for team in dict.fromkeys([*usd, *unserved]):
        count = f"{served[team]} of {served[team] + unserved[team]}"
        rows.append((team, count, f"{devices[team]}", f"{usd[team]:.2f}"))
    return rows


def change_rows(answer: FleetAnswer) -> Rows:
    """Return what one more node of each pool, and looser limits of a demand, are worth."""
    rows: Rows = [
        (f"one node more of {each.pool_id}", _worth_words(each)) for each in answer.further_nodes
    ]
    for each in answer.looser_limits:
        what = f"limits of {each.demand_id} {each.factor:g} times as high"
        rows.append((what, _worth_words(each)))
    return rows


def _worth_words(worth: Worth) -> str:
    saved = worth.usd_per_hour_saved
    if worth.serves:
        dropped = f" in place of {_few(worth.drops)}" if worth.drops else ""
        return f"serves {_few(worth.serves)}{dropped}, {-saved:+.2f} USD/h"
    bound = worth.at_most_usd_per_hour
    at_most = f" (at most {bound:.2f})" if bound > max(1.01 * saved, 0.01) else ""
    return f"saves {saved:.2f} USD/h{at_most}" if saved >= 0.005 or at_most else "nothing"


def baseline_rows(answer: FleetAnswer) -> Rows:
    """Return what simpler ways come to."""
    return [
        (BASELINES[each.name], f"{each.n_served} served", f"{each.usd_per_hour:.2f} USD/h")
        for each in answer.baselines
    ]


def _listed(title: str, rows: Rows) -> list[str]:
    return [title, *(f"  {line}" for line in aligned(rows))] if rows else []
