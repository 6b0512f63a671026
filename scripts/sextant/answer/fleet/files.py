"""Rule `plan_fleet`: from the files of the pipeline to the fleet's table, page and JSON."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from sextant.answer.answer import write_results
from sextant.answer.fleet.document import fleet_document, mend_words, nodes_words
from sextant.answer.fleet.options import FleetQuestion, answer_sheets
from sextant.base.files import provenance
from sextant.decide.fleet import Demand
from sextant.experiment.experiment import Experiment
from sextant.pages.blocks import as_text
from sextant.points.measured import load_run

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

    Args:
        inputs: paths of tables `point` and `feasibility`, of the sheets `demands` and `supply`, and
            of `traces`, which lie in one folder.
        experiment: facts of LLMs and GPU profiles.
        outputs: paths of the `table`, the `html` page and its `json`.
        source: name of the characterization.
        decision: `workload_id` and `scenario_id` of the points.
        seed: of draws.
        gpus: folder of the facts of devices.
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
