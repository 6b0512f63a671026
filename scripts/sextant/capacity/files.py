"""The files of rule `size_capacity`: a table, a page and JSON of all LLMs for one SLO."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from sextant.answer.results import write_results
from sextant.ask.question import Question
from sextant.ask.traffic import (
    DrawnTraffic,
    TraceTraffic,
    demand_of_trace,
    traffic_at_rate,
)
from sextant.base.errors import InputError
from sextant.base.files import provenance
from sextant.capacity.answer import CapacityAnswer
from sextant.capacity.capacity import answer_capacity
from sextant.capacity.document import (
    asked_words,
    capacity_document,
    capacity_headline,
    capacity_sections,
)
from sextant.capacity.question import CapacityQuestion
from sextant.decide.windows import WINDOW_S, Target
from sextant.experiment.experiment import Experiment
from sextant.experiment.servers import REHEARSAL_NOTE, SIMULATED
from sextant.facts.slo import SLO
from sextant.pages.blocks import Block, Document, Headline, Note, Section, as_text
from sextant.points.measured import load_run
from sextant.trace.choice import TraceChoice
from sextant.workload.lengths import Length, RequestLengths
from sextant.workload.requests import RequestStream, ScalableTraffic, mean_lengths_of

_STRINGS = ("source", "slo_id", "trace_id", "llm_id", "gpu_profile_id", "status", "binds")
_NUMBERS = ("usd_per_hour", "probability_met", "rate_at_slo_rps", "refused_share", "alone_ratio")
_COUNTS = ("replicas", "replicas_lo", "replicas_hi", "n_refused")
# Only the row of the chosen GPU profile has the last two: windows, and those missed by a failure.
_SCHEMA = pa.schema(
    [
        *((name, pa.string()) for name in (*_STRINGS, "alone_limit", "reason")),
        *((name, pa.float64()) for name in _NUMBERS),
        *((name, pa.bool_()) for name in ("is_gpu_measured", "is_chosen")),
        *((name, pa.int64()) for name in (*_COUNTS, "n_windows", "n_windows_missed_by_failure")),
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
        inputs: paths of tables `point` and `feasibility`, of the SLO's `trace`, or of `requests`
            in the folder of the workload that arrives at its rate; the workload's caps shorten
            requests.
        experiment: the sheets.
        slo: limits and load.
        outputs: paths of the `table`, the `html` page and its `json`.
        source: names the characterization.
        decision: the workload and scenario of its points.
        seed: of the traffic and the draws.
    """
    window_s = WINDOW_S if slo.window_s is None else slo.window_s or None
    workload = experiment.workloads[decision["workload_id"]]
    traffic, notes = _traffic(slo, inputs, window_s, workload, seed)
    if source.startswith(SIMULATED):
        notes = [REHEARSAL_NOTE, *notes]
    requests = traffic.drawn(0)
    steady = None
    if slo.window_s is None and isinstance(traffic, DrawnTraffic):
        steady = traffic.steady()  # judged as a whole, as on the command line
    target = Target(slo.limits, slo.goodput, slo.allowed_failures, None if steady else window_s)
    characterization = load_run(inputs, experiment, source, decision)

    answers: list[CapacityAnswer] = []
    no_answer = {}
    for llm_id in experiment.llms:
        question = Question(
            slo,
            llm_id,
            characterization=characterization,
            requests=mean_lengths_of(requests),
            seed=seed,
        )
        capacity_question = CapacityQuestion(question, traffic, target, steady=steady)
        try:
            answers.append(answer_capacity(capacity_question, notes))
        except InputError as error:
            no_answer[llm_id] = str(error)

    key = {"source": source, "slo_id": slo.slo_id, "trace_id": slo.trace_id}
    _write(outputs, key, requests, slo, answers, no_answer, provenance(dict(inputs), seed=seed))


def _write(
    outputs: Mapping[str, str | Path],
    key: Mapping[str, str | None],
    requests: RequestStream,
    slo: SLO,
    answers: Sequence[CapacityAnswer],
    no_answer: Mapping[str, str],
    origin: Mapping[str, Any],
) -> None:
    """Write table, page and JSON.

    Args:
        outputs: paths, as `size_files` takes them.
        key: columns that all rows of the table have.
        requests: what arrives.
        slo: limits and load.
        answers: one per LLM that has an answer.
        no_answer: why the other LLMs have none.
        origin: of the results.
    """
    rows: list[dict[str, Any]] = []
    for answer in answers:
        for outcome in answer.alternatives:
            row = {**key, **outcome.to_dict(), "llm_id": answer.llm_id, "is_chosen": False}
            if outcome.gpu_profile_id == answer.chosen.gpu_profile_id and answer.findings:
                windows = answer.findings.failure.windows
                row |= {
                    "is_chosen": True,
                    "n_windows": windows.n_windows,
                    "n_windows_missed_by_failure": windows.n_windows_missed,
                }
            rows.append(row)
    for llm_id, reason in no_answer.items():
        rows.append({**key, "llm_id": llm_id, "status": "no_answer", "reason": reason})

    data = {
        "slo": slo.facts(),
        "demand": requests.facts(),
        "no_answer": no_answer,
        "answers": [
            answer.to_dict() | {"text": as_text(capacity_document(answer))} for answer in answers
        ],
        "provenance": origin,
    }

    warnings = [f"{llm_id} has no answer: {reason}" for llm_id, reason in no_answer.items()]
    warnings += dict.fromkeys(line for answer in answers for line in answer.all_warnings)
    blocks: list[Block] = [] if answers else [Headline("No LLM has an answer.")]
    blocks += [Note(text, "warning") for text in warnings]
    for answer in answers:
        headline = Headline(capacity_headline(answer))
        blocks.append(Section(answer.llm_id, [headline, *capacity_sections(answer)]))
    subtitle = asked_words(answers[0]) if answers else f"for the traffic of {requests.name}"
    document = Document(f"Capacity: {slo.slo_id}", blocks, data, subtitle, origin)
    write_results(outputs, rows, _SCHEMA, document)


def _traffic(
    slo: SLO,
    inputs: Mapping[str, str | Path],
    window_s: float | None,
    workload: Mapping[str, Any],
    seed: int,
) -> tuple[ScalableTraffic, list[str]]:
    """Return the traffic, and a note where the workload's caps shorten requests of the trace."""
    if slo.trace_id is None:
        lengths = [Length(mean, mean) for mean in slo.lengths.values()]
        requests = RequestLengths(*lengths) if lengths else None
        folder = Path(inputs["requests"]).parent
        return traffic_at_rate(slo.load, folder, requests, first_seed=seed), []
    choice = TraceChoice(slo.llm, slo.service)
    demand = demand_of_trace(inputs["trace"], window_s=window_s or WINDOW_S, choice=choice)
    sides = ("input_tokens", "output_tokens")
    caps = {side: np.minimum(getattr(demand, side), workload[f"max_{side}"]) for side in sides}
    n_capped = int(sum((caps[side] < getattr(demand, side)) for side in sides).astype(bool).sum())
    if not n_capped:
        return TraceTraffic(demand, window_s).busiest_part(), []
    note = (
        f"{n_capped:,} of {demand.n:,} requests are shortened to the caps of the workload "
        f"{workload['workload_id']}, as in the measurements."
    )
    return TraceTraffic(replace(demand, **caps), window_s).busiest_part(), [note]
