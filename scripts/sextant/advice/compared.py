"""Answers that compare latencies with limits by eq. 1-3: measurements, and other predictors."""

from typing import Any

from joblib import cpu_count

from sextant.advice.predicted import exclusions
from sextant.advice.question import Question
from sextant.advice.source import Source
from sextant.base.errors import InputError
from sextant.base.rows import frame_rows
from sextant.characterizations.points import Pair
from sextant.decide.evaluate import MEASURED, evaluate
from sextant.decide.evaluation_job import allowed_pairs, failed_pairs
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM


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
    excluded = exclusions(llm, source, profiles)
    tried = known.feasibility[known.feasibility["llm_id"] == llm_id]
    reasons = dict(zip(tried["gpu_profile_id"], tried["reason"], strict=True)) | excluded
    result = evaluate(
        known.points[known.points["gpu_profile_id"].isin(profiles)],
        {**known.llms, llm_id: llm},
        profiles,
        [question.slo],
        basis,
        known.source,
        question.seed,
        features=known.features,
        feasible=_allowed(llm_id, source, profiles, set(excluded), basis),
        n_jobs=cpu_count(),
    )
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


def _allowed(
    llm_id: str,
    source: Source,
    profiles: dict[str, GPUProfile],
    excluded: set[str],
    basis: str,
) -> set[Pair]:
    known = source.known
    others = allowed_pairs(
        known.llms,
        profiles,
        known.longest_request_tokens,
        source.memory_utilization,
        known.feasibility,
    )
    own = {(llm_id, name) for name in profiles if name not in excluded}
    pairs = {pair for pair in others if pair[0] != llm_id} | own
    return pairs - failed_pairs(known.feasibility) if basis == MEASURED else pairs
