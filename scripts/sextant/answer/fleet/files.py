"""From the files of the pipeline to the fleet's plan: a table, a page, and JSON."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from sextant.answer.fleet import answer_text as text
from sextant.answer.fleet.options import Asked, fleet
from sextant.answer.fleet.page import write_fleet
from sextant.answer.fleet.problem import FleetAnswer
from sextant.base.files import provenance, write_parquet
from sextant.experiment.experiment import Experiment
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
"""Table `fleet`; `status` is `served` or `unserved`, `mend` what would have it served."""


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
    """Give the devices of the sheet of supply to the demands, and write who gets what.

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
    asked = Asked(
        Path(inputs["demands"]),
        Path(inputs["supply"]),
        traces=traces[0].parent if traces else Path(inputs["demands"]).parent,
        known=load_run(inputs, experiment, source, decision),
        seed=seed,
        gpus=Path(gpus),
    )
    answer = fleet(asked)
    single = {name: inputs[name] for name in ("point", "feasibility", "demands", "supply")}
    origin = provenance(single | {path.stem: path for path in traces}, seed=seed)
    rows = [{"source": source, **row} for row in _rows(answer)]
    write_parquet(outputs["table"], pa.Table.from_pylist(rows, schema=SCHEMA), origin)
    write_fleet(answer, outputs["html"], outputs["json"], origin)


def _rows(answer: FleetAnswer) -> list[dict[str, Any]]:
    plan = answer.plan
    rows = [
        {
            **_key(each.demand),
            "status": "served",
            "gpu_profile_id": each.gpu_profile_id,
            "replicas": max(each.replicas),
            "usd_per_hour": each.usd_per_hour,
            "probability_met": each.probability_met,
            "nodes": text.nodes_words(plan, each.demand.demand_id),
        }
        for each in plan.served
    ]
    mends = {each.demand_id: text.mend_words(each) for each in answer.mends}
    rows += [
        {**_key(each), "status": "unserved", "mend": mends.get(each.demand_id)}
        for each in plan.unserved
    ]
    return rows


def _key(demand: Any) -> dict[str, Any]:
    return {name: getattr(demand, name) for name in ("demand_id", "team", "llm_id", "priority")}
