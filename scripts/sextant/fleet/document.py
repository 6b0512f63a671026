"""A fleet answer in words, and the files of rule `plan_fleet`: table, page and JSON."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import Any

import pyarrow as pa

from sextant.answer.key_figures import chance_figure, price_figure
from sextant.answer.results import write_results
from sextant.ask.forecast import MEDIANS
from sextant.ask.question import Question
from sextant.base.files import provenance
from sextant.decide.fleet import FleetPlan, Placement
from sextant.experiment.experiment import Experiment
from sextant.facts.gpu import old_price_lines, origin_line
from sextant.fleet.answer import ChangeWorth, FleetAnswer, Mend
from sextant.fleet.fleet import FleetQuestion, answer_sheets
from sextant.pages.blocks import (
    Beside,
    Block,
    Document,
    Facts,
    Headline,
    KeyFigure,
    KeyFigures,
    Note,
    Section,
    Table,
    Tone,
    as_text,
)
from sextant.pages.words import chance, joined, plural, usd_number, usd_words
from sextant.points.measured import load_run

_N_NAMED = 10
_SERVED_HEADER = ["Demand", "Team", "LLM", "Replicas", "Nodes", "USD/h", "Probability"]
_POOL_HEADER = ["Pool", "Nodes in use", "Devices in use", "USD/h", "Of it idle"]
_UNSERVED_HEADER = ["Demand", "Team", "Priority", "Why, and what helps"]
_TEAM_HEADER = ["Team", "Demands served", "Devices", "USD/h"]


def fleet_document(answer: FleetAnswer, origin: Mapping[str, Any] | None = None) -> Document:
    """Return a fleet answer as blocks, with `FleetAnswer.to_dict` as data."""
    plan = answer.plan
    warnings = [*answer.warnings, *old_price_lines(answer.prices)]

    blocks: list[Block] = [
        Headline(_headline(answer)),
        _key_figures(answer),
        *(Note(warning, "warning") for warning in warnings),
        Section("Who runs where", [_served_table(plan)]),
    ]
    if answer.settings:
        replicas = [f"{name}: {of.start_up.line()}" for name, of in answer.settings.items()]
        blocks.append(Section("What a replica takes", [Facts(replicas)]))
    if plan.unserved:
        blocks.append(Section("Not served", _unserved_blocks(answer)))

    pools = [
        (
            use.pool.pool_id,
            f"{use.nodes_used} of {use.pool.nodes}",
            f"{use.devices_used} of {use.pool.nodes * use.pool.devices_per_node}",
            usd_number(use.usd_per_hour),
            usd_number(use.idle_usd_per_hour),
        )
        for use in plan.pools
    ]
    priced = Note(origin_line(answer.prices))
    pool_section = Section("Pools", [Table(_POOL_HEADER, pools), priced])

    teams = [
        (
            use.team,
            f"{use.n_served} of {use.n_demands}",
            f"{use.devices}",
            usd_number(use.usd_per_hour),
        )
        for use in plan.teams()
    ]
    blocks.append(Beside([pool_section, Section("Teams", [Table(_TEAM_HEADER, teams)])]))

    changes = [
        (f"one node more of {worth.pool_id}", _worth_words(worth)) for worth in answer.further_nodes
    ]
    changes += [
        (f"limits of {worth.demand_id} {worth.factor:g} times as high", _worth_words(worth))
        for worth in answer.looser_limits
    ]
    title = "What would change it, solved again with that change"
    blocks.append(Section(title, [Table((), changes, {0, 1})]))
    title = "Fleet: which team gets which GPUs"
    return Document(title, blocks, answer.to_dict(), origin=origin, kind="Sextant: fleet")


def _key_figures(answer: FleetAnswer) -> KeyFigures:
    """Return how many are served, the price and its idle part, and how sure all of it is."""
    plan = answer.plan
    n_demands = len(plan.served) + len(plan.unserved)
    is_whole = not plan.unserved
    tone: Tone = "good" if is_whole else "doubt" if plan.served else "bad"
    figures = [KeyFigure("Served", f"{len(plan.served)} of {n_demands}", "demands", tone)]
    if plan.served:
        idle = sum(use.idle_usd_per_hour for use in plan.pools)
        figures.append(price_figure(plan.usd_per_hour, f"{usd_words(idle)} of it idle"))
        figures.append(chance_figure("All meet their limits at once", plan.joint_probability_met))
    return KeyFigures(figures)


def _headline(answer: FleetAnswer) -> str:
    """Return how many are served, at what cost and probability, in one line."""
    plan = answer.plan
    n_demands = len(plan.served) + len(plan.unserved)
    if not plan.served:
        return f"None of {plural(n_demands, 'demand')} can be served"

    joint = chance(plan.joint_probability_met)
    independent = chance(plan.product_probability_met)
    return (
        f"{len(plan.served)} of {plural(n_demands, 'demand')} served for "
        f"{usd_words(plan.usd_per_hour)} "
        f"(at most {ceil(1e4 * plan.gap) / 100:g} % above the least cost); each meets its limits "
        f"with probability {1 - answer.risk:.10g} or more, all at once {joint} ({independent} if "
        "their errors were independent)"
    )


def _served_table(plan: FleetPlan) -> Table:
    rows = [
        (
            served.demand.demand_id,
            served.demand.team,
            served.demand.llm_id,
            f"{served.replicas} × {served.gpu_profile_id}",
            nodes_words(plan, served.demand.demand_id),
            usd_number(served.usd_per_hour),
            chance(served.probability_met),
        )
        for served in plan.served
    ]
    return Table(_SERVED_HEADER, rows, range(5))


def nodes_words(plan: FleetPlan, demand_id: str) -> str:
    """Return the nodes of a demand, e.g. `rack 0-3,7`."""

    def node_order(placement: Placement) -> tuple[str, int]:
        return placement.pool_id, placement.node

    ranges_by_pool: defaultdict[str, list[list[int]]] = defaultdict(list)
    for placement in sorted(plan.placements, key=node_order):
        if placement.demand_id != demand_id:
            continue
        ranges = ranges_by_pool[placement.pool_id]
        if ranges and placement.node <= ranges[-1][1] + 1:
            ranges[-1][1] = placement.node
        else:
            ranges.append([placement.node, placement.node])

    return ", ".join(
        f"{pool_id} {','.join('-'.join(map(str, dict.fromkeys(ends))) for ends in ranges)}"
        for pool_id, ranges in ranges_by_pool.items()
    )


def _unserved_blocks(answer: FleetAnswer) -> list[Block]:
    plan = answer.plan
    blocks: list[Block] = []
    if plan.most_served > len(plan.served):
        text = f"Up to {plan.most_served} may be possible: the time limit ended the search."
        blocks.append(Note(text))
    if len(answer.conflict) > 1:
        text = "cannot all be served; without any one of them the others can."
        blocks.append(Note(f"{_few(answer.conflict)} {text}"))

    words = {mend.demand_id: mend_words(mend) for mend in answer.mends}
    rows = [
        (demand.demand_id, demand.team, demand.priority, words.get(demand.demand_id))
        for demand in plan.unserved
    ]
    return [*blocks, Table(_UNSERVED_HEADER, rows, {0, 1, 3})]


def _few(demand_ids: Sequence[str]) -> str:
    if len(demand_ids) <= _N_NAMED:
        return joined(demand_ids)
    return f"{len(demand_ids)} demands (in JSON)"


def mend_words(mend: Mend) -> str:
    """Return why a demand is not served, and what would help."""
    why = "no room is left" if mend.reason == "no_room" else "no GPU profile meets its limits"
    ways = [
        f"{plural(n_nodes, 'more node')} of {pool_id}"
        for pool_id, n_nodes in mend.more_nodes.items()
    ]
    if mend.limit_factor is not None:
        ways.append(f"limits {mend.limit_factor:g} times as high")
    return f"{why}. What would help: {', or '.join(ways) or 'nothing that was tried'}."


def _worth_words(worth: ChangeWorth) -> str:
    saved = worth.usd_per_hour_saved
    if worth.serves:
        dropped = f" in place of {_few(worth.drops)}" if worth.drops else ""
        sign = "-" if saved > 0 else "+"
        return f"serves {_few(worth.serves)}{dropped}, {sign}{usd_words(abs(saved))}"

    bound = worth.at_most_usd_per_hour
    at_most = f" (at most {usd_number(bound)})" if bound > max(1.01 * saved, 0.01) else ""
    return f"saves {usd_words(saved)}{at_most}" if saved >= 0.005 or at_most else "nothing"


_STRINGS = ("source", "demand_id", "team", "llm_id", "status", "gpu_profile_id", "nodes", "mend")
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _STRINGS),
        *((name, pa.int64()) for name in ("priority", "replicas")),
        *((name, pa.float64()) for name in ("usd_per_hour", "probability_met")),
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

    Args:
        inputs: paths of the tables `point` and `feasibility`, of the sheets `demands` and `supply`,
            and of `traces`, which lie in one folder.
        experiment: of the run.
        outputs: paths of the `table`, the `html` page and its `json`.
        source: the characterization.
        decision: the workload and the scenario of its points.
        seed: of all random numbers.
        gpus: the folder of the facts of devices.
    """
    traces = [Path(trace) for trace in inputs["traces"]]
    demands = Path(inputs["demands"])
    question = FleetQuestion(
        demands=demands,
        supply=Path(inputs["supply"]),
        traces=traces[0].parent if traces else demands.parent,
        base=Question(
            MEDIANS,
            characterization=load_run(inputs, experiment, source, decision),
            seed=seed,
        ),
        gpus=Path(gpus),
    )
    answer = answer_sheets(question)

    # Fields of a demand and of what serves it; a field without a column is left out.
    plan = answer.plan
    rows = [
        {"source": source, "status": "served", "nodes": nodes_words(plan, served.demand.demand_id)}
        | asdict(served.demand)
        | asdict(served)
        for served in plan.served
    ]
    mends = {mend.demand_id: mend_words(mend) for mend in answer.mends}
    rows += [
        {"source": source, "status": "unserved", "mend": mends.get(demand.demand_id)}
        | asdict(demand)
        for demand in plan.unserved
    ]

    files = {name: inputs[name] for name in ("point", "feasibility", "demands", "supply")}
    origin = provenance(files | {trace.stem: trace for trace in traces}, seed=seed)
    document = fleet_document(answer, origin)
    data = {**document.data, "text": as_text(document), "provenance": origin}
    write_results(outputs, rows, _SCHEMA, replace(document, data=data))
