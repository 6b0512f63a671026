"""What the options of a case are weighed by: draws of latencies, or simulated arrivals."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pandas as pd

from sextant.ask.case import Case
from sextant.ask.forecast import Forecast
from sextant.base.errors import InputError
from sextant.decide.decision import FAIR, SAFE, choose, probed, weigh, weigh_needed
from sextant.decide.sizing import MOST_REPLICAS, candidates, recommend_cheapest
from sextant.facts.slo import SLO
from sextant.law.roofline import Roofline
from sextant.predict.predictor import Draws
from sextant.recommend.rate import RateSizer

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
        """Joint draws on every candidate.

        Where arrivals are simulated they only say what to measure, and few loads will do.
        """
        forecast = self.forecast
        if self.sizer is None:
            return forecast.draws
        return forecast.draw(self.case.rows_at(forecast.model, probed(forecast.users)))

    def options(self, slo: SLO | None = None) -> pd.DataFrame:
        """Return what `weigh` says of every option, for this SLO or another."""
        slo = slo or self.slo
        gpu_profiles = self.case.gpu_profiles
        if self.sizer is None:
            return weigh(self.forecast.draws_for(slo), gpu_profiles, slo)
        is_other = slo != self.slo
        needed = self.sizer.needed(
            slo,
            self.case.candidates,
            is_brief=is_other,
            is_best_enough=is_other and self.case.question.decision == "utility",
        )
        return weigh_needed(self.case.llm_id, needed, gpu_profiles, slo)

    def choose(self, options: pd.DataFrame, slo: SLO) -> pd.DataFrame:
        """Return the chosen one of these options, in one row; nothing but `llm_id` without one.

        By utility, an option needs a probability of `FAIR`. Of a request rate the cheapest option
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
            likeliest = self.sizer.needed(slo, case.candidates).iloc[:1]
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

        Where no number of replicas is enough (not `is_possible`), of requests almost alone.
        """
        slo = self.slo
        if self.sizer is None:
            samples_ms = self.forecast.draws_at(profile_id, users or 1).samples_ms
            return slo.ratios(samples_ms[:, 0], self.case.lengths[0])
        n_replicas = replicas if is_possible else MOST_REPLICAS
        latencies_ms = self.sizer.latencies(slo, profile_id, n_replicas)
        return {
            metric: np.nan_to_num(latencies_ms[metric], nan=_NEVER_MS) / limit.limit_ms
            for metric, limit in slo.limits.items()
        }


def weigh_case(
    forecast: Forecast,
    *,
    model: Roofline | None = None,
    most_usd_per_hour: float | None = None,
    most_drawn: int | None = None,
    wanted: float | None = None,
) -> Weighing:
    """Return what a case's options are weighed by: a request rate by simulation where possible.

    Args:
        forecast: of the LLM of the case.
        model: a fit of the law of a step to share; None: a new one.
        most_usd_per_hour: price of the dearest option that is of use; None: all count.
        most_drawn: GPU profiles that are worth draws; None: all.
        wanted: the probability to find replicas for, by default the question's.
    """
    if forecast.slo.request_rate_rps is None:
        return Weighing(forecast)
    try:
        sizer = RateSizer.of(forecast.case, most_usd_per_hour, model, most_drawn, wanted)
    except InputError:  # no law of a step is known
        return Weighing(forecast)
    case = forecast.case.excluding(sizer.unknown)
    return Weighing(forecast.of_case(case), sizer)
