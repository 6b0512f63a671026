"""From the files of the pipeline to the capacity of each LLM for an SLO with a trace."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sextant.advice.question import Question
from sextant.base.errors import InputError
from sextant.base.files import provenance, write_parquet
from sextant.capacity.answer import Asked, capacity
from sextant.capacity.demand import Demand, TraceTraffic, demand_of_trace, requests_of_demand
from sextant.capacity.page import write_answers
from sextant.capacity.target import MAX_FAILED, WINDOW_S, Target
from sextant.experiment.experiment import Experiment
from sextant.experiment.slo import SLO
from sextant.store.build import build_store, gpu_profile_rows, gpu_rows, llm_rows

COLUMNS = {
    "status": pa.string(),
    "replicas": pa.int64(),
    "usd_per_hour": pa.float64(),
    "probability_met": pa.float64(),
    "replicas_lo": pa.int64(),
    "replicas_hi": pa.int64(),
    "rate_at_slo_rps": pa.float64(),
    "alone_limit": pa.string(),
    "alone_ratio": pa.float64(),
    "reason": pa.string(),
}
"""What table `capacity` has of a GPU profile, beside its key and `is_chosen`."""
_KEY = ("source", "slo_id", "trace_id", "llm_id", "gpu_profile_id")


def size_files(
    inputs: Mapping[str, str | Path],
    experiment: Experiment,
    slo: SLO,
    outputs: Mapping[str, str | Path],
    *,
    source: str,
    decision: Mapping[str, str],
    seed: int,
) -> None:
    """Find the capacity of each LLM for the traffic of a trace, and write it.

    Args:
        inputs: paths of tables `point` and `feasibility`, and of the `trace`.
        experiment: facts of LLMs and GPU profiles; its workload's caps shorten the requests.
        slo: limits, with a trace.
        outputs: paths of the `table`, the `html` page and its `json`.
        source: name of the characterization.
        decision: `workload_id` and `scenario_id` of the points.
        seed: of draws.
    """
    window_s = WINDOW_S if slo.window_s is None else slo.window_s or None
    demand = demand_of_trace(inputs["trace"], window_s=window_s or WINDOW_S)
    demand, notes = _capped(demand, experiment.workloads[decision["workload_id"]])
    traffic = TraceTraffic(demand, window_s)
    max_failed = MAX_FAILED if slo.max_failed is None else slo.max_failed
    target = Target(slo.limits, slo.goodput, max_failed, window_s)
    answers, rows = [], []
    with tempfile.TemporaryDirectory() as scratch:
        store = _store(Path(scratch) / "sextant.duckdb", inputs, experiment, source, decision)
        for llm_id in experiment.llms:
            lengths = requests_of_demand(demand)
            question = Question(slo, llm_id, database=store, requests=lengths, seed=seed)
            place = {"source": source, "slo_id": slo.slo_id, "trace_id": slo.trace_id}
            try:
                answer = capacity(Asked(question, traffic, target, seed=seed), notes)
            except InputError as error:
                rows.append(
                    {**place, "llm_id": llm_id, "status": "no_answer", "reason": str(error)}
                )
                continue
            answer["characterization"]["origin"] = "this run"
            answers.append(answer)
            rows += [place | row for row in _rows(answer)]
    schema = pa.schema([(name, pa.string()) for name in _KEY] + list(COLUMNS.items()))
    schema = schema.append(pa.field("is_chosen", pa.bool_()))
    origin = provenance(dict(inputs), seed=seed)
    write_parquet(outputs["table"], pa.Table.from_pylist(rows, schema=schema), origin)
    write_answers(answers, slo, demand.facts(), origin, outputs["html"], outputs["json"])


def _capped(demand: Demand, workload: Mapping[str, Any]) -> tuple[Demand, list[str]]:
    """Return the requests as the workload's caps shorten them, and what to say of it."""
    sides = ("input_tokens", "output_tokens")
    caps = {side: np.minimum(getattr(demand, side), workload[f"max_{side}"]) for side in sides}
    n_capped = int(sum((caps[side] < getattr(demand, side)) for side in sides).astype(bool).sum())
    if not n_capped:
        return demand, []
    note = (
        f"{n_capped:,} of {demand.n:,} requests are shortened to the caps of the workload "
        f"{workload['workload_id']}, as in the measurements."
    )
    return replace(demand, **caps), [note]


def _store(
    path: Path,
    inputs: Mapping[str, str | Path],
    experiment: Experiment,
    source: str,
    decision: Mapping[str, str],
) -> Path:
    rows: dict[str, Sequence[Mapping]] = {
        "llm": llm_rows(experiment.llm_facts),
        "gpu": gpu_rows(experiment.profiles),
        "gpu_profile": gpu_profile_rows(experiment.profiles),
        "workload": list(experiment.workloads.values()),
        "decision": [{**decision, "source": source}],
    }
    build_store(path, rows, {name: [Path(inputs[name])] for name in ("point", "feasibility")})
    return path


def _rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {name: row[name] for name in ("gpu_profile_id", *COLUMNS)}
        | {
            "llm_id": answer["llm_id"],
            "is_chosen": row["gpu_profile_id"] == answer["gpu_profile_id"],
        }
        for row in answer["alternatives"]
    ]
