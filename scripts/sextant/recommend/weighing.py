"""What the options of a case are weighed by: draws of latencies, or simulated arrivals."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from sextant.answer.certainty import Cause, Unknown, find_cause, unknowns_of_laws
from sextant.answer.option import Option
from sextant.answer.pools import PoolsOption, size_pools
from sextant.answer.rate_sizer import N_DRAWS, Cheapest, RateSizer, target_of
from sextant.ask.case import Case
from sextant.ask.forecast import Forecast, fit_medians
from sextant.ask.laws import candidate_laws
from sextant.ask.scheduling import Settings
from sextant.base.errors import InputError
from sextant.base.files import frame_rows
from sextant.decide.decision import (
    FAIR,
    SAFE,
    best_probe,
    choose,
    most_telling,
    sustained,
    weigh,
    weigh_needed,
)
from sextant.decide.most_replicas import MOST_REPLICAS
from sextant.decide.sizing import candidates, recommend_cheapest
from sextant.facts.slo import SLO
from sextant.pages.blocks import Widget
from sextant.predict.predictor import Draws
from sextant.recommend.recommendation import Misses, WeighedRow

_NEVER_MS = 1e9
"""Latency of a request that is not answered."""


@dataclass(frozen=True)
class Weighing:
    """A forecast of one LLM, with what a request rate is sized by."""

    forecast: Forecast
    sizer: RateSizer | None = None
    """None: the load is users, or no law of a step is known."""

    @property
    def case(self) -> Case:
        """The LLM, and how it is served."""
        return self.forecast.case

    @property
    def slo(self) -> SLO:
        """Limits and load."""
        return self.forecast.slo

    @cached_property
    def draws(self) -> Draws:
        """Joint draws of latencies on every candidate, for a load in users."""
        return self.forecast.draws

    @property
    def most_users_tried(self) -> int | None:
        """The most users of a replica whose latencies were drawn; None: a rate is simulated."""
        return int(self.draws.X["users"].max()) if self.sizer is None else None

    def most_telling_profile(self) -> str:
        """Return the GPU profile whose measurement would tell most."""
        gpu_profiles = self.case.gpu_profiles
        if self.sizer is None:
            return best_probe(self.draws, gpu_profiles, [self.slo])
        prices = {name: profile.usd_per_hour for name, profile in gpu_profiles.items()}
        loads = self.sizer.loads(self.slo, [*self.sizer.servers]).iloc[1:]
        return most_telling(loads, prices)

    def options(self, slo: SLO | None = None) -> pd.DataFrame:
        """Return what `weigh` says of every option, for this SLO or another."""
        slo = slo or self.slo
        gpu_profiles = self.case.gpu_profiles
        if self.sizer is None:
            return weigh(self.forecast.draws_for(slo), gpu_profiles, slo)
        needed = self.sizer.needed(slo, [*self.sizer.servers])
        return weigh_needed(self.case.llm_id, needed, gpu_profiles, slo)

    def choose(self, options: pd.DataFrame, slo: SLO) -> pd.DataFrame:
        """Return the chosen option in one row, which has `llm_id` alone if none is chosen.

        By utility, an option needs a probability of `FAIR`. For a request rate, the cheapest option
        of `SAFE` or more is taken, if there is one, as `sextant capacity` does.
        """
        question = self.case.question
        if question.decision == "paper":
            return self._choose_by_medians(options, slo)
        if question.risk is not None:
            return choose(options, question.risk)
        probability = options["probability_met"]
        if self.sizer is not None and (probability >= SAFE).any():
            return choose(options, 1 - SAFE)
        return choose(options.assign(probability_met=probability.where(probability >= FAIR, 0)))

    def _choose_by_medians(self, options: pd.DataFrame, slo: SLO) -> pd.DataFrame:
        """Choose by eq. 1-3 of LLM-Pilot, as if the medians, or the likeliest law, were certain."""
        case = self.case
        keys = ["llm_id", "gpu_profile_id", "replicas"]
        if self.sizer is not None:
            likeliest = self.sizer.likeliest(slo, [*self.sizer.servers])
            weighed = weigh_needed(case.llm_id, likeliest, case.gpu_profiles, slo)
            best = choose(weighed, risk=0.5).drop(columns="probability_met")
            return best.merge(options[[*keys, "probability_met"]], on=keys, how="left")
        medians = self.draws.X.join(self.draws.summary())
        rows = candidates(medians, [case.llm_id], case.gpu_profiles, slo)
        # What each replica gets of the users, as the other decision states it.
        best = recommend_cheapest(rows).drop(columns="users_per_replica")
        weighed = options[[*keys, "users_per_replica", "probability_met"]]
        return best.merge(weighed.astype({"replicas": "Int64"}), on=keys, how="left")

    def ratios_by_draw(
        self, profile_id: str, replicas: int, users: int | None, is_possible: bool
    ) -> dict[str, np.ndarray]:
        """Return each latency of an option over its limit, by draw.

        Where no number of replicas is enough (not `is_possible`), requests share as many replicas
        as are ever tried, so that each is almost alone.
        """
        slo = self.slo
        if self.sizer is None:
            samples_ms = self.forecast.draws_at(profile_id, users or 1).samples_ms
            return slo.ratios(samples_ms[:, 0], self.case.lengths[0])
        n_replicas = replicas if is_possible else MOST_REPLICAS
        limited_ms = self.sizer.latencies(slo, profile_id, n_replicas).limited_ms
        return {
            metric: np.nan_to_num(limited_ms[metric], nan=_NEVER_MS, posinf=np.inf) / limit.limit_ms
            for metric, limit in slo.limits.items()
        }

    def cause_of(self, option: Option) -> Cause | None:
        """Return the unknown that most of the differences in what a GPU profile needs come from."""
        slo = self.slo
        profile_id = str(option.gpu_profile_id)
        if self.sizer is not None:
            loads = self.sizer.loads(slo, [profile_id])[profile_id].to_numpy()[1:]
            laws = self.sizer.servers[profile_id].laws
            replica_rps = slo.load / (option.replicas or 1)
            unknowns = unknowns_of_laws(laws, self.sizer.surface.request, replica_rps)
            return find_cause(profile_id, loads, unknowns)
        users = option.users_per_replica or 1
        draws = self.forecast.draws
        carried = sustained(draws, slo, of_load=True)[self.case.llm_id][profile_id].to_numpy()
        with np.errstate(divide="ignore"):
            loads = slo.load / carried
        first_ms, gap_ms = self.forecast.draws_at(profile_id, users).samples_ms[:, 0].T
        unknowns = [
            Unknown("first_token", first_ms, "ttft", users),
            Unknown("gap", gap_ms, "itl", users),
        ]
        return find_cause(profile_id, loads, unknowns)

    def misses_by_profile(self) -> dict[str, Misses]:
        """Return by how much median latencies at the least load miss their limits."""
        if self.sizer is not None:
            return {name: self._misses_alone(self.sizer, name) for name in self.sizer.servers}
        X, samples_ms = self.draws
        users = X["users"].to_numpy()
        is_lightest = users == users.min()
        medians_ms = np.median(samples_ms[:, is_lightest], axis=0)
        ratios_by_metric = self.slo.ratios(medians_ms, self.case.lengths)
        misses = {}
        for index, profile_id in enumerate(X.loc[is_lightest, "gpu_profile_id"]):
            ratios = {metric: float(values[index]) for metric, values in ratios_by_metric.items()}
            misses[profile_id] = Misses(
                fewest_users=int(users.min()), ratios=ratios, limit_ratio=max(ratios.values())
            )
        return misses

    def _misses_alone(self, sizer: RateSizer, profile_id: str) -> Misses:
        """Return the same of a request that is alone on a replica."""
        by_draw = sizer.borne_by(self.slo, profile_id).alone()
        ratios = {metric: float(np.median(values[1:])) for metric, values in by_draw.items()}
        return Misses(fewest_users=1, ratios=ratios, limit_ratio=max(ratios.values()))

    def separate_pools(self) -> PoolsOption | None:
        """Return prefill and decode on separate replicas; None: not asked for, or not enough."""
        sizer = self.sizer
        if sizer is None or not self.case.question.is_disaggregated:
            return None
        return size_pools(
            self.case,
            lambda case: (
                candidate_laws(case, Settings.of(case.question), N_DRAWS, sizer.model).servers
            ),
            sizer.traffic_of(self.slo),
            target_of(self.slo),
            1 - sizer.risk,
            sizer.surface,
        )

    def widget(self) -> Widget | None:
        """Return the part of the page in which the question can be changed, if there is one."""
        from sextant.recommend.what_if import of_arrivals, of_draws, what_if_widget

        case = self.case
        question = case.question
        if question.decision != "utility":
            return None
        prices = {name: profile.usd_per_hour for name, profile in case.gpu_profiles.items()}
        if self.sizer is not None:
            basis = of_arrivals(self.sizer, case.candidates, prices, question.slo)
            return what_if_widget(basis, question.risk)
        calibration = self.forecast.calibration
        measured = calibration.points if calibration else None
        basis = of_draws(self.draws, prices, question.slo, measured)
        return what_if_widget(basis, question.risk)


def weighed_rows(options: pd.DataFrame) -> list[WeighedRow]:
    """Return the options of `Weighing.options` as typed rows."""
    return [WeighedRow.of(row) for row in frame_rows(options)]


def weigh_case(forecast: Forecast) -> Weighing:
    """Return what a case's options are weighed by: a request rate by simulation where possible."""
    case = forecast.case
    if forecast.slo.request_rate_rps is None:
        return Weighing(forecast)
    risk = case.question.risk
    try:
        sizer = RateSizer.of(case, fit_medians(case), 1 - SAFE if risk is None else risk)
    except InputError:  # no law of a step is known
        return Weighing(forecast)
    return Weighing(forecast.of_case(case.excluding(sizer.unknown)), sizer)


def weigh_beside(weighing: Weighing, forecast: Forecast, cheapest: Cheapest) -> Weighing | None:
    """Return what the options of another case of the same question are weighed by.

    Args:
        weighing: of the answer.
        forecast: of the other case.
        cheapest: which of its GPU profiles are drawn, where a request rate is sized.

    None: no GPU profile is cheap enough.
    """
    if weighing.sizer is None:
        return Weighing(forecast)
    try:
        return Weighing(forecast, weighing.sizer.beside(forecast.case, cheapest))
    except InputError:
        return None
