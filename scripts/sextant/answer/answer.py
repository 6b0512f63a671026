"""The answer to a question: a recommendation, its reasons, and how far to trust it."""

from typing import Any

import numpy as np
import pandas as pd

from sextant.answer.answer_text import as_text
from sextant.answer.basis import estimates, outside_basis, warning
from sextant.answer.compared import compare
from sextant.answer.cost import cost
from sextant.answer.energy import energy, learned, with_joules
from sextant.answer.evidence import nearest, outside
from sextant.answer.offer import offered
from sextant.answer.options import by_profile, decide, frontier, nearest_miss, safest, sensitivity
from sextant.answer.predicted import Forecast, forecast
from sextant.answer.question import (
    Question,
    answers_from_points,
    check,
    make_predictor,
    named_llm,
)
from sextant.answer.serving import as_measured, named_otherwise
from sextant.answer.source import find_source
from sextant.answer.subject import subject_of
from sextant.answer.what_if import Basis, of_points
from sextant.base.errors import InputError
from sextant.decide.decision import best_probe
from sextant.decide.names import MEASURED
from sextant.decide.outlook import outlook
from sextant.facts.gpu import GIB
from sextant.facts.llm import LLM
from sextant.facts.prices import old_price_lines, price_origins, providers, share_lines
from sextant.facts.slo import worst_limit
from sextant.points.characterizations.characterization import Characterization
from sextant.points.characterizations.points import LENGTHS, at_percentile
from sextant.predict.protocols import JointPredictor

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
