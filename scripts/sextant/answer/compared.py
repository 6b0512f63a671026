"""Answers that compare latencies with limits by eq. 1-3: measurements, and other predictors."""

from dataclasses import replace
from typing import Any

import pandas as pd

from sextant.answer.question import Question
from sextant.answer.source import Source
from sextant.base.errors import InputError
from sextant.base.rows import frame_rows
from sextant.decide.decision import best_by_profile, choose, weigh
from sextant.decide.evaluate import evaluate
from sextant.decide.measured import measured_draws
from sextant.decide.names import MEASURED
from sextant.decide.outlook import beside, outlook
from sextant.decide.pairs import ruled_out, task_of
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.slo import SLO
from sextant.points.characterizations.features import Facts
from sextant.points.characterizations.points import IDENTIFIERS, at_percentile
from sextant.predict.folds import Task
from sextant.predict.parallel import ALL_CPUS

_OPTION = ["replicas", "users_per_replica", "usd_per_hour", "probability_met"]


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
    judged = known.feasibility[known.feasibility["llm_id"] == llm_id]
    reasons = dict(zip(judged["gpu_profile_id"], judged["reason"], strict=True)) | excluded
    task = _task(llm_id, llm, source, profiles, set(excluded))
    result = evaluate(task, [question.slo], basis, question.seed, n_jobs=ALL_CPUS)
    chosen = result.recommendations.query("llm_id == @llm_id")
    if chosen.empty:
        note = result.scores["note"].iloc[0]
        raise InputError(f"no prediction is possible ({note})", fix="measure more LLMs")
    (answer,) = frame_rows(chosen)
    options = result.candidates.query("llm_id == @llm_id")
    if basis == MEASURED and question.risk is not None:
        found, options = _at_risk(question, question.risk, task, options)
        answer |= found
    rows = frame_rows(options.drop(columns=["source", "slo_id", "predictor"]))
    own = known.points[known.points["llm_id"] == llm_id]
    tried = own.groupby("gpu_profile_id")["users"].max().to_dict() if basis == MEASURED else {}
    for row in rows:
        row["most_users_tried"] = tried.get(row["gpu_profile_id"])
        is_ruled_out = row["status"] == "does_not_fit"
        row["reason"] = reasons.get(row["gpu_profile_id"]) if is_ruled_out else None
    answer |= {"basis": basis, "risk": question.risk, "alternatives": rows}
    return answer | _beyond(answer, task, question.slo)


def _beyond(answer: dict[str, Any], task: Task, slo: SLO) -> dict[str, Any]:
    """Return `outlook` of a measured deployment, and `next_best`; None where there is none."""
    found: dict[str, Any] = {"outlook": None, "next_best": None}
    if answer["gpu_profile_id"] is None:
        return found
    if answer["basis"] == MEASURED:
        keys = [answer[name] for name in IDENTIFIERS]
        own = task.points[(task.points[IDENTIFIERS] == keys).all(axis=1)]
        curve = at_percentile(own, slo.percentiles, slo.first_token)
        found["outlook"] = outlook(curve, slo, answer["replicas"], answer["usd_per_hour"])
    others = [
        row
        for row in answer["alternatives"]
        if row["status"] == "meets" and row["gpu_profile_id"] != answer["gpu_profile_id"]
    ]
    if others:
        found["next_best"] = beside(answer, min(others, key=lambda row: row["usd_per_hour"]))
    return found


def _at_risk(
    question: Question, risk: float, task: Task, candidates: pd.DataFrame
) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return the cheapest option that breaks no limit with probability 1 - risk, and the candidates
    of an LLM, each with its cheapest such option; `unsure` with the most likely one.

    Raises:
        InputError: nothing is known of the requests behind the points.
    """
    llm_id, slo = candidates["llm_id"].iloc[0], question.slo
    own = task.points[task.points["llm_id"] == llm_id]
    draws = measured_draws(at_percentile(own, slo.percentiles, slo.first_token), question.seed)
    if draws is None:
        problem = f"{task.source} has no intervals of the latencies of {llm_id}: no risk is known"
        fix = "leave it out, or describe the LLM with --hf-config: then it is predicted"
        raise InputError(problem, field="--risk", fix=fix)
    options = weigh(draws, task.facts.profiles, slo)
    best = best_by_profile(options, 1 - risk).set_index("gpu_profile_id")
    rows = candidates.set_index("gpu_profile_id", drop=False).rename_axis(None)
    for name, row in best.iterrows():
        if row["is_wanted"] or rows.at[name, "status"] == "meets":
            rows.loc[name, _OPTION] = row[_OPTION]
            rows.loc[name, "status"] = "meets" if row["is_wanted"] else "unsure"
    (chosen,) = frame_rows(choose(options, risk))
    return chosen | {"is_success": None, "overspend": None}, rows


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
