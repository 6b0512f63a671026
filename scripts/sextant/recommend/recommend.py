"""Answer a question about one LLM: from its points if it has any, else from a predictor."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from sextant.answer.answer import Answer, Option, deployment_words
from sextant.ask import forecast as predicted
from sextant.ask.api_prices import Billed, compare_with_api
from sextant.ask.candidates import Asked, read_question, subject_of
from sextant.ask.forecast import Fitted, Forecast, fit_to, forecast_of
from sextant.ask.laws import RateSizer, Settings, expect, rate_notes, server_laws, target_of
from sextant.ask.question import Question, answers_from_points, has_points, make_predictor
from sextant.ask.source import estimates, judgements, named_otherwise, outside_basis, warning
from sextant.base.errors import InputError
from sextant.base.files import Row, frame_rows
from sextant.decide import decision
from sextant.decide.decision import FAIR, SAFE, MeasuredDraws
from sextant.decide.sizing import candidates, check_curves, recommend_cheapest, ruled_out
from sextant.facts.gpu import GIB, GPUProfile
from sextant.facts.llm import served
from sextant.facts.slo import worst_limit
from sextant.pages.blocks import Widget
from sextant.pages.words import chance, percent, plural, shown_chance
from sextant.points.frame import LENGTHS, judged
from sextant.predict.predictor import JointPredictor
from sextant.predict.registry import MEASURED

if TYPE_CHECKING:
    from sextant.answer.ways import Way

_OPTION = ["replicas", "users_per_replica", "usd_per_hour", "probability_met"]
_OF_A_WAY = 3
"""GPU profiles that are simulated for each other way to serve."""
_FEW_USERS = 8
"""At which drafts are compared where no replica serves a request rate."""
_STEADY = (
    "The rate is taken as a steady load, {how}. Requests that arrive at random may need more "
    "replicas; `sextant capacity` simulates them where steps are known."
)


def recommend_llm(question: Question) -> Answer:
    """Recommend a GPU profile and a number of replicas for one LLM.

    `more` has `source, slo_id, predictor`, `llm` (its facts), and `is_success` and `overspend`,
    which only measurements can tell, as `next_best`, the next best GPU profile. A predictor that
    draws adds `decision`, `execution` (how the LLM is taken to be executed), `latency`, `cost`,
    `energy`, `options`, `safest`, `nearest_miss` (where nothing is recommended), `outside`,
    `contradictions` (measurements of the LLM far from the law), `sensitivity` and `best_probe`.

    Raises InputError: an option is wrong, or the characterization cannot answer.
    """
    asked = read_question(question)
    question, known = asked.question, asked.source.known
    notes = [*asked.notes, *known.left_out]
    named = named_otherwise(question, asked.llm_id, asked.llm)
    if answers_from_points(question, asked.llm_id, known):
        return _answer_from_points(asked, [*notes, *named])
    notes += named
    model = make_predictor(question, {**known.profiles, **asked.profiles, **asked.unmeasured()})
    return _answer_from_draws(asked, model, notes)


def _answer_from_points(asked: Asked, notes: Sequence[str]) -> Answer:
    """Size the replicas by what was measured of the LLM itself."""
    _, question, llm_id, _, source, profiles, _ = asked
    known, slo = source.known, question.slo
    points = known.points[known.points["llm_id"] == llm_id]
    points = points[points["gpu_profile_id"].isin(profiles)]
    if points.empty:
        measured = known.points.loc[known.points["llm_id"] == llm_id, "gpu_profile_id"].unique()
        problem = f"{llm_id} was measured on none of the candidate GPU profiles"
        fix = f"name one of {', '.join(sorted(measured))}, or ask with --hf-config for a prediction"
        raise InputError(problem, field="--gpu-profiles", fix=fix)
    check_curves(points)
    latencies, longest = judged(points, slo), source.longest_request_tokens
    # Why the LLM cannot run: what was tried counts, then what memory facts say.
    excluded = ruled_out(asked.llm, profiles, longest, source.memory_utilization)
    tried = known.feasibility[known.feasibility["llm_id"] == llm_id]
    is_feasible = tried["is_feasible"].astype(bool)
    reasons = dict(zip(tried["gpu_profile_id"], tried["reason"], strict=True)) | excluded
    fitting = {*profiles} - excluded.keys() | {*tried.loc[is_feasible, "gpu_profile_id"]}
    fitting -= {*tried.loc[~is_feasible, "gpu_profile_id"]}
    pairs = {(llm_id, name) for name in {*fitting, *latencies["gpu_profile_id"]}}
    draws = decision.measured_draws(latencies, slo, question.seed)
    options = candidates(latencies, [llm_id], profiles, slo, pairs)
    options = decision.with_probabilities(options, draws, slo)
    (chosen,) = frame_rows(recommend_cheapest(decision.with_devices(options, profiles)))
    if question.risk is not None:
        chosen, options = _at_risk(asked, question.risk, draws, options)
    elif chosen["gpu_profile_id"] is not None:
        chosen |= {"is_success": True, "overspend": 0.0}  # it is the optimum
    most = points.groupby("gpu_profile_id")["users"].max().to_dict()
    rows = frame_rows(options)
    for row in rows:
        name = row["gpu_profile_id"]
        row["most_users_tried"] = most.get(name)
        row["reason"] = reasons.get(name) if row["status"] == "does_not_fit" else None
        if row["status"] == "fails":
            row["reason"] = (
                f"{percent(row['failed_share'])} of the requests failed with "
                f"{plural(row['fewest_users'], 'user')}, {percent(slo.allowed_failures)} allowed"
            )
    rows.sort(key=lambda row: -(row["probability_met"] or 0.0))
    rows.sort(key=lambda row: np.inf if row["usd_per_hour"] is None else row["usd_per_hour"])
    headroom = next_best = api = None
    if (name := chosen["gpu_profile_id"]) is not None:
        from sextant.decide.headroom import compare_options, measure_headroom

        curve = latencies[latencies["gpu_profile_id"] == name]
        headroom = measure_headroom(curve, slo, chosen["replicas"], chosen["usd_per_hour"])
        weighed = decision.weigh(draws, profiles, slo) if draws and question.api_prices else None
        lengths = curve.loc[curve["users"] == headroom["level_users"], LENGTHS].to_numpy(float)[0]
        api = _compare_with_api(asked, chosen, weighed, headroom, lengths)
        others = [r for r in rows if r["status"] == "meets" and r["gpu_profile_id"] != name]
        if others:
            other = min(others, key=lambda row: row["usd_per_hour"])
            next_best = compare_options(chosen, other)
    notes = [*notes, *judgements(points, latencies, slo)]

    def widget() -> Widget | None:
        from sextant.recommend.what_if import of_points, what_if_widget

        prices = {name: each.usd_per_hour for name, each in profiles.items()}
        basis = of_points(latencies, prices, slo) if question.risk is None else None
        return what_if_widget(basis) if basis else None

    parts: dict[str, Any] = {"more": {"next_best": next_best, "api": api}, "widget": widget}
    return _answer(asked, MEASURED, chosen, rows, notes, headroom=headroom, **parts)


def _compare_with_api(
    asked: Asked, chosen: Row, options: pd.DataFrame | None, headroom: Row, lengths: np.ndarray
) -> Row | None:
    """Compare the chosen option with an API if that is asked for and requests are known.

    `options` are weighed; None: nothing is known of probabilities.
    """
    prices, name = asked.question.api_prices, chosen["gpu_profile_id"]
    if prices is None or headroom["usd_per_million_tokens"] is None:
        return None

    def probability(replicas: int) -> float | None:
        if options is None:
            return None
        is_paid = (options["gpu_profile_id"] == name) & (options["replicas"] <= replicas)
        return float(options["probability_met"].where(is_paid, 0.0).max())

    inputs, outputs = map(float, lengths)
    hit_rate, most_rps = asked.question.prefix_hit_rate, headroom["most_requests_per_s"]
    billed = Billed(headroom["requests_per_s"], inputs, outputs, hit_rate)
    own = asked.profiles[name], chosen["replicas"], most_rps, probability
    return compare_with_api(prices, asked.llm_id, billed, *own)


def _at_risk(
    asked: Asked, risk: float, draws: MeasuredDraws | None, rows: pd.DataFrame
) -> tuple[Row, pd.DataFrame]:
    """Return the cheapest option that breaks no limit with probability 1 - risk, and the rows of
    all GPU profiles, each with its cheapest such option; `unsure` with the most likely one.

    Raises InputError: nothing is known of the requests behind the points.
    """
    if draws is None:
        problem = (
            f"{asked.source.known.source} has no intervals of the latencies of {asked.llm_id}: "
            "no risk is known"
        )
        fix = "leave it out, or describe the LLM with --hf-config: then it is predicted"
        raise InputError(problem, field="--risk", fix=fix)
    options = decision.weigh(draws, asked.profiles, asked.question.slo)
    rows = rows.set_index("gpu_profile_id", drop=False).rename_axis(None)
    best = decision.best_by_profile(options, 1 - risk).set_index("gpu_profile_id")
    for name, row in best.iterrows():
        if row["is_wanted"] or rows.at[name, "status"] == "meets":
            rows.loc[name, _OPTION] = row[_OPTION]
            rows.loc[name, "status"] = "meets" if row["is_wanted"] else "unsure"
    (chosen,) = frame_rows(decision.choose(options, risk))
    return chosen, rows


def _answer_from_draws(asked: Asked, model: JointPredictor, notes: Sequence[str]) -> Answer:
    """Weigh price against probability over joint draws of the latencies."""
    _, question, llm_id, llm, source, profiles, _ = asked
    risk, slo = question.risk, question.slo
    subject = subject_of(question, llm_id, llm, source, profiles)
    clauses = outside_basis(question, source, llm, subject.mean_lengths, profiles)
    fitted = fit_to(model, subject, slo)
    made = forecast_of(model, fitted, subject, slo)
    if question.requests is None and not has_points(llm_id, source.known):
        inputs, outputs = made.subject.lengths[0]
        text = f"No lengths were given: the answer is for requests of {inputs:.0f} input and "
        text += f"{outputs:.0f} output tokens, those of {source.known.source}. "
        notes = [f"{text}Give --input-tokens and --output-tokens, or --workload.", *notes]
    notes = [*warning(clauses, source), *notes]
    if question.prefix_hit_rate and not predicted.has_steps(model):
        notes.append(f"--prefix-hit-rate is not used: {question.predictor} does not know it.")
    if slo.request_rate_rps is not None:
        made = _simulated(made)
    arrivals = made.arrivals
    if not arrivals:  # else each percentile is that of the simulated requests
        notes += estimates(source.known.points, slo)
    options = made.options()
    chosen = predicted.choose_option(made, options, slo, question.decision, risk)
    profile_id = chosen["gpu_profile_id"]
    power = predicted.learned(made)
    latency = headroom = costs = energy = api = None
    if profile_id:
        if arrivals:
            latency, headroom = expect(arrivals, slo, chosen, made.subject.lengths[0])
        else:
            latency, headroom = _expect(made, chosen, options)
        costs = predicted.cost(made, chosen, latency)
        api = _compare_with_api(asked, chosen, options, headroom, made.subject.lengths[0])
        energy = predicted.energy(made, power, profile_id, latency["users"])
    miss = None if profile_id else predicted.find_nearest_miss(made, options)
    # Drafts are compared at the load of the answer, or of the nearest miss where there is none.
    users = latency["users"] if latency else None
    near: Row = miss or {"gpu_profile_id": profile_id, "users_per_replica": users}
    place = near["gpu_profile_id"], near["users_per_replica"] or _FEW_USERS
    gains: Sequence[Row] = []
    if question.speculative:
        from sextant.answer.ways import drafting_gains, drafting_notes  # few questions speculate

        gains = drafting_gains(asked, model, subject, *place)
        best = gains[0]["draft_tokens"] if gains else 1
        if question.draft_tokens is None and best != 1:
            longer = asked._replace(question=replace(question, draft_tokens=best))
            return _answer_from_draws(longer, model, notes)
        notes = [*notes, *drafting_notes(question, gains)]
    unmeasured, lines = _unmeasured(asked, model, fitted, chosen, arrivals)
    notes = [*notes, *lines]
    pools = None
    if question.is_disaggregated and arrivals:
        from sextant.answer.apart import apart_note, size_apart  # few questions ask

        of = Settings(), next(iter(arrivals.servers.values())).n_draws - 1, arrivals.model
        at_rate = arrivals.traffic_of(slo), target_of(slo), arrivals.confidence
        pools = size_apart(made.subject, lambda each: server_laws(each, *of)[0], *at_rate)
        notes = [*notes, apart_note(pools, chosen)]
    others = _other_ways(asked, model, fitted, made, chosen, place)
    if arrivals:
        # Without a recommendation: whether a longer run could make one.
        gap = abs(options["probability_met"].max() - FAIR) * (arrivals.n_draws(slo) + 1)
        is_near = profile_id is None and risk is None and gap <= 1
        notes += rate_notes(arrivals, slo, is_near)

    def widget() -> Widget | None:
        from sextant.recommend.what_if import of_arrivals, of_draws, what_if_widget

        if question.decision != "utility":
            return None
        prices = {name: each.usd_per_hour for name, each in subject.profiles.items()}
        if arrivals is not None:
            needed = partial(arrivals.needed, profile_ids=subject.candidates)
            return what_if_widget(of_arrivals(needed, prices, slo), risk)
        own = made.own.points if made.own else None
        return what_if_widget(of_draws(made.draws, prices, slo, own), risk)

    rows = predicted.list_profiles(made, options, risk, chosen)
    changes = predicted.list_changes(made, question.decision, risk)
    notes += predicted.cliff(changes, chosen)
    more = {
        **({"arrivals": "poisson" if arrivals.traffic.alpha == 1 else "gamma"} if arrivals else {}),
        "decision": question.decision,
        # Only some sources say how their LLMs were executed.
        "execution": subject.execution[llm_id] if source.known.features else None,
        "has_probe": question.probe is not None,
        "options": predicted.list_frontier(options, risk),
        "unmeasured": unmeasured,
        "drafting": [*gains],
        "ways": others,
        "disaggregated": pools,
        "nearest_miss": miss,
        "safest": predicted.find_safest(options, chosen),
        "latency": latency,
        "cost": costs,
        "api": api,
        "energy": energy,
        "contradictions": made.own.contradictions() if made.own else [],
        "outside": clauses,
        "sensitivity": changes,
        "best_probe": decision.best_probe(made.draws, subject.profiles, [slo]),
    }
    return _answer(
        asked,
        question.predictor,
        chosen,
        predicted.with_joules(made, power, rows),
        notes,
        serving=subject.serving.facts(),
        headroom=headroom,
        evidence=predicted.find_nearest(subject, profile_id, slo) if profile_id else [],
        more=more,
        widget=widget,
    )


def _simulated(made: Forecast, **how: Any) -> Forecast:
    """Return the forecast with what simulates a request rate, where a law of a step is known."""
    subject = made.subject
    try:
        arrivals = RateSizer.of(subject, **how)
    except InputError:
        return made
    subject = replace(subject, excluded={**subject.excluded, **arrivals.unknown})
    return replace(made, subject=subject, arrivals=arrivals)


def _unmeasured(
    asked: Asked, model: JointPredictor, fitted: Fitted, chosen: Row, arrivals: RateSizer | None
) -> tuple[list[Row], list[str]]:
    """Return options on GPUs that nobody measured, and what to say of them.

    They are weighed by themselves, so that the answer does not depend on them.
    """
    question, name = asked.question, chosen["gpu_profile_id"]
    below_usd = chosen["usd_per_hour"] if arrivals and name else np.inf
    profiles = {n: each for n, each in asked.unmeasured().items() if each.usd_per_hour < below_usd}
    options = _weighed(asked, question, profiles, model, fitted, arrivals, below_usd)
    if options is None:
        return [], []
    best = _as_likely(options, chosen, question.risk)
    rows = predicted.list_frontier(options[options["probability_met"] >= FAIR], question.risk)
    if best["usd_per_hour"] is None or (name and best["usd_per_hour"] >= chosen["usd_per_hour"]):
        return rows, []
    line = (
        f"{'Cheaper' if name else 'Likely'} on a GPU that nobody measured: "
        f"{deployment_words(best)}, with probability {chance(best['probability_met'])}, "
        "predicted from other GPUs. Measure it before you rent it (--probe); --measured-only "
        "leaves such GPUs out."
    )
    return rows, [line]


def _weighed(
    asked: Asked,
    question: Question,
    profiles: Mapping[str, GPUProfile],
    model: JointPredictor,
    fitted: Fitted,
    arrivals: RateSizer | None,
    most_usd: float,
    **best: Any,
) -> pd.DataFrame | None:
    """Return the options for a question like the asked one; None where no profile can serve.

    `best` is given where no more than the best one is of use (`Arrivals`).
    """
    if not profiles:
        return None
    llm = served(asked.llm, question.precision, question.kv_precision)
    try:
        subject = subject_of(question, asked.llm_id, llm, asked.source, profiles)
    except InputError:  # none has the memory
        return None
    made = forecast_of(model, fitted, subject, question.slo)
    if arrivals:
        made = _simulated(made, model=arrivals.model, most_usd_per_hour=most_usd, **best)
    return made.options()


def _as_likely(options: pd.DataFrame, chosen: Row, risk: float | None) -> Row:
    """Return the cheapest option as likely as the answer, or as anybody wants (`choose`)."""
    return frame_rows(decision.choose(options, 1 - _wanted(chosen, risk)))[0]


def _wanted(chosen: Row, risk: float | None) -> float:
    if risk is not None:
        return 1 - risk
    return FAIR if chosen["gpu_profile_id"] is None else min(SAFE, chosen["probability_met"])


def _other_ways(
    asked: Asked,
    model: JointPredictor,
    fitted: Fitted,
    made: Forecast,
    chosen: Row,
    place: tuple[str, int],
) -> list[Row]:
    """Return the ways to serve that are cheaper than the answer, or likelier where it is unsure.

    Each is an option, cheapest first, and `way`, `risk`. Two together only where they are cheaper
    than the cheapest alone.
    """
    question, usd = asked.question, chosen["usd_per_hour"] or np.inf
    was, arrivals = chosen["probability_met"] or 0.0, made.arrivals
    # At the answer's price only what makes an unsure one likelier is of use.
    profiles = {
        name: each
        for name, each in asked.profiles.items()
        if each.usd_per_hour < usd or (was < SAFE and each.usd_per_hour == usd)
    }
    is_asked = question.decision == "utility" and predicted.has_steps(model)
    # A probe is of the LLM as it is asked about.
    if not (profiles and is_asked) or question.probe:
        return []
    from sextant.answer import ways  # not where nothing can be cheaper

    tried = ways.ways_of(asked.given, asked.llm)
    if question.speculative is None:
        gains = ways.drafting_gains(asked, model, made.subject, *place)
        if gains and gains[0]["probability_gain"] > FAIR:
            tried.append(ways.speculation(gains[0]["draft_tokens"]))

    def option_of(way: "Way", below_usd: float) -> Row | None:
        able = {n: p for n, p in profiles.items() if p.usd_per_hour <= below_usd}
        able = {n: p for n, p in able.items() if ways.can_run(p, way)}
        how = (asked, way.of(question), able, model, fitted, arrivals, below_usd)
        options = _weighed(*how, most_drawn=_OF_A_WAY, wanted=_wanted(chosen, question.risk))
        best = None if options is None else _as_likely(options, chosen, question.risk)
        if best is None or best["usd_per_hour"] is None or best["usd_per_hour"] > below_usd:
            return None
        is_likelier = shown_chance(best["probability_met"]) > shown_chance(was)
        if best["usd_per_hour"] == below_usd and not (below_usd == usd and is_likelier):
            return None
        name = way.name.format(n=profiles[best["gpu_profile_id"]].n_gpus)
        return {**Option.of(best)._asdict(), "way": name, "risk": way.risk}

    alone = [(row, way) for way in tried if (row := option_of(way, usd))]
    found = [row for row, _ in alone]
    if alone:  # with another one where that is cheaper still
        row, way = min(alone, key=lambda each: each[0]["usd_per_hour"])
        pairs = [way.beside(other) for other in tried if way.goes_with(other)]
        both = (option_of(pair, np.nextafter(row["usd_per_hour"], 0)) for pair in pairs)
        found += [each for each in both if each]
    return sorted(found, key=lambda row: (row["usd_per_hour"], -row["probability_met"]))


def _expect(made: Forecast, chosen: Row, options: pd.DataFrame) -> tuple[Row, Row]:
    """Return the latencies of the chosen option and its headroom, by the medians over the load."""
    from sextant.decide.headroom import measure_headroom  # a simulated rate has its own

    name, users, replicas = (chosen[n] for n in ("gpu_profile_id", *_OPTION[1::-1]))
    row, slo, X = made.at(name, users).to_dict(), made.slo, made.draws.X
    of_profile = options[options["gpu_profile_id"] == name].iloc[0]
    curve = X[X["gpu_profile_id"] == name].join(made.draws.summary()).sort_values("users")
    tried = curve["users"]
    latency = {
        "users": users,
        **row,
        "binding_limit": worst_limit(row),
        **{name: int(of_profile[name]) for name in ("users_lo", "users_median", "users_hi")},
        "load": slo.load / replicas,
        "load_median": float(of_profile["load_median"]),
        "most_users_tried": int(tried.max()),
        # Of very many loads not each is judged, but the next one: to be safe.
        "checked_at_users": int(tried[tried >= users].min()) if (tried >= users).any() else None,
    }
    curve, usd = curve.assign(request_rate_rps=np.nan), chosen["usd_per_hour"]
    rate = slo.request_rate_rps or slo.load / users * row["requests_per_s"]
    return latency, measure_headroom(curve, slo, replicas, usd, rate)


def _answer(
    asked: Asked,
    basis: str,
    chosen: Row,
    alternatives: Sequence[Row],
    notes: Sequence[str],
    *,
    more: Mapping[str, Any],
    **parts: Any,
) -> Answer:
    """Return an answer with what all answers have."""
    question, llm, warnings = asked.question, asked.llm, [*notes]
    if question.slo.request_rate_rps is not None and "arrivals" not in more:
        how = "as measured" if basis == MEASURED else "by Little's law at median latencies"
        warnings.append(_STEADY.format(how=how))
    if question.api_prices and chosen["gpu_profile_id"] and more["api"] is None:
        warnings.append("No comparison with an API: the requests' rate or lengths are not known.")
    own = {
        "source": asked.source.known.source,
        "slo_id": question.slo.slo_id,
        "predictor": basis,
        "is_success": chosen.get("is_success"),
        "overspend": chosen.get("overspend"),
        "llm": {
            "llm_type": llm.llm_type,
            "n_parameters": llm.n_parameters,
            "weights_gib": llm.weight_bytes / GIB,
            "kv_kib_per_token": llm.kv_bytes_per_token / 1024,
            "attention": llm.attention,
            "dtype": llm.dtype,
            "kv_dtype": llm.kv_dtype or llm.dtype,
            "weight_bits": llm.weight_bits or None,
        },
    }
    return Answer(
        llm_id=asked.llm_id,
        basis=basis,
        chosen=Option.of(chosen),
        alternatives=alternatives,
        slo=question.slo.facts(),
        risk=question.risk,
        source=asked.source,
        profiles=asked.profiles.values(),
        warnings=warnings,
        more={**own, **more},
        **parts,
    )
