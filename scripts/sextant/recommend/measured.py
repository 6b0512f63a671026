"""A recommendation from what was measured of the LLM itself (LLM-Pilot, eq. 1-3)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self

import pandas as pd

from sextant.answer.option import Option
from sextant.answer.rate_sizer import steady_note
from sextant.ask.api_prices import ApiComparison
from sextant.ask.case import Case
from sextant.ask.caveats import failure_notes, judgements
from sextant.base.errors import InputError
from sextant.base.files import frame_rows
from sextant.decide.decision import (
    FAIR,
    MeasuredDraws,
    best_by_profile,
    measured_draws,
    weigh,
    with_probabilities,
)
from sextant.decide.headroom import Headroom, measure_headroom
from sextant.decide.measured_rates import (
    RateBounds,
    is_one_setup,
    rate_bounds,
    rate_latencies,
    rate_points,
    worst_first,
)
from sextant.decide.sizing import candidates, check_curves, ruled_out
from sextant.deploy.settings import settings_of
from sextant.facts.slo import METRICS
from sextant.pages.blocks import Widget
from sextant.pages.words import per_second, percent, plural
from sextant.points.frame import LENGTHS, judged
from sextant.predict.predictor import MEASURED
from sextant.recommend.cost import api_comparison, no_api_note
from sextant.recommend.recommendation import MeasuredOutcome, MeasuredRecommendation, Misses
from sextant.recommend.weighing import weighed_rows

_REPEATED = "Some loads were measured several times: of each the slowest run counts."


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
    bounds: Sequence[RateBounds] = ()
    """What replicas bear of requests at measured rates; empty where points have users."""

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
        slo = case.question.slo
        bounds: Sequence[RateBounds] = ()
        at_rates = rate_points(on_candidates)
        if slo.request_rate_rps is not None and len(at_rates):
            on_candidates = at_rates
            latencies = rate_latencies(on_candidates, slo)
            bounds = rate_bounds(latencies, slo)
            # GPU profiles that nobody named are offered where they were measured.
            names = {*case.question.gpu_profile_ids, *on_candidates["gpu_profile_id"]}
            profiles = {name: case.gpu_profiles[name] for name in case.gpu_profiles.keys() & names}
            case = replace(case, gpu_profiles=dict(sorted(profiles.items())))
        else:
            with_users = on_candidates[on_candidates["users"].notna()]
            on_candidates = with_users if len(with_users) else on_candidates
            if not _is_repeated(on_candidates):
                check_curves(on_candidates)
            latencies = worst_first(judged(on_candidates, slo), slo, "users")
        draws = measured_draws(latencies, slo, case.question.seed)
        return cls(case, on_candidates, latencies, draws, bounds)

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
        most_users = self.latencies.groupby("gpu_profile_id")["users"].max().to_dict()
        bounds = {bound.gpu_profile_id: bound for bound in self.bounds}
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
                load = plural(fewest_users, "user")
                if (bound := bounds.get(profile_id)) and bound.missed_rps is not None:
                    load = per_second(bound.missed_rps)
                share = percent(failed_share)
                reason = f"{share} of the requests failed with {load}, {allowed} allowed"
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
                    rates=bounds.get(profile_id),
                )
            )
        return outcomes

    def likely(self, outcomes: Sequence[MeasuredOutcome]) -> list[MeasuredOutcome]:
        """Return the outcomes, each with an option that is likely enough.

        That is the asked probability (1 - risk), or `FAIR`. A GPU profile has its cheapest option
        of this probability, else its most likely option, which is `unsure`. Without a risk an
        option that is as likely as `FAIR` stays, and so does one whose probability is not known.

        Raises:
            InputError: a risk is asked for, and nothing is known of the requests behind the points.
        """
        case = self.case
        risk = case.question.risk
        if self.draws is None:
            if risk is None:
                return [*outcomes]
            problem = (
                f"{case.source.characterization.source} has no intervals of the latencies of "
                f"{case.llm_id}: no risk is known"
            )
            fix = "leave it out, or describe the LLM with --hf-config: then it is predicted"
            raise InputError(problem, field="--risk", fix=fix)

        wanted = FAIR if risk is None else 1 - risk
        options = weigh(self.draws, case.gpu_profiles, case.question.slo)
        best = {row.gpu_profile_id: row for row in weighed_rows(best_by_profile(options, wanted))}
        likely = []
        for outcome in outcomes:
            row = best.get(outcome.gpu_profile_id)
            is_kept = risk is None and (
                outcome.status != "meets" or (outcome.probability_met or 1.0) >= wanted
            )
            if row is not None and not is_kept:
                if row.probability_met >= wanted:
                    outcome = replace(outcome, option=row.option, status="meets", reason=None)
                elif outcome.status == "meets":
                    outcome = replace(outcome, option=row.option, status="unsure")
            likely.append(outcome)
        return likely

    def cheapest(self, outcomes: Sequence[MeasuredOutcome]) -> Option:
        """Return the cheapest option that meets the SLO; of equal prices the likelier one, then
        that of fewer GPUs."""
        options = [outcome.option for outcome in outcomes if outcome.status == "meets"]

        def order(option: Option) -> tuple[float, float, int, str]:
            name = option.gpu_profile_id or ""
            n_gpus = self.case.gpu_profiles[name].n_gpus * (option.replicas or 0)
            return (option.usd_per_hour or 0.0, -(option.probability_met or 0.0), n_gpus, name)

        return min(options, key=order, default=Option())

    def headroom(self, chosen: Option) -> Headroom | None:
        """Return the room of the recommended option; None: nothing is recommended."""
        if chosen.gpu_profile_id is None:
            return None
        slo = self.case.question.slo
        usd_per_hour = chosen.usd_per_hour or 0.0
        return measure_headroom(self.curve(chosen), slo, chosen.replicas or 1, usd_per_hour)

    def api(self, chosen: Option, headroom: Headroom) -> ApiComparison | None:
        """Return the recommended option beside an API's prices; None: not asked for."""
        case = self.case
        curve = self.curve(chosen)
        lengths = curve.loc[curve["users"] == headroom.level_users, LENGTHS].to_numpy(float)[0]
        options = None
        if self.draws and case.question.api_prices:
            options = weighed_rows(weigh(self.draws, case.gpu_profiles, case.question.slo))
        return api_comparison(case, chosen, options, headroom, lengths)

    def curve(self, option: Option) -> pd.DataFrame:
        """Return the latencies of an option's GPU profile, by load."""
        return self.latencies[self.latencies["gpu_profile_id"] == option.gpu_profile_id]

    def rate_notes(self, chosen: Option) -> list[str]:
        """Return what the answer to a request rate rests on; nothing of users."""
        if not self.bounds:
            return steady_note(self.case.question.slo, "as measured")
        names = (chosen.gpu_profile_id,) if chosen.gpu_profile_id else self.case.gpu_profiles
        return [bound.words for bound in self.bounds if bound.gpu_profile_id in names]

    def widget(self) -> Widget | None:
        """Return the part of the page in which the question can be changed, if there is one."""
        from sextant.recommend.what_if import of_points, what_if_widget

        case = self.case
        if case.question.risk is not None or self.bounds:
            return None
        prices = {name: profile.usd_per_hour for name, profile in case.gpu_profiles.items()}
        basis = of_points(self.latencies, prices, case.question.slo)
        return what_if_widget(basis) if basis else None


def _cheapest_first(outcome: MeasuredOutcome) -> tuple[float, float]:
    """Return what outcomes are sorted by: those without a price come last."""
    usd = outcome.usd_per_hour
    return math.inf if usd is None else usd, -(outcome.probability_met or 0.0)


def _is_repeated(points: pd.DataFrame) -> bool:
    """Return whether loads were measured several times, with the same servers and requests."""
    if points["users"].isna().any() or not points.duplicated(["gpu_profile_id", "users"]).any():
        return False
    is_one = points[["workload_id", "scenario_id"]].nunique(dropna=False).max() == 1
    return is_one and all(is_one_setup(part) for _, part in points.groupby("gpu_profile_id"))


def recommend_measured(case: Case) -> MeasuredRecommendation:
    """Size the replicas by the LLM's own points.

    Raises:
        InputError: the LLM was measured on no candidate, a point is ambiguous, or a risk is asked
            for and no interval is known.
    """
    question = case.question
    slo = question.slo
    measured = _MeasuredCase.of(case)
    case = measured.case

    by_points = measured.outcomes(measured.candidates())
    outcomes = sorted(measured.likely(by_points), key=_cheapest_first)
    chosen = measured.cheapest(outcomes)
    overspend = None
    if question.risk is None and chosen.usd_per_hour is not None:
        optimum = measured.cheapest(by_points).usd_per_hour or chosen.usd_per_hour
        overspend = chosen.usd_per_hour / optimum - 1
    headroom = measured.headroom(chosen)
    api = None if headroom is None else measured.api(chosen, headroom)

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
        settings_on=partial(settings_of, case),
        warnings=[
            *failure_notes(measured.points, slo),
            *case.notes,
            *case.source.left_out_notes,
            *case.assumed_notes(),
            *judgements(measured.points, measured.latencies, slo),
            *([_REPEATED] if _is_repeated(measured.points) else []),
            *measured.rate_notes(chosen),
            *no_api_note(question, chosen, api),
        ],
        headroom=headroom,
        api=api,
        widget=measured.widget,
        overspend=overspend,
    )
