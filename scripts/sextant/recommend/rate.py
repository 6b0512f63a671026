"""Replicas for a request rate, by simulating requests that arrive at random."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from sextant.ask.case import Case
from sextant.ask.forecast import fit_medians
from sextant.ask.laws import Settings, server_laws
from sextant.base.errors import InputError
from sextant.decide.decision import SAFE
from sextant.decide.profile_sizing import is_near, size_profiles
from sextant.decide.simulated_sizing import (
    SimulatedReplica,
    Sizing,
    SizingSettings,
    rate_at_slo,
    simulated_server,
)
from sextant.decide.sizing import draws_needed
from sextant.decide.windows import Target, judge_windows
from sextant.facts.slo import SLO
from sextant.law.roofline import Roofline
from sextant.simulate.simulation import on_threads
from sextant.workload.lengths import Length, RequestLengths, length_sampler
from sextant.workload.requests import SteadyTraffic

N_DRAWS = 32
"""Draws of the law and the traffic beside the likeliest law; more where the risk needs more."""


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
    """Dearer options are of no use, and few options are needed; None: all count."""
    most_drawn: int | None = None
    """GPU profiles that are worth draws; None: all."""
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
            most_usd_per_hour: price of the dearest option that is of use; None: all count.
            model: a fit to share; None: a new one.
            most_drawn: GPU profiles that are worth draws; None: all.
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
        traffic = _steady_traffic(case)
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
            is_brief: whether the answer does not rest on it (`size_profiles`).
            is_best_enough: whether nothing but the best option is shown of it.
        """
        sizings = self._sized(slo, is_brief, is_best_enough)
        n_draws = max((len(sizing.needs) for sizing in sizings.values()), default=0) or 1 + N_DRAWS
        never = [np.inf] * n_draws
        needs = {name: sizings[name].needs if name in sizings else () for name in profile_ids}
        return pd.DataFrame({name: np.array(counts or never) for name, counts in needs.items()})

    def _sized(self, slo: SLO, is_brief: bool, is_best_enough: bool) -> dict[str, Sizing]:
        if (slo, is_brief) in self.sizings:
            return self.sizings[slo, is_brief]
        # Else the answer is that of a question by itself.
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

    def latencies(self, slo: SLO, profile_id: str, replicas: int) -> dict[str, np.ndarray]:
        """Return each limit's latency in ms by draw, and how many requests are `in_flight`."""
        server = self.servers[profile_id]
        target = target_of(slo)
        traffic = self.traffic_of(slo)

        def of_draw(draw: int) -> dict[str, float]:
            results = server.run(traffic.drawn(draw), replicas, draw, None)
            windows = judge_windows(results, target, 1).latencies_ms
            in_flight = slo.load / replicas * float(np.nanmean(results.e2e_s))
            return {name: values[0] for name, values in windows.items()} | {"in_flight": in_flight}

        rows = on_threads(of_draw, range(self.n_draws(slo)))
        return {name: np.array([row[name] for row in rows]) for name in rows[0]}

    def most_rps(self, slo: SLO, profile_id: str, replicas: int) -> float:
        """Return the rate that each of so many replicas serves, by the likeliest law."""
        server = self.servers[profile_id]
        requests = self.traffic_of(slo).drawn(0)
        most_rps = rate_at_slo(server, requests, target_of(slo), slo.load, replicas)
        bound = server.bound(requests)
        return min((most_rps or 0.0) / replicas, bound.rate_rps if bound else np.inf)

    def traffic_of(self, slo: SLO) -> SteadyTraffic:
        """Return what arrives at the rate of an SLO."""
        return replace(self.traffic, rate_rps=slo.load, _streams={})

    def is_near(self, slo: SLO) -> bool:
        """Return whether further draws could change the answer (`profile_sizing.is_near`)."""
        return is_near([*self.sizings[slo, False].values()], self.confidence)

    @property
    def kind(self) -> str:
        """How requests arrive: `poisson` or `gamma`."""
        return "poisson" if self.traffic.alpha == 1 else "gamma"


def _steady_traffic(case: Case) -> SteadyTraffic:
    """Return what arrives, at 1/s, as in `sextant capacity`; Poisson without steady arrivals."""
    question = case.question
    lengths = question.requests
    if lengths is None:
        lengths = RequestLengths(*(Length(mean, mean) for mean in case.lengths[0]))
    if question.workload is None:
        return SteadyTraffic("given lengths", length_sampler(lengths), 1.0, 1.0, question.seed)
    from sextant.ask.traffic import traffic_at_rate  # few questions name a workload

    drawn = traffic_at_rate(1.0, question.workload, None, first_seed=question.seed)
    return drawn.steady() or SteadyTraffic(drawn.name, drawn.requests, 1.0, 1.0, question.seed)


def is_harder(slo: SLO, other: SLO) -> bool:
    """Return whether an SLO has no less load and no looser limits than another with the same."""
    limits_ms = [
        (limit.limit_ms, other.limits[metric].limit_ms) for metric, limit in slo.limits.items()
    ]
    return slo.load >= other.load and all(limit <= looser for limit, looser in limits_ms)


def target_of(slo: SLO) -> Target:
    """Return what replicas have to meet over the whole time."""
    return Target(slo.limits, slo.goodput, slo.allowed_failures, None)


def rate_notes(sizer: RateSizer, slo: SLO, is_undecided: bool) -> list[str]:
    """Return how the rate was sized, and whether more draws could change the answer."""
    alpha = sizer.traffic.alpha
    how = "Poisson" if alpha == 1 else f"Gamma gaps of shape {alpha:.3g}, those of the workload"
    n_draws = sizer.n_draws(slo)
    text = f"Requests arrive at random ({how}), simulated over {n_draws} draws of law and traffic"
    if is_undecided or sizer.is_near(slo):
        text += (
            ": the decision is near, and a longer run could change it (`sextant capacity` with the "
            f"same options and --draws {4 * N_DRAWS})"
        )
    return [f"{text}."]
