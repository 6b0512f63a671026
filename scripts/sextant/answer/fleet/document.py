"""A fleet answer for people and for rule `plan_fleet`: blocks, table, page and JSON."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sextant.answer.answer import write_results
from sextant.answer.fleet.options import FleetQuestion, answer_sheets
from sextant.base.files import provenance
from sextant.decide.fleet import Demand, FleetAnswer, FleetPlan, Mend, Worth
from sextant.experiment.experiment import Experiment
from sextant.facts.gpu import old_price_lines, origin_line, price_origins
from sextant.pages.blocks import Block, Chart, Document, Headline, Note, Section, Table, as_text
from sextant.pages.wording import chance, listed, plural
from sextant.points.measured import load_run

_N_NAMED = 10


def fleet_document(answer: FleetAnswer, origin: Mapping[str, Any] | None = None) -> Document:
    """Return a fleet answer for people (blocks) and programs (data).

    The data are the fields of `FleetAnswer`, `plan.gap`, and where `prices` come from.
    """
    plan = answer.plan
    data = asdict(answer)
    data["plan"]["gap"] = plan.gap
    pools = (use.pool for use in plan.pools)
    prices = price_origins((pool.price_source, pool.price_as_of) for pool in pools)
    data["prices"] = [each._asdict() for each in prices]
    is_by_hour = len(plan.pools[0].devices_used) > 1
    charts = [Chart(lambda: _figure(plan), "Devices in use by the hour of the day.")] * is_by_hour
    blocks: list[Block] = [
        Headline(headline(answer)),
        *(Note(text, "warning") for text in (*answer.warnings, *old_price_lines(prices))),
        Section("Who runs where", [*charts, _served_table(plan)]),
        *([Section("Not served", _unserved_blocks(answer))] if plan.unserved else []),
        Section("Pools", [_pool_table(plan), Note(origin_line(prices))]),
        Section("Teams", [_team_table(plan)]),
        Section("What would change it, solved again with that change", [_change_table(answer)]),
    ]
    return Document("Fleet: which team gets which GPUs", blocks, data, origin=origin)


def devices_used(plan: FleetPlan) -> dict[tuple[str, str], np.ndarray]:
    """Return devices in use by pool and team, shape (slots,)."""
    served = {each.demand.demand_id: each for each in plan.served}
    n_slots = len(plan.pools[0].devices_used)
    uses: defaultdict[tuple[str, str], np.ndarray] = defaultdict(lambda: np.zeros(n_slots, int))
    for place in plan.placements:
        each = served[place.demand_id]
        uses[place.pool_id, each.demand.team][place.slot] += place.replicas * each.n_gpus
    return dict(uses)


def _figure(plan: FleetPlan) -> str:
    """Draw devices in use over the day: one panel per pool, one line per team."""
    from sextant.pages.charts import Axis, Curve, Panel, panels_figure

    hours = np.linspace(0, 24, len(plan.pools[0].devices_used) + 1)
    panels = []
    for use in plan.pools:
        pool = use.pool
        n_devices = pool.nodes * pool.devices_per_node
        curves = [
            Curve(team, hours, np.append(devices, devices[-1]))
            for (pool_id, team), devices in devices_used(plan).items()
            if pool_id == pool.pool_id
        ]
        curves.append(Curve("all devices", [0, 24], [n_devices] * 2, is_reference=True))
        x = Axis("Hour of the day", low=0, high=24)
        panels.append(Panel(pool.pool_id, x, Axis("Devices", low=0), curves))
    title = "Devices in use by pool and team"
    return panels_figure(panels, title, n_columns=1, height_in=1.6, is_step=True)


def headline(answer: FleetAnswer) -> str:
    """Return how many are served, at what cost and probability, in one line."""
    plan = answer.plan
    n = len(plan.served) + len(plan.unserved)
    if not plan.served:
        return f"None of {plural(n, 'demand')} can be served"
    joint = chance(plan.joint_probability_met)
    independent = chance(plan.product_probability_met)
    return (
        f"{len(plan.served)} of {plural(n, 'demand')} served for {plan.usd_per_hour:.2f} USD/h "
        f"(at most {ceil(1e4 * plan.gap) / 100:g} % above the least cost); each meets its limits "
        f"with probability {1 - answer.risk:.10g} or more, all at once {joint} ({independent} if "
        "their errors were independent)"
    )


def _served_table(plan: FleetPlan) -> Table:
    rows = []
    for served in plan.served:
        demand, least, most = served.demand, min(served.replicas), max(served.replicas)
        count = f"{most}" if least == most else f"{least} to {most}"
        replicas = f"{count} × {served.gpu_profile_id}"
        nodes = nodes_words(plan, demand.demand_id)
        numbers = f"{served.usd_per_hour:.2f}", chance(served.probability_met)
        rows.append((demand.demand_id, demand.team, demand.llm_id, replicas, nodes, *numbers))
    header = ["Demand", "Team", "LLM", "Replicas", "Nodes", "USD/h", "Probability"]
    return Table(header, rows, range(5))


def nodes_words(plan: FleetPlan, demand_id: str) -> str:
    """Return the nodes of a demand in any slot, e.g. `rack 0-3,7`."""
    nodes = defaultdict(set)
    for each in plan.placements:
        if each.demand_id == demand_id:
            nodes[each.pool_id].add(each.node)
    return ", ".join(f"{name} {_ranges(places)}" for name, places in nodes.items())


def _ranges(places: set[int]) -> str:
    """Return whole numbers with runs shortened, e.g. `0-3,7`."""
    runs: list[list[int]] = []
    for place in sorted(places):
        if runs and place == runs[-1][1] + 1:
            runs[-1][1] = place
        else:
            runs.append([place, place])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def _unserved_blocks(answer: FleetAnswer) -> list[Block]:
    plan, blocks = answer.plan, list[Block]()
    if plan.most_served > len(plan.served):
        text = f"Up to {plan.most_served} may be possible: the time limit ended the search."
        blocks.append(Note(text))
    if len(answer.conflict) > 1:
        names = _few(answer.conflict)
        blocks.append(
            Note(f"{names} cannot all be served; without any one of them the others can.")
        )
    mends = {mend.demand_id: mend_words(mend) for mend in answer.mends}
    rows = [(it.demand_id, it.team, it.priority, mends.get(it.demand_id)) for it in plan.unserved]
    return [*blocks, Table(["Demand", "Team", "Priority", "Why, and what helps"], rows, {0, 1, 3})]


def _few(names: Sequence[str]) -> str:
    return listed(names) if len(names) <= _N_NAMED else f"{len(names)} demands (in JSON)"


def mend_words(mend: Mend) -> str:
    """Return why a demand is not served, and what would help."""
    why = "no room is left" if mend.reason == "no_room" else "no GPU profile meets its limits"
    ways = [f"{plural(n, 'more node')} of {name}" for name, n in mend.more_nodes.items()]
    if mend.limit_factor is not None:
        ways.append(f"limits {mend.limit_factor:g} times as high")
    return f"{why}. What would help: {', or '.join(ways) or 'nothing that was tried'}."


def _pool_table(plan: FleetPlan) -> Table:
    rows = []
    for use in plan.pools:
        pool, nodes, devices = use.pool, max(use.nodes_used), max(use.devices_used)
        all_devices = pool.nodes * pool.devices_per_node
        cost = f"{use.usd_per_hour:.2f}", f"{use.idle_usd_per_hour:.2f}"
        counts = f"{nodes} of {pool.nodes}", f"{devices} of {all_devices}"
        rows.append((pool.pool_id, *counts, *cost))
    return Table(["Pool", "Nodes in use", "Devices in use", "USD/h", "Of it idle"], rows)


def _team_table(plan: FleetPlan) -> Table:
    unserved = Counter(demand.team for demand in plan.unserved)
    served: Counter[str] = Counter()
    devices: Counter[str] = Counter()
    usd: defaultdict[str, float] = defaultdict(float)
    for each in plan.served:
        team = each.demand.team
        served[team] += 1
        devices[team] += max(each.replicas) * each.n_gpus
        usd[team] += each.usd_per_hour
    rows = []
    for team in dict.fromkeys([*usd, *unserved]):
        count = f"{served[team]} of {served[team] + unserved[team]}"
        rows.append((team, count, f"{devices[team]}", f"{usd[team]:.2f}"))
    return Table(["Team", "Demands served", "Devices", "USD/h"], rows)


def _change_table(answer: FleetAnswer) -> Table:
    """Return what one more node of each pool, and looser limits of a demand, are worth."""
    rows = [
        (f"one node more of {each.pool_id}", _worth_words(each)) for each in answer.further_nodes
    ]
    for each in answer.looser_limits:
        change = f"limits of {each.demand_id} {each.factor:g} times as high"
        rows.append((change, _worth_words(each)))
    return Table((), rows, {0, 1})


def _worth_words(worth: Worth) -> str:
    saved = worth.usd_per_hour_saved
    if worth.serves:
        dropped = f" in place of {_few(worth.drops)}" if worth.drops else ""
        return f"serves {_few(worth.serves)}{dropped}, {-saved:+.2f} USD/h"
    bound = worth.at_most_usd_per_hour
    at_most = f" (at most {bound:.2f})" if bound > max(1.01 * saved, 0.01) else ""
    return f"saves {saved:.2f} USD/h{at_most}" if saved >= 0.005 or at_most else "nothing"


SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in ("source", "demand_id", "team", "llm_id")),
        ("priority", pa.int64()),
        *((name, pa.string()) for name in ("status", "gpu_profile_id")),
        ("replicas", pa.int64()),
        *((name, pa.float64()) for name in ("usd_per_hour", "probability_met")),
        *((name, pa.string()) for name in ("nodes", "mend")),
    ]
)
"""Table `fleet`; `status` is `served` or `unserved`, `mend` what would help."""


def plan_files(
    inputs: Mapping[str, Any],
    experiment: Experiment,
    outputs: Mapping[str, str | Path],
    *,
    source: str,
    decision: Mapping[str, str],
    seed: int,
    gpus: str,
) -> None:
    """Give the devices of the sheet of supply to the demands, and write table, page and JSON.

    `inputs` are paths of tables `point` and `feasibility`, of the sheets `demands` and `supply`,
    and of `traces`, which lie in one folder; `outputs` those of the `table`, the `html` page and
    its `json`. `source` names the characterization, `decision` the workload and scenario of its
    points; `gpus` is the folder of the facts of devices.
    """
    traces = [Path(each) for each in inputs["traces"]]
    known = load_run(inputs, experiment, source, decision)
    question = FleetQuestion(
        Path(inputs["demands"]),
        Path(inputs["supply"]),
        traces=traces[0].parent if traces else Path(inputs["demands"]).parent,
        measurements={"known": known, "seed": seed},
        gpus=Path(gpus),
    )
    answer = answer_sheets(question)
    plan, mends = answer.plan, {each.demand_id: mend_words(each) for each in answer.mends}

    def row(demand: Demand, status: str, **facts: Any) -> dict[str, Any]:
        names = ("demand_id", "team", "llm_id", "priority")
        key = {name: getattr(demand, name) for name in names}
        return {"source": source, **key, "status": status, **facts}

    rows = [
        row(
            each.demand,
            "served",
            gpu_profile_id=each.gpu_profile_id,
            replicas=max(each.replicas),
            usd_per_hour=each.usd_per_hour,
            probability_met=each.probability_met,
            nodes=nodes_words(plan, each.demand.demand_id),
        )
        for each in plan.served
    ]
    rows += [row(each, "unserved", mend=mends.get(each.demand_id)) for each in plan.unserved]
    single = {name: inputs[name] for name in ("point", "feasibility", "demands", "supply")}
    origin = provenance(single | {path.stem: path for path in traces}, seed=seed)
    document = fleet_document(answer, origin)
    more = {"text": as_text(document), "provenance": origin}
    write_results(outputs, rows, SCHEMA, replace(document, data={**document.data, **more}))
