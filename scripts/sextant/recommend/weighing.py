"""What the options of a case are weighed by: draws of latencies, or simulated arrivals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.pools import PoolsOption, size_pools
from sextant.ask.case import Case
from sextant.ask.forecast import Forecast, fit_medians
from sextant.ask.laws import Settings, server_laws
from sextant.base.errors import InputError
from sextant.base.files import frame_rows
from sextant.decide.decision import FAIR, SAFE, choose, probed, weigh, weigh_needed
from sextant.decide.profile_sizing import is_near, size_profiles
from sextant.decide.simulated_sizing import (
    SimulatedReplica,
    Sizing,
    SizingSettings,
    rate_at_slo,
    simulated_server,
)
from sextant.decide.sizing import MOST_REPLICAS, candidates, draws_needed, recommend_cheapest
from sextant.decide.windows import Target, judge_windows
from sextant.facts.slo import SLO
from sextant.law.roofline import Roofline
from sextant.pages.blocks import Widget
from sextant.predict.predictor import Draws
from sextant.recommend.recommendation import Misses, WeighedRow
from sextant.simulate.simulation import on_threads
from sextant.workload.lengths import Length, RequestLengths, length_sampler
from sextant.workload.requests import SteadyTraffic

N_DRAWS = 32
"""Draws of the law and the traffic beside the likeliest law; more where the risk needs more."""
_NEVER_MS = 1e9
"""Latency of a request that is not answered."""


class SimulatedLatencies(NamedTuple):
    """What simulated requests get from replicas, by draw; each array has shape (draws,)."""

    limited_ms: Mapping[str, np.ndarray]
    """Each limit's latency, by metric."""
    in_flight: np.ndarray
    """Mean number of requests in flight at a replica."""


@dataclass(frozen=True)
class RateSizer:
    """How the replicas of each GPU profile serve requests that arrive at random."""

    servers: Mapping[str, SimulatedReplica]
    unknown: Mapping[str, str]
    """Why other profiles have no law of a step."""
    model: Roofline
    """What the laws come from."""
    traffic: SteadyTraffic
    """At any rate."""
    confidence: float
    """The probability to find replicas for."""
    most_usd_per_hour: float | None = None
    """Options above this price are not sized, and fewer draws decide; None: all are sized."""
    most_drawn: int | None = None
    """The most GPU profiles that get draws beside the likeliest law; None: all."""
    sizings: dict[tuple[SLO, bool], dict[str, Sizing]] = field(default_factory=dict)
    """What was sized already, by SLO and whether it was sized briefly."""

    @classmethod
    def of(
        cls,
        case: Case,
        most_usd_per_hour: float | None = None,
        model: Roofline | None = None,
        most_drawn: int | None = None,
        wanted: float | None = None,
    ) -> "RateSizer":
        """Fit the laws of a step. Raises InputError where the points have none at all.

        Args:
            case: the LLM, and how it is served.
            most_usd_per_hour: options above this price are not sized; None: all are.
            model: a fit to share; None: a new one.
            most_drawn: the most GPU profiles that get draws beside the likeliest law; None: all.
            wanted: the probability to find replicas for, by default the question's.
        """
        question = case.question
        wanted = wanted or (SAFE if question.risk is None else 1 - question.risk)
        n_draws = max(N_DRAWS, draws_needed(wanted) - 1)
        model = model or fit_medians(case)
        are_few_drawn = most_usd_per_hour is not None
        laws, unknown = server_laws(case, Settings(), n_draws, model, are_few_drawn=are_few_drawn)
        if not laws:
            raise InputError("no GPU profile has a law of a step")
        servers = {
            profile_id: simulated_server(
                case.gpu_profiles[profile_id],
                server.schedulers,
                server.laws,
                question.prefix_hit_rate,
            )
            for profile_id, server in laws.items()
        }

        lengths = question.requests
        if lengths is None:
            lengths = RequestLengths(*(Length(mean, mean) for mean in case.lengths[0]))
        # What arrives, at 1/s, as in `sextant capacity`; Poisson without steady arrivals.
        if question.workload is None:
            name = "given lengths"
            traffic = SteadyTraffic(name, length_sampler(lengths), 1.0, 1.0, question.seed)
        else:
            from sextant.ask.traffic import traffic_at_rate  # few questions name a workload

            drawn = traffic_at_rate(1.0, question.workload, None, first_seed=question.seed)
            traffic = drawn.steady() or SteadyTraffic(
                drawn.name, drawn.requests, 1.0, 1.0, question.seed
            )
        return cls(servers, unknown, model, traffic, wanted, most_usd_per_hour, most_drawn)

    def needed(
        self,
        slo: SLO,
        profile_ids: Sequence[str],
        *,
        is_brief: bool = False,
        is_best_enough: bool = False,
    ) -> pd.DataFrame:
        """Return the replicas that each profile needs, by draw; infinite where none are enough.

        Args:
            slo: limits and rate.
            profile_ids: the GPU profiles, the columns of the result.
            is_brief: whether fewer draws are enough, as the answer does not rest on the result.
            is_best_enough: whether only the best option of the result is shown.
        """
        sizings = self._sized(slo, is_brief, is_best_enough)
        n_draws = max((len(sizing.needs) for sizing in sizings.values()), default=0) or 1 + N_DRAWS
        never = [np.inf] * n_draws
        needs = {name: sizings[name].needs if name in sizings else () for name in profile_ids}
        return pd.DataFrame({name: np.array(counts or never) for name, counts in needs.items()})

    def _sized(self, slo: SLO, is_brief: bool, is_best_enough: bool) -> dict[str, Sizing]:
        if (slo, is_brief) in self.sizings:
            return self.sizings[slo, is_brief]
        # The answer itself starts from no earlier sizing, so that it does not depend on them.
        earlier = reversed(self.sizings.items()) if is_brief else ()
        harder = (sizings for (other, _), sizings in earlier if is_harder(other, slo))
        easier = (sizings for (other, _), sizings in self.sizings.items() if is_harder(slo, other))
        settings = SizingSettings(
            has_rate=False,
            most_usd_per_hour=self.most_usd_per_hour or np.inf,
            brief_draws=1 + N_DRAWS if is_brief or self.most_usd_per_hour is not None else 0,
            most_drawn=self.most_drawn,
            is_best_enough=is_best_enough or self.most_drawn is not None,
        )
        self.sizings[slo, is_brief] = size_profiles(
            self.servers,
            self.traffic_of(slo),
            target_of(slo),
            self.confidence,
            settings,
            next(harder, {}),
            next(easier, {}) if is_brief else {},
        )
        return self.sizings[slo, is_brief]

    def n_draws(self, slo: SLO) -> int:
        """Return how many draws decide, the likeliest law included."""
        return len(self.needed(slo, [*self.servers]))

    def latencies(self, slo: SLO, profile_id: str, replicas: int) -> SimulatedLatencies:
        """Return the latencies of requests that share these replicas, and how many are in flight.

        Args:
            slo: limits and rate.
            profile_id: the replicas' GPU profile.
            replicas: that share the rate.
        """
        server = self.servers[profile_id]
        target = target_of(slo)
        traffic = self.traffic_of(slo)

        def of_draw(draw: int) -> tuple[dict[str, float], float]:
            results = server.run(traffic.drawn(draw), replicas, draw, None)
            windows = judge_windows(results, target, 1).latencies_ms
            in_flight = slo.load / replicas * float(np.nanmean(results.e2e_s))
            return {metric: values[0] for metric, values in windows.items()}, in_flight

        drawn = on_threads(of_draw, range(self.n_draws(slo)))
        limited_ms = {
            metric: np.array([latencies_ms[metric] for latencies_ms, _ in drawn])
            for metric in slo.limits
        }
        return SimulatedLatencies(limited_ms, np.array([in_flight for _, in_flight in drawn]))

    def most_rps(self, slo: SLO, profile_id: str, replicas: int) -> float:
        """Return the largest rate per replica within the limits, by the likeliest law."""
        server = self.servers[profile_id]
        requests = self.traffic_of(slo).drawn(0)
        most_rps = rate_at_slo(server, requests, target_of(slo), slo.load, replicas)
        bound = server.bound(requests)
        return min((most_rps or 0.0) / replicas, bound.rate_rps if bound else np.inf)

    def traffic_of(self, slo: SLO) -> SteadyTraffic:
        """Return what arrives at the rate of an SLO."""
        return replace(self.traffic, rate_rps=slo.load, _streams={})

    @property
    def kind(self) -> str:
        """How requests arrive: `poisson` or `gamma`."""
        return "poisson" if self.traffic.alpha == 1 else "gamma"

    def notes(self, slo: SLO, is_undecided: bool) -> list[str]:
        """Return how the rate was sized, and whether more draws could change the answer.

        Args:
            slo: limits and rate, sized already.
            is_undecided: whether the decision is near for another reason than the sizing.
        """
        how = "Poisson"
        if self.kind == "gamma":
            how = f"Gamma gaps of shape {self.traffic.alpha:.3g}, those of the workload"
        n_draws = self.n_draws(slo)
        text = f"Requests arrive at random ({how}), simulated over {n_draws} draws of law and "
        text += "traffic"
        if is_undecided or is_near([*self.sizings[slo, False].values()], self.confidence):
            text += (
                ": the decision is near, and a longer run could change it (`sextant capacity` with "
                f"the same options and --draws {4 * N_DRAWS})"
            )
        return [f"{text}."]


def is_harder(slo: SLO, other: SLO) -> bool:
    """Return whether an SLO has at least the load of another, and no looser limit.

    Both have limits on the same metrics.
    """
    limits_ms = [
        (limit.limit_ms, other.limits[metric].limit_ms) for metric, limit in slo.limits.items()
    ]
    return slo.load >= other.load and all(limit <= looser for limit, looser in limits_ms)


def target_of(slo: SLO) -> Target:
    """Return what replicas have to meet over the whole time."""
    return Target(slo.limits, slo.goodput, slo.allowed_failures, None)


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

        Where arrivals are simulated, the draws only choose the next measurement: few loads do.
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
            metric: np.nan_to_num(limited_ms[metric], nan=_NEVER_MS) / limit.limit_ms
            for metric, limit in slo.limits.items()
        }

    def misses_by_profile(self) -> dict[str, Misses]:
        """Return by how much median latencies at the fewest users miss their limits."""
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

    def separate_pools(self) -> PoolsOption | None:
        """Return prefill and decode on separate replicas; None: not asked for, or not enough."""
        sizer = self.sizer
        if sizer is None or not self.case.question.is_disaggregated:
            return None
        n_draws = next(iter(sizer.servers.values())).n_draws - 1
        return size_pools(
            self.case,
            lambda case: server_laws(case, Settings(), n_draws, sizer.model)[0],
            sizer.traffic_of(self.slo),
            target_of(self.slo),
            sizer.confidence,
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
            needed = partial(self.sizer.needed, profile_ids=case.candidates)
            return what_if_widget(of_arrivals(needed, prices, question.slo), question.risk)
        calibration = self.forecast.calibration
        measured = calibration.points if calibration else None
        basis = of_draws(self.draws, prices, question.slo, measured)
        return what_if_widget(basis, question.risk)


def weighed_rows(options: pd.DataFrame) -> list[WeighedRow]:
    """Return the options of `Weighing.options` as typed rows."""
    return [WeighedRow.of(row) for row in frame_rows(options)]


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
        most_usd_per_hour: options above this price are not sized; None: all are.
        most_drawn: the most GPU profiles that get draws beside the likeliest law; None: all.
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
