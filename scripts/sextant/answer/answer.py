"""Answers that compare latencies with limits by eq. 1-3: measurements, and other predictors."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from sextant.answer.basis import as_measured, estimates, named_otherwise, outside_basis, warning
from sextant.answer.candidates import offered, subject_of
from sextant.answer.options import (
    by_profile,
    decide,
    frontier,
    nearest,
    nearest_miss,
    outside,
    safest,
    sensitivity,
)
from sextant.answer.page import Basis, of_points
from sextant.answer.predicted import Forecast, cost, energy, forecast, learned, with_joules
from sextant.answer.question import Question, answers_from_points, check, make_predictor, named_llm
from sextant.answer.source import Source, find_source
from sextant.answer.text import as_text
from sextant.base.errors import InputError
from sextant.base.rows import frame_rows
from sextant.decide.decision import best_by_profile, best_probe, choose, measured_draws, weigh
from sextant.decide.evaluate import evaluate
from sextant.decide.headroom import beside, outlook
from sextant.decide.names import MEASURED
from sextant.decide.tasks import ruled_out, task_of
from sextant.facts.gpu import GIB, GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.prices import old_price_lines, price_origins, providers, share_lines
from sextant.facts.slo import SLO, worst_limit
from sextant.points.characterization import Characterization
from sextant.points.features import Facts
from sextant.points.frame import IDENTIFIERS, LENGTHS, at_percentile
from sextant.predict.folds import Task
from sextant.predict.protocols import JointPredictor
from sextant.predict.tuning import ALL_CPUS

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


_STEADY = (
    "The rate is taken as a steady load, by Little's law at median latencies. Requests that arrive "
    "at random may need more replicas: `sextant capacity --request-rate {rate_rps:.4g}` simulates "
    "them."
)


def recommend_llm(question: Question) -> dict[str, Any]:
    """Recommend for one LLM: from its points if it has any, else from a predictor.

    Returns:
        The recommendation with the columns of table `recommendation` (None: no option),
        `basis` (`measured` or the predictor), `alternatives` (a row per GPU profile), `slo`,
        `llm`, `characterization`, `prices` (whose, and of when), `warnings` (what lies outside of
        the basis, what was estimated, prices that are old) and `text`. A predictor that draws
        adds `decision`, `risk`, `serving` (lengths, engine, precision), `execution` (how the LLM is
        taken to be executed), `latency`, `cost`, `energy`, `options`, `safest`, `nearest_miss`
        (where nothing is recommended), `evidence`, `outside`, `contradictions` (measurements of
        the LLM far from the law), `sensitivity` and `best_probe`. `outlook` is that of
        `decide.outlook`, None where it is not known.

    Raises:
        InputError: an option is wrong, or the characterization cannot answer.
    """
    return answered(question)[0]


def answered(question: Question) -> tuple[dict[str, Any], Basis | None]:
    """Return what `recommend_llm` does, and what a page can answer again from, if it can."""
    check(question)
    source = find_source(question)
    known = source.known
    question, said = as_measured(question, known)
    llm_id, llm = named_llm(question, known)
    profiles = offered(known.profiles, question.gpu_profile_ids, question.prices)
    every = {**known.profiles, **profiles}
    warnings = [*known.left_out, *estimates(known.points, question.slo)]
    warnings += named_otherwise(question, llm_id, llm)
    basis = None
    if answers_from_points(question, llm_id, known):
        answer = compare(question, llm_id, llm, source, profiles, MEASURED)
        if question.risk is None:
            own = known.points.query("llm_id == @llm_id")
            own = at_percentile(own, question.slo.percentiles, question.slo.first_token)
            usd_per_hour = {name: each.usd_per_hour for name, each in profiles.items()}
            basis = of_points(own, usd_per_hour, question.slo)
    elif isinstance(model := make_predictor(question, every), JointPredictor):
        subject = subject_of(question, llm_id, llm, source, profiles)
        probe = subject.probe(question.probe)
        lengths = dict(zip(LENGTHS, subject.lengths[0], strict=True))
        warnings = [
            *warning(outside_basis(question, source, llm, lengths, profiles), source),
            *said,
            *warnings,
        ]
        made = forecast(model, subject, question.slo, probe)
        answer = _predicted(question, made)
        basis = made.basis() if question.decision == "utility" else None
        if question.prefix_hit_rate and not subject.is_cache_used(model):
            warnings.append(
                f"--prefix-hit-rate is not used: {question.predictor} does not know it."
            )
    else:
        _refuse_other_servers(question, known)
        answer = compare(question, llm_id, llm, source, profiles, question.predictor)
    if question.slo.request_rate_rps is not None:
        warnings = [*warnings, _STEADY.format(rate_rps=question.slo.request_rate_rps)]
    prices = price_origins((each.price_source, each.price_as_of) for each in profiles.values())
    warnings = [*warnings, *old_price_lines(prices)]
    if str(question.prices) in providers() and answer["gpu_profile_id"] is not None:
        profile = profiles[answer["gpu_profile_id"]]
        warnings += share_lines(profile, answer["replicas"], str(question.prices))
    answer |= {
        "slo": question.slo.facts(),
        "llm": _llm_facts(llm),
        "characterization": source.facts(),
        "prices": [each._asdict() for each in prices],
        "warnings": warnings,
    }
    return answer | {"text": as_text(answer)}, basis


def _refuse_other_servers(question: Question, known: Characterization) -> None:
    """Refuse a predictor that tells no requests and servers apart, where a question has to."""
    if known.has_fixed_lengths:
        problem = (
            f"the points of {known.source} differ in lengths of requests, engines and precisions, "
            f"which {question.predictor} does not tell apart"
        )
        raise InputError(problem, field="--predictor", fix="use --predictor roofline")
    if question.is_of_other_servers or question.dtype or question.kv_dtype:
        problem = f"{question.predictor} knows of no other lengths, engines and precisions"
        fix = "use --predictor roofline, or ask about the requests that were measured"
        raise InputError(problem, field="--predictor", fix=fix)


def _predicted(question: Question, made: Forecast) -> dict[str, Any]:
    options, subject = made.options(), made.subject
    chosen = decide(made, options, made.slo, question.decision, question.risk)
    profile_id = chosen["gpu_profile_id"]
    power = learned(made)
    rows = with_joules(made, power, by_profile(made, options, question.risk))
    latency = _latency(made, chosen, options) if profile_id else None
    costs = cost(made, chosen, latency) if latency else None
    named = {
        "source": subject.source.known.source,
        "slo_id": made.slo.slo_id,
        "predictor": question.predictor,
    }
    return {
        **named,
        **chosen,
        # Only measurements can tell.
        "is_success": None,
        "overspend": None,
        "basis": question.predictor,
        "decision": question.decision,
        "risk": question.risk,
        # Only some sources say how their LLMs were executed.
        "execution": subject.execution[subject.llm_id] if subject.source.known.features else None,
        "serving": subject.serving.facts(),
        "has_probe": question.probe is not None,
        "alternatives": rows,
        "options": frontier(options, question.risk),
        "nearest_miss": None if profile_id else nearest_miss(made, options),
        "safest": safest(options, chosen),
        "latency": latency,
        "cost": costs,
        "outlook": _outlook(made, chosen, costs["requests_per_s"]) if costs else None,
        "energy": energy(made, power, profile_id, latency["users"]) if latency else None,
        "contradictions": [each._asdict() for each in made.own.contradictions()]
        if made.own
        else [],
        "evidence": nearest(subject, profile_id, made.slo) if profile_id else [],
        "outside": outside(subject, profile_id),
        "sensitivity": sensitivity(made, chosen, question.decision, question.risk),
        "best_probe": best_probe(made.draws, subject.profiles, [made.slo]),
    }


def _latency(made: Forecast, chosen: dict[str, Any], options: pd.DataFrame) -> dict[str, Any]:
    """Return the latencies at the recommended load, which limit binds, and the load it serves."""
    profile_id, users = chosen["gpu_profile_id"], chosen["users_per_replica"]
    row = made.at(profile_id, users).to_dict()
    of_profile = options.query("gpu_profile_id == @profile_id").iloc[0]
    X = made.draws.X
    tried = X.loc[X["gpu_profile_id"] == profile_id, "users"]
    return {
        "users": users,
        **row,
        "binding_limit": worst_limit(row),
        **{name: int(of_profile[name]) for name in ("users_lo", "users_median", "users_hi")},
        "load": made.slo.load / chosen["replicas"],
        "load_median": float(of_profile["load_median"]),
        "most_users_tried": int(tried.max()),
        # Of very many loads not each is judged, but the next one: to be safe.
        "checked_at_users": int(tried[tried >= users].min()) if (tried >= users).any() else None,
    }


def _outlook(made: Forecast, chosen: dict[str, Any], rate_rps: float) -> dict[str, Any]:
    """Return what follows from the medians over the load of the recommended deployment."""
    X = made.draws.X
    curve = X[X["gpu_profile_id"] == chosen["gpu_profile_id"]].join(made.draws.summary())
    curve = curve.sort_values("users").assign(request_rate_rps=np.nan)
    return outlook(curve, made.slo, chosen["replicas"], chosen["usd_per_hour"], rate_rps)


def _llm_facts(llm: LLM) -> dict[str, Any]:
    return {
        "llm_type": llm.llm_type,
        "n_parameters": llm.n_parameters,
        "weights_gib": llm.weight_bytes / GIB,
        "kv_kib_per_token": llm.kv_bytes_per_token / 1024,
        "attention": llm.attention,
        "dtype": llm.dtype,
        "kv_dtype": llm.kv_dtype or llm.dtype,
        "weight_bits": llm.weight_bits or None,
    }
