"""A fleet answer for people and for rule `plan_fleet`: blocks, table, page and JSON."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from math import ceil
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from sextant.answer.answer import write_results
from sextant.base.files import provenance
from sextant.decide.fleet import FleetAnswer, FleetPlan, Mend, Worth
from sextant.experiment.experiment import Experiment
from sextant.facts.gpu import old_price_lines, origin_line, price_origins
from sextant.fleet.fleet import answer_sheets
from sextant.pages.blocks import Block, Document, Headline, Note, Section, Table, as_text
from sextant.pages.words import chance, joined, plural
from sextant.points.measured import load_run

_N_NAMED = 10


def fleet_document(answer: FleetAnswer, origin: Mapping[str, Any] | None = None) -> Document:
    """Return a fleet answer: blocks, and as data the fields of `FleetAnswer` and `prices`."""
    plan = answer.plan
    pools = (use.pool for use in plan.pools)
    prices = price_origins((pool.price_source, pool.price_as_of) for pool in pools)
    data = asdict(answer) | {"prices": [each._asdict() for each in prices]}
    served = [
        (
            *(each.demand.demand_id, each.demand.team, each.demand.llm_id),
            f"{each.replicas} × {each.gpu_profile_id}",
            nodes_words(plan, each.demand.demand_id),
            *(f"{each.usd_per_hour:.2f}", chance(each.probability_met)),
        )
        for each in plan.served
    ]
    header = ["Demand", "Team", "LLM", "Replicas", "Nodes", "USD/h", "Probability"]
    in_use = [
        (
            use.pool.pool_id,
            f"{use.nodes_used} of {use.pool.nodes}",
            f"{use.devices_used} of {use.pool.nodes * use.pool.devices_per_node}",
            *(f"{use.usd_per_hour:.2f}", f"{use.idle_usd_per_hour:.2f}"),
        )
        for use in plan.pools
    ]
    pool_header = ["Pool", "Nodes in use", "Devices in use", "USD/h", "Of it idle"]
    changes = [(f"one node more of {it.pool_id}", _worth_words(it)) for it in answer.further_nodes]
    for each in answer.looser_limits:
        change = f"limits of {each.demand_id} {each.factor:g} times as high"
        changes.append((change, _worth_words(each)))
    blocks: list[Block] = [
        Headline(_headline(answer)),
        *(Note(text, "warning") for text in (*answer.warnings, *old_price_lines(prices))),
        Section("Who runs where", [Table(header, served, range(5))]),
        *([Section("Not served", _unserved_blocks(answer))] if plan.unserved else []),
        Section("Pools", [Table(pool_header, in_use), Note(origin_line(prices))]),
        Section("Teams", [_team_table(plan)]),
        Section(
            "What would change it, solved again with that change", [Table((), changes, {0, 1})]
        ),
    ]
    return Document("Fleet: which team gets which GPUs", blocks, data, origin=origin)


def _headline(answer: FleetAnswer) -> str:
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


def nodes_words(plan: FleetPlan, demand_id: str) -> str:
    """Return the nodes of a demand, e.g. `rack 0-3,7`."""
    nodes: defaultdict[str, list[list[int]]] = defaultdict(list)
    for each in sorted(plan.placements, key=lambda place: (place.pool_id, place.node)):
        if each.demand_id == demand_id:
            runs = nodes[each.pool_id]
            if runs and each.node <= runs[-1][1] + 1:
                runs[-1][1] = each.node
            else:
                runs.append([each.node, each.node])
    return ", ".join(
        f"{name} {','.join('-'.join(map(str, dict.fromkeys(run))) for run in runs)}"
        for name, runs in nodes.items()
    )


def _unserved_blocks(answer: FleetAnswer) -> list[Block]:
    plan, blocks = answer.plan, list[Block]()
    if plan.most_served > len(plan.served):
        text = f"Up to {plan.most_served} may be possible: the time limit ended the search."
        blocks.append(Note(text))
    if len(answer.conflict) > 1:
        text = "cannot all be served; without any one of them the others can."
        blocks.append(Note(f"{_few(answer.conflict)} {text}"))
    mends = {mend.demand_id: mend_words(mend) for mend in answer.mends}
    rows = [(it.demand_id, it.team, it.priority, mends.get(it.demand_id)) for it in plan.unserved]
    return [*blocks, Table(["Demand", "Team", "Priority", "Why, and what helps"], rows, {0, 1, 3})]


def _few(names: Sequence[str]) -> str:
    return joined(names) if len(names) <= _N_NAMED else f"{len(names)} demands (in JSON)"


def mend_words(mend: Mend) -> str:
    """Return why a demand is not served, and what would help."""
    why = "no room is left" if mend.reason == "no_room" else "no GPU profile meets its limits"
    ways = [f"{plural(n, 'more node')} of {name}" for name, n in mend.more_nodes.items()]
    if mend.limit_factor is not None:
        ways.append(f"limits {mend.limit_factor:g} times as high")
    return f"{why}. What would help: {', or '.join(ways) or 'nothing that was tried'}."


def _team_table(plan: FleetPlan) -> Table:
    rows = [
        (each.demand.team, 1, each.replicas * each.n_gpus, each.usd_per_hour)
        for each in plan.served
    ]
    rows += [(each.team, 0, 0, 0.0) for each in plan.unserved]
    frame = pd.DataFrame(rows, columns=["team", "served", "devices", "usd"])
    teams = frame.groupby("team", sort=False).agg("sum").assign(n=frame["team"].value_counts())
    lines = [
        (str(each.Index), f"{each.served} of {each.n}", f"{each.devices}", f"{each.usd:.2f}")
        for each in teams.itertuples()
    ]
    return Table(["Team", "Demands served", "Devices", "USD/h"], lines)


def _worth_words(worth: Worth) -> str:
    saved = worth.usd_per_hour_saved
    if worth.serves:
        dropped = f" in place of {_few(worth.drops)}" if worth.drops else ""
        return f"serves {_few(worth.serves)}{dropped}, {-saved:+.2f} USD/h"
    bound = worth.at_most_usd_per_hour
    at_most = f" (at most {bound:.2f})" if bound > max(1.01 * saved, 0.01) else ""
    return f"saves {saved:.2f} USD/h{at_most}" if saved >= 0.005 or at_most else "nothing"


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
    `inputs` are paths of tables `point` and `feasibility`, of the sheets `demands` and `supply`,
    and of `traces`, which lie in one folder; `outputs` those of the `table`, the `html` page and
    its `json`. `source` names the characterization, `decision` the workload and scenario of its
    points; `gpus` is the folder of the facts of devices."""
    traces = [Path(each) for each in inputs["traces"]]
    demands, supply = Path(inputs["demands"]), Path(inputs["supply"])
    folder = traces[0].parent if traces else demands.parent
    measurements = {"known": load_run(inputs, experiment, source, decision), "seed": seed}
    answer = answer_sheets(demands, supply, folder, measurements, gpus=Path(gpus))
    plan, mends = answer.plan, {each.demand_id: mend_words(each) for each in answer.mends}
    # Columns of the table are fields of a demand, or of what serves it; others are null.
    rows = [
        {"source": source, "status": "served", "nodes": nodes_words(plan, each.demand.demand_id)}
        | vars(each.demand)
        | vars(each)
        for each in plan.served
    ]
    rows += [
        {"source": source, "status": "unserved", "mend": mends.get(each.demand_id)} | vars(each)
        for each in plan.unserved
    ]
    single = {name: inputs[name] for name in ("point", "feasibility", "demands", "supply")}
    origin = provenance(single | {path.stem: path for path in traces}, seed=seed)
    document = fleet_document(answer, origin)
    more = {"text": as_text(document), "provenance": origin}
    data = {**document.data, **more}
    write_results(outputs, rows, _SCHEMA, replace(document, data=data))
