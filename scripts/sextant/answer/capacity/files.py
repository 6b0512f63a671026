"""Rule `size_capacity`: the capacity of each LLM for an SLO, from files to table, page and JSON."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sextant.answer.answer import write_results
from sextant.answer.capacity.answer import CapacityQuestion, answer_capacity
from sextant.answer.capacity.document import capacity_document, capacity_documents
from sextant.answer.capacity.traffic import TraceTraffic, demand_of_trace, traffic_at_rate
from sextant.answer.demand import WINDOW_S, Target, Traffic, requests_of_demand
from sextant.answer.question import Length, Question, Requests
from sextant.base.errors import InputError
from sextant.base.files import provenance
from sextant.experiment.experiment import Experiment
from sextant.facts.slo import SLO
from sextant.pages.blocks import as_text
from sextant.points.measured import load_run

_KEY = ("source", "slo_id", "trace_id", "llm_id", "gpu_profile_id")
_COLUMNS = {
    "status": pa.string(),
    "replicas": pa.int64(),
    "usd_per_hour": pa.float64(),
    "probability_met": pa.float64(),
    "replicas_lo": pa.int64(),
    "replicas_hi": pa.int64(),
    "rate_at_slo_rps": pa.float64(),
    "binds": pa.string(),
    "n_refused": pa.int64(),
    "refused_share": pa.float64(),
    "alone_limit": pa.string(),
    "alone_ratio": pa.float64(),
    "is_gpu_measured": pa.bool_(),
    "reason": pa.string(),
}
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in _KEY),
        *_COLUMNS.items(),
        ("is_chosen", pa.bool_()),
        # Of the chosen profile alone, where a replica fails:
        ("n_windows", pa.int64()),
        ("n_windows_missed_by_failure", pa.int64()),
    ]
)


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
    """Size each LLM for the traffic of an SLO, and write table, page and JSON.

    Args:
        inputs: paths of tables `point` and `feasibility`; of the SLO's `trace`, or of `requests`
            in the folder of the workload that arrives at the SLO's rate.
        experiment: facts of LLMs and GPU profiles; its workload's caps shorten the requests.
        slo: limits, with a trace or a rate.
        outputs: paths of the `table`, the `html` page and its `json`.
        source: name of the characterization.
        decision: `workload_id` and `scenario_id` of the points.
        seed: of draws.
    """
    window_s = WINDOW_S if slo.window_s is None else slo.window_s or None
    workload = experiment.workloads[decision["workload_id"]]
    traffic, notes = _traffic(slo, inputs, window_s, workload, seed)
    demand = traffic.drawn(0)
    lengths = requests_of_demand(demand)
    target = Target(slo.limits, slo.goodput, slo.allowed_failures, window_s)
    answers, no_answer = [], {}
    known = load_run(inputs, experiment, source, decision)
    for llm_id in experiment.llms:
        question = Question(slo, llm_id, known=known, requests=lengths, seed=seed)
        try:
            asked = CapacityQuestion(question, traffic, target, seed=seed)
            answer = answer_capacity(asked, notes).data
            text = as_text(capacity_document(answer))
            answers.append(answer | {"text": text})
        except InputError as error:
            no_answer[llm_id] = str(error)
    rows = [row for answer in answers for row in _rows(answer)]
    rows += [
        {"llm_id": llm_id, "status": "no_answer", "reason": why}
        for llm_id, why in no_answer.items()
    ]
    place = {"source": source, "slo_id": slo.slo_id, "trace_id": slo.trace_id}
    facts = {"slo": slo.facts(), "demand": demand.facts(), "no_answer": no_answer}
    document = capacity_documents(answers, facts, provenance(dict(inputs), seed=seed))
    write_results(outputs, [place | row for row in rows], _SCHEMA, document)


def _traffic(
    slo: SLO,
    inputs: Mapping[str, str | Path],
    window_s: float | None,
    workload: Mapping[str, Any],
    seed: int,
) -> tuple[Traffic, list[str]]:
    """Return the traffic, and notes about it: a workload's caps shorten a trace's requests."""
    if slo.trace_id is None:
        lengths = [Length(mean, mean) for mean in slo.lengths.values()]
        requests = Requests(*lengths) if lengths else None
        folder = Path(inputs["requests"]).parent
        return traffic_at_rate(slo.load, folder, requests, first_seed=seed), []
    demand = demand_of_trace(inputs["trace"], window_s=window_s or WINDOW_S)
    sides = ("input_tokens", "output_tokens")
    caps = {side: np.minimum(getattr(demand, side), workload[f"max_{side}"]) for side in sides}
    n_capped = int(sum((caps[side] < getattr(demand, side)) for side in sides).astype(bool).sum())
    if not n_capped:
        return TraceTraffic(demand, window_s), []
    note = (
        f"{n_capped:,} of {demand.n:,} requests are shortened to the caps of the workload "
        f"{workload['workload_id']}, as in the measurements."
    )
    return TraceTraffic(replace(demand, **caps), window_s), [note]


def _rows(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for row in answer["alternatives"]:
        is_chosen = row["gpu_profile_id"] == answer["gpu_profile_id"]
        about = {"llm_id": answer["llm_id"], "is_chosen": is_chosen}
        if is_chosen:
            failure = answer["failure"]
            about["n_windows"] = failure["n_windows"]
            about["n_windows_missed_by_failure"] = failure["n_windows_missed"]
        rows.append({name: row[name] for name in ("gpu_profile_id", *_COLUMNS)} | about)
    return rows
