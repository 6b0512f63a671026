"""Answers that compare latencies with limits by eq. 1-3: measurements, and other predictors."""

from dataclasses import replace
from typing import Any

from sextant.advice.question import Question
from sextant.advice.source import Source
from sextant.base.errors import InputError
from sextant.base.rows import frame_rows
from sextant.characterizations.features import Facts
from sextant.decide.evaluate import evaluate
from sextant.decide.names import MEASURED
from sextant.decide.pairs import ruled_out, task_of
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM
from sextant.predict.folds import Task
from sextant.predict.parallel import ALL_CPUS


def compare(
    question: Question,
    llm_id: str,
    llm: LLM,
    source: Source,
    profiles: dict[str, GPUProfile],
    basis: str,
) -> dict[str, Any]:
    """Return the recommendation of one LLM, with every GPU profile and its miss.

    Raises:
        InputError: the predictor learns from features that the LLM lacks, or from more LLMs.
    """
    known = source.known
    if basis != MEASURED and known.features is not None and llm_id not in known.features.llms.index:
        problem = f"{known.source} has features of its own LLMs only, not of {llm_id!r}"
        fix = "use --predictor roofline, or ask a source that you measured"
        raise InputError(problem, field="--predictor", fix=fix)
    excluded = ruled_out(llm, profiles, source.longest_request_tokens, source.memory_utilization)
    tried = known.feasibility[known.feasibility["llm_id"] == llm_id]
    reasons = dict(zip(tried["gpu_profile_id"], tried["reason"], strict=True)) | excluded
    task = _task(llm_id, llm, source, profiles, set(excluded))
    result = evaluate(task, [question.slo], basis, question.seed, n_jobs=ALL_CPUS)
    chosen = result.recommendations.query("llm_id == @llm_id")
    if chosen.empty:
        note = result.scores["note"].iloc[0]
        raise InputError(f"no prediction is possible ({note})", fix="measure more LLMs")
    options = result.candidates.query("llm_id == @llm_id")
    rows = frame_rows(options.drop(columns=["source", "slo_id", "predictor"]))
    for row in rows:
        is_ruled_out = row["status"] == "does_not_fit"
        row["reason"] = reasons.get(row["gpu_profile_id"]) if is_ruled_out else None
    return {**frame_rows(chosen)[0], "basis": basis, "alternatives": rows}


def _task(
    llm_id: str, llm: LLM, source: Source, profiles: dict[str, GPUProfile], excluded: set[str]
) -> Task:
    known = source.known
    task = task_of(
        known.source,
        known.points[known.points["gpu_profile_id"].isin(profiles)],
        known.feasibility,
        Facts({**known.llms, llm_id: llm}, profiles, known.features),
        known.longest_request_tokens,
        source.memory_utilization,
    )
    others = {pair for pair in task.feasible if pair[0] != llm_id}
    own = {(llm_id, name) for name in profiles if name not in excluded}
    return replace(task, feasible=others | own)
