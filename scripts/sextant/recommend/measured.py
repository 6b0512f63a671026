"""A recommendation from what was measured of the LLM itself (LLM-Pilot, eq. 1-3)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np
import pandas as pd

from sextant.answer.option import Option
from sextant.answer.rate_sizer import steady_note
from sextant.ask.case import Case
from sextant.ask.caveats import judgements
from sextant.base.errors import InputError
from sextant.base.files import frame_rows
from sextant.decide.decision import (
    MeasuredDraws,
    best_by_profile,
    choose,
    measured_draws,
    weigh,
    with_devices,
    with_probabilities,
)
from sextant.decide.headroom import measure_headroom
from sextant.decide.sizing import candidates, check_curves, recommend_cheapest, ruled_out
from sextant.facts.slo import METRICS
from sextant.pages.blocks import Widget
from sextant.pages.words import percent, plural
from sextant.points.frame import LENGTHS, judged
from sextant.predict.predictor import MEASURED
from sextant.recommend.cost import api_comparison, no_api_note
from sextant.recommend.options import option_of
from sextant.recommend.recommendation import MeasuredOutcome, MeasuredRecommendation, Misses
from sextant.recommend.weighing import weighed_rows


class _Candidates(NamedTuple):
    """What the GPU profiles take to serve the load, by eq. 1-3."""

    rows: pd.DataFrame
    """As `decide.sizing.candidates` and `with_probabilities` return them."""
    reasons: Mapping[str, str | None]
    """Why the LLM cannot run, by profile."""


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

    @classmethod
    def of(cls, case: Case) -> Self:
        """Find the points. Raises InputError: no candidate has any, or a point is ambiguous."""
        points = case.source.characterization.points
        points = points[points["llm_id"] == case.llm_id]
        on_candidates = points[points["gpu_profile_id"].isin(case.gpu_profiles)]
        if on_candidates.empty:
            measured_on = ", ".join(sorted(points["gpu_profile_id"].unique()))
            problem = f"{case.llm_id} was measured on none of the candidate GPU profiles"
            fix = f"name one of {measured_on}, or ask with --hf-config for a prediction"
            raise InputError(problem, field="--gpu-profiles", fix=fix)
        check_curves(on_candidates)
        slo = case.question.slo
        latencies = judged(on_candidates, slo)
        return cls(
            case, on_candidates, latencies, measured_draws(latencies, slo, case.question.seed)
        )

    def candidates(self) -> _Candidates:
        """Return what each candidate takes. What was tried decides, then what memory facts say."""
        case = self.case
        source = case.source
        excluded = ruled_out(
            case.configured_llm,
            case.gpu_profiles,
            source.longest_request_tokens,
            source.memory_utilization,
        )
        tried = source.characterization.feasibility
        attempts = [*tried[tried["llm_id"] == case.llm_id].itertuples()]
        feasible = {attempt.gpu_profile_id for attempt in attempts if attempt.is_feasible}
        infeasible = {attempt.gpu_profile_id for attempt in attempts if not attempt.is_feasible}
        fitting = (case.gpu_profiles.keys() - excluded.keys() | feasible) - infeasible

        slo = case.question.slo
        pairs = {(case.llm_id, name) for name in {*fitting, *self.latencies["gpu_profile_id"]}}
        rows = candidates(self.latencies, [case.llm_id], case.gpu_profiles, slo, pairs)
        reasons = {attempt.gpu_profile_id: attempt.reason for attempt in attempts}
        return _Candidates(with_probabilities(rows, self.draws, slo), reasons | excluded)

    def outcomes(self, sized: _Candidates) -> list[MeasuredOutcome]:
        """Return the candidates as outcomes."""
        most_users = self.points.groupby("gpu_profile_id")["users"].max().to_dict()
        outcomes = []
        for row in frame_rows(sized.rows):
            option = Option.of(row)
            profile_id = option.gpu_profile_id or ""
            status = row["status"]
            fewest_users = row["fewest_users"]
            failed_share = row["failed_share"]
            reason = sized.reasons.get(profile_id) if status == "does_not_fit" else None
            if status == "fails":
                allowed = percent(self.case.question.slo.allowed_failures)
                reason = (
                    f"{percent(failed_share)} of the requests failed with "
                    f"{plural(fewest_users, 'user')}, {allowed} allowed"
                )
            ratios = {metric: row[f"{metric}_ratio"] for metric in METRICS}
            outcomes.append(
                MeasuredOutcome(
                    llm_id=self.case.llm_id,
                    option=option,
                    status=status,
                    reason=reason,
                    misses=Misses(
                        fewest_users=fewest_users,
                        ratios={m: ratio for m, ratio in ratios.items() if ratio is not None},
                        limit_ratio=row["limit_ratio"],
                    ),
                    most_users_tried=most_users.get(profile_id),
                    load_per_replica=row["load_per_replica"],
                    failed_share=failed_share,
                )
            )
        return outcomes

    def at_risk(
        self, risk: float, outcomes: list[MeasuredOutcome]
    ) -> tuple[Option, list[MeasuredOutcome]]:
        """Return the cheapest option of probability 1 - risk or more, and all outcomes.

        A GPU profile has its cheapest option of this probability, else its most likely option,
        which is `unsure`.

        Raises:
            InputError: nothing is known of the requests behind the points.
        """
        case = self.case
        if self.draws is None:
            problem = (
                f"{case.source.characterization.source} has no intervals of the latencies of "
                f"{case.llm_id}: no risk is known"
            )
            fix = "leave it out, or describe the LLM with --hf-config: then it is predicted"
            raise InputError(problem, field="--risk", fix=fix)
        options = weigh(self.draws, case.gpu_profiles, case.question.slo)
        best = {row.gpu_profile_id: row for row in weighed_rows(best_by_profile(options, 1 - risk))}
        at_risk = []
        for outcome in outcomes:
            row = best.get(outcome.gpu_profile_id)
            if row is not None and row.probability_met >= 1 - risk:
                outcome = replace(outcome, option=row.option, status="meets", reason=None)
            elif row is not None and outcome.status == "meets":
                outcome = replace(outcome, option=row.option, status="unsure")
            at_risk.append(outcome)
        return option_of(choose(options, risk)), at_risk

    def widget(self) -> Widget | None:
        """Return the part of the page in which the question can be changed, if there is one."""
        from sextant.recommend.what_if import of_points, what_if_widget

        case = self.case
        if case.question.risk is not None:
            return None
        prices = {name: profile.usd_per_hour for name, profile in case.gpu_profiles.items()}
        basis = of_points(self.latencies, prices, case.question.slo)
        return what_if_widget(basis) if basis else None


def recommend_measured(case: Case) -> MeasuredRecommendation:
    """Size the replicas by the LLM's own points.

    Raises:
        InputError: the LLM was measured on no candidate, a point is ambiguous, or a risk is asked
            for and no interval is known.
    """
    question = case.question
    slo = question.slo
    measured = _MeasuredCase.of(case)

    sized = measured.candidates()
    chosen = option_of(recommend_cheapest(with_devices(sized.rows, case.gpu_profiles)))
    outcomes = measured.outcomes(sized)
    if question.risk is not None:
        chosen, outcomes = measured.at_risk(question.risk, outcomes)
    outcomes.sort(key=lambda outcome: -(outcome.probability_met or 0.0))
    outcomes.sort(
        key=lambda outcome: np.inf if outcome.usd_per_hour is None else outcome.usd_per_hour
    )

    headroom = api = None
    if chosen.gpu_profile_id is not None:
        curve = measured.latencies[measured.latencies["gpu_profile_id"] == chosen.gpu_profile_id]
        usd = chosen.usd_per_hour or 0.0
        headroom = measure_headroom(curve, slo, chosen.replicas or 1, usd)
        lengths = curve.loc[curve["users"] == headroom.level_users, LENGTHS].to_numpy(float)[0]
        options = None
        if measured.draws and question.api_prices:
            options = weighed_rows(weigh(measured.draws, case.gpu_profiles, slo))
        api = api_comparison(case, chosen, options, headroom, lengths)

    return MeasuredRecommendation(
        llm_id=case.llm_id,
        basis=MEASURED,
        chosen=chosen,
        alternatives=outcomes,
        slo=slo,
        llm=case.configured_llm,
        risk=question.risk,
        source=case.source,
        gpu_profiles=case.gpu_profiles.values(),
        warnings=[
            *case.notes,
            *case.source.characterization.left_out,
            *case.naming_notes(),
            *judgements(measured.points, measured.latencies, slo),
            *steady_note(slo, "as measured"),
            *no_api_note(question, chosen, api),
        ],
        headroom=headroom,
        api=api,
        widget=measured.widget,
    )
