"""A recommendation from what was measured of the LLM itself (LLM-Pilot, eq. 1-3)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from sextant.answer.option import Option
from sextant.ask.api_prices import ApiComparison
from sextant.ask.case import Case
from sextant.ask.caveats import judgements
from sextant.base.errors import InputError
from sextant.base.files import Row, frame_rows
from sextant.decide.decision import (
    MeasuredDraws,
    best_by_profile,
    choose,
    measured_draws,
    weigh,
    with_devices,
    with_probabilities,
)
from sextant.decide.headroom import Headroom, NextBest, compare_options, measure_headroom
from sextant.decide.sizing import candidates, check_curves, recommend_cheapest, ruled_out
from sextant.facts.slo import METRICS
from sextant.pages.blocks import Widget
from sextant.pages.words import percent, plural
from sextant.points.frame import LENGTHS, judged
from sextant.predict.predictor import MEASURED
from sextant.recommend.own_or_api import api_comparison, no_api_note, steady_note
from sextant.recommend.recommendation import MeasuredOutcome, MeasuredRecommendation, Misses


@dataclass(frozen=True)
class _MeasuredCase:
    """A case with the LLM's own points."""

    case: Case
    points: pd.DataFrame
    """On the candidates."""
    latencies: pd.DataFrame
    """Of these points, at the SLO's percentiles (`points.frame.judged`)."""
    draws: MeasuredDraws | None
    """What the latencies may be; None: nothing is known of the requests behind the points."""


def recommend_measured(case: Case) -> MeasuredRecommendation:
    """Size the replicas by the LLM's own points.

    Raises:
        InputError: the LLM was measured on no candidate, a point is ambiguous, or a risk is asked
            for and no interval is known.
    """
    slo = case.question.slo
    points = _own_points(case)
    check_curves(points)
    latencies = judged(points, slo)
    draws = measured_draws(latencies, slo, case.question.seed)
    measured = _MeasuredCase(case, points, latencies, draws)

    reasons, rows = _candidate_rows(measured)
    best = recommend_cheapest(with_devices(rows, case.gpu_profiles))
    (chosen,) = frame_rows(best)
    if case.question.risk is not None:
        chosen, rows = _at_risk(measured, case.question.risk, rows)
    outcomes = _outcomes(measured, rows, reasons)
    headroom, next_best, api = _about_chosen(measured, chosen, outcomes)

    option = Option.of(chosen)
    is_optimum = case.question.risk is None and option.gpu_profile_id is not None
    notes = [*case.notes, *case.source.characterization.left_out, *case.naming_notes()]
    return MeasuredRecommendation(
        llm_id=case.llm_id,
        basis=MEASURED,
        chosen=option,
        alternatives=outcomes,
        slo=slo,
        llm=case.configured_llm,
        risk=case.question.risk,
        source=case.source,
        gpu_profiles=case.gpu_profiles.values(),
        warnings=[
            *notes,
            *judgements(points, latencies, slo),
            *steady_note(slo, "as measured"),
            *no_api_note(case.question, option, api),
        ],
        headroom=headroom,
        next_best=next_best,
        api=api,
        is_success=True if is_optimum else None,
        overspend=0.0 if is_optimum else None,
        widget=lambda: _widget(measured),
    )


def _own_points(case: Case) -> pd.DataFrame:
    """Return the LLM's points on the candidates. Raises InputError: there are none."""
    points = case.source.characterization.points
    points = points[points["llm_id"] == case.llm_id]
    on_candidates = points[points["gpu_profile_id"].isin(case.gpu_profiles)]
    if on_candidates.empty:
        measured_on = ", ".join(sorted(points["gpu_profile_id"].unique()))
        problem = f"{case.llm_id} was measured on none of the candidate GPU profiles"
        fix = f"name one of {measured_on}, or ask with --hf-config for a prediction"
        raise InputError(problem, field="--gpu-profiles", fix=fix)
    return on_candidates


def _candidate_rows(measured: _MeasuredCase) -> tuple[dict[str, str | None], pd.DataFrame]:
    """Return why the LLM cannot run, by profile, and what it takes on each candidate.

    What was tried counts, then what memory facts say.
    """
    case = measured.case
    source = case.source
    excluded = ruled_out(
        case.configured_llm,
        case.gpu_profiles,
        source.longest_request_tokens,
        source.memory_utilization,
    )
    tried = source.characterization.feasibility
    tried = tried[tried["llm_id"] == case.llm_id]
    is_feasible = tried["is_feasible"].astype(bool)
    reasons = dict(zip(tried["gpu_profile_id"], tried["reason"], strict=True)) | excluded
    fitting = {*case.gpu_profiles} - excluded.keys()
    fitting |= {*tried.loc[is_feasible, "gpu_profile_id"]}
    fitting -= {*tried.loc[~is_feasible, "gpu_profile_id"]}

    latencies = measured.latencies
    pairs = {(case.llm_id, name) for name in {*fitting, *latencies["gpu_profile_id"]}}
    slo = case.question.slo
    rows = candidates(latencies, [case.llm_id], case.gpu_profiles, slo, pairs)
    return reasons, with_probabilities(rows, measured.draws, slo)


def _at_risk(measured: _MeasuredCase, risk: float, rows: pd.DataFrame) -> tuple[Row, pd.DataFrame]:
    """Return the cheapest option that breaks no limit with probability 1 - risk, and all rows.

    Each GPU profile has its cheapest such option, or its most likely option, which is `unsure`.

    Raises:
        InputError: nothing is known of the requests behind the points.
    """
    case = measured.case
    if measured.draws is None:
        problem = (
            f"{case.source.characterization.source} has no intervals of the latencies of "
            f"{case.llm_id}: no risk is known"
        )
        fix = "leave it out, or describe the LLM with --hf-config: then it is predicted"
        raise InputError(problem, field="--risk", fix=fix)
    options = weigh(measured.draws, case.gpu_profiles, case.question.slo)
    columns = ["replicas", "users_per_replica", "usd_per_hour", "probability_met"]
    rows = rows.set_index("gpu_profile_id", drop=False).rename_axis(None)
    best = best_by_profile(options, 1 - risk).set_index("gpu_profile_id")
    for profile_id, row in best.iterrows():
        if row["is_wanted"] or rows.at[profile_id, "status"] == "meets":
            rows.loc[profile_id, columns] = row[columns]
            rows.loc[profile_id, "status"] = "meets" if row["is_wanted"] else "unsure"
    (chosen,) = frame_rows(choose(options, risk))
    return chosen, rows


def _outcomes(
    measured: _MeasuredCase, rows: pd.DataFrame, reasons: Mapping[str, str | None]
) -> list[MeasuredOutcome]:
    """Return the rows as outcomes, cheapest first, those without a price last."""
    most_users = measured.points.groupby("gpu_profile_id")["users"].max().to_dict()
    outcomes = []
    for row in frame_rows(rows):
        profile_id = row["gpu_profile_id"]
        reason = reasons.get(profile_id) if row["status"] == "does_not_fit" else None
        if row["status"] == "fails":
            allowed = percent(measured.case.question.slo.allowed_failures)
            reason = (
                f"{percent(row['failed_share'])} of the requests failed with "
                f"{plural(row['fewest_users'], 'user')}, {allowed} allowed"
            )
        ratios = {metric: row[f"{metric}_ratio"] for metric in METRICS}
        outcomes.append(
            MeasuredOutcome(
                llm_id=row["llm_id"],
                option=Option.of(row),
                status=row["status"],
                reason=reason,
                misses=Misses(
                    fewest_users=row["fewest_users"],
                    ratios={m: ratio for m, ratio in ratios.items() if ratio is not None},
                    limit_ratio=row["limit_ratio"],
                ),
                most_users_tried=most_users.get(profile_id),
                load_per_replica=row["load_per_replica"],
                failed_share=row["failed_share"],
            )
        )
    outcomes.sort(key=lambda outcome: -(outcome.probability_met or 0.0))
    outcomes.sort(
        key=lambda outcome: np.inf if outcome.usd_per_hour is None else outcome.usd_per_hour
    )
    return outcomes


def _about_chosen(
    measured: _MeasuredCase, chosen: Row, outcomes: Sequence[MeasuredOutcome]
) -> tuple[Headroom | None, NextBest | None, ApiComparison | None]:
    """Return the headroom of the chosen option, the next best one, and an API beside it."""
    case = measured.case
    slo = case.question.slo
    profile_id = chosen["gpu_profile_id"]
    if profile_id is None:
        return None, None, None
    latencies = measured.latencies
    curve = latencies[latencies["gpu_profile_id"] == profile_id]
    headroom = measure_headroom(curve, slo, chosen["replicas"], chosen["usd_per_hour"])

    weighed = None
    if measured.draws and case.question.api_prices:
        weighed = weigh(measured.draws, case.gpu_profiles, slo)
    is_level = curve["users"] == headroom.level_users
    lengths = curve.loc[is_level, LENGTHS].to_numpy(float)[0]
    api = api_comparison(case, Option.of(chosen), weighed, headroom, lengths)

    others = [
        outcome
        for outcome in outcomes
        if outcome.status == "meets" and outcome.gpu_profile_id != profile_id
    ]
    next_best = None
    if others:
        other = min(others, key=lambda outcome: outcome.usd_per_hour or 0.0)
        next_best = compare_options(chosen, other.option._asdict())
    return headroom, next_best, api


def _widget(measured: _MeasuredCase) -> Widget | None:
    """Return the part of the page in which the question can be changed."""
    from sextant.recommend.what_if import of_points, what_if_widget

    case = measured.case
    if case.question.risk is not None:
        return None
    prices = {name: profile.usd_per_hour for name, profile in case.gpu_profiles.items()}
    basis = of_points(measured.latencies, prices, case.question.slo)
    return what_if_widget(basis) if basis else None
