"""What the recommended deployment is expected to do, cost and draw; and what an API would cost."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from sextant.answer.option import Option
from sextant.ask.api_prices import ApiComparison, Billed, OwnDeployment, compare_with_api
from sextant.ask.case import Case
from sextant.ask.forecast import SEED, Forecast
from sextant.ask.question import Question
from sextant.base.files import frame_rows
from sextant.decide.decision import SAFE
from sextant.decide.headroom import Headroom, LimitRoom, LostReplica, measure_headroom
from sextant.facts.gpu import HOURS_PER_MONTH, token_prices
from sextant.law.energy import Energy as EnergyLaw
from sextant.law.fits import energy_or_restore
from sextant.points import frame
from sextant.recommend.recommendation import (
    NO_ENERGY,
    EnergyAnswer,
    EnergyPerToken,
    Interval,
    PredictedOutcome,
    ReplicaForecast,
    TokenCost,
    WeighedRow,
    worst_metric,
)
from sextant.recommend.weighing import Weighing

_STEP = ["launch_ms", "weights_ms", "kv_ms", "sequences_ms"]
"""Terms of a step of decode, without the prompts that it prefills."""


def expect_users(
    weighing: Weighing, chosen: Option, options: Sequence[WeighedRow]
) -> tuple[ReplicaForecast, Headroom]:
    """Return the latencies of the chosen option and its headroom, by the medians over the load."""
    slo = weighing.slo
    profile_id = str(chosen.gpu_profile_id)
    users = chosen.users_per_replica or 1
    replicas = chosen.replicas or 1
    latencies = weighing.forecast.latencies_at(profile_id, users).to_dict()
    ratios = {metric: latencies[f"{metric}_ratio"] for metric in slo.limits}
    rate_of_users_rps = latencies["requests_per_s"]

    X = weighing.draws.X
    curve = X[X["gpu_profile_id"] == profile_id].join(weighing.draws.summary())
    curve = curve.sort_values("users")
    tried = curve["users"]
    is_beyond = tried >= users
    of_profile = next(option for option in options if option.gpu_profile_id == profile_id)
    forecast = ReplicaForecast(
        users=users,
        latencies_ms={
            metric: Interval(*(latencies[f"{metric}_{end}ms"] for end in ("", "lo_", "hi_")))
            for metric in ("nttft", "itl", *(m for m in slo.limits if m not in ("nttft", "itl")))
        },
        ratios=ratios,
        requests_per_s=rate_of_users_rps,
        binding_limit=worst_metric(ratios),
        load=slo.load / replicas,
        load_median=of_profile.load_median or 0.0,
        users_served=of_profile.users_served,
        most_users_tried=int(tried.max()),
        # Not every number of users is judged: the next one that is, to be safe.
        checked_at_users=int(tried[is_beyond].min()) if is_beyond.any() else None,
    )

    rate_rps = slo.request_rate_rps or slo.load / users * rate_of_users_rps
    curve = curve.assign(request_rate_rps=np.nan)
    usd = chosen.usd_per_hour or 0.0
    return forecast, measure_headroom(curve, slo, replicas, usd, rate_rps)


def expect_rate(weighing: Weighing, chosen: Option) -> tuple[ReplicaForecast, Headroom]:
    """Return the latencies of the chosen option and its headroom, by simulated arrivals."""
    sizer = weighing.sizer
    assert sizer is not None
    slo = weighing.slo
    profile_id = str(chosen.gpu_profile_id)
    replicas = chosen.replicas or 1
    latencies = sizer.latencies(slo, profile_id, replicas)
    needs = sizer.needed(slo, [profile_id])[profile_id].to_numpy()
    most_rps = sizer.most_rps(slo, profile_id)

    intervals = {metric: Interval.of(latencies.limited_ms[metric]) for metric in slo.limits}
    ratios = {
        metric: interval.median / slo.limits[metric].limit_ms
        for metric, interval in intervals.items()
    }
    forecast = ReplicaForecast(
        users=max(round(float(np.median(latencies.in_flight))), 1),
        latencies_ms=intervals,
        ratios=ratios,
        requests_per_s=slo.load / replicas,
        binding_limit=worst_metric(ratios),
        load=slo.load / replicas,
        load_median=most_rps,
    )
    return forecast, _rate_headroom(weighing, chosen, forecast, needs)


def _rate_headroom(
    weighing: Weighing, chosen: Option, forecast: ReplicaForecast, needs: np.ndarray
) -> Headroom:
    """Return the headroom of replicas at a simulated rate; `needs` are the replicas by draw."""
    slo = weighing.slo
    replicas = chosen.replicas or 1
    most = replicas * forecast.load_median
    rooms = []
    for metric, limit in slo.limits.items():
        latency_ms = forecast.latencies_ms[metric]
        rooms.append(
            LimitRoom(
                metric,
                limit.limit_ms,
                limit.percentile,
                latency_ms.median,
                latency_ms.lo,
                latency_ms.hi,
                headroom=1 - latency_ms.median / limit.limit_ms,
                load=most,
                is_most_tried=False,
            )
        )
    left = replicas - 1
    probability_left = float((needs <= left).mean())
    left_load = left * forecast.load_median
    without_one = LostReplica(left, left_load, probability_left >= SAFE, probability_left)
    usd = chosen.usd_per_hour or 0.0
    lengths = weighing.case.lengths[0].tolist()
    return Headroom(
        users_per_replica=forecast.users,
        level_users=forecast.users,
        limits=tuple(rooms),
        load=most,
        is_most_tried=False,
        is_open=False,
        without_one=without_one if left else None,
        requests_per_s=slo.load,
        most_requests_per_s=most,
        usd_per_hour=usd,
        usd_per_month=HOURS_PER_MONTH * usd,
        usd_per_million_tokens=token_prices(usd, slo.load, lengths)[0],
    )


def price_tokens(weighing: Weighing, chosen: Option, replica: ReplicaForecast) -> TokenCost:
    """Return what a million tokens of the chosen deployment cost at its load.

    The price is split by the device time that a request's prefill and decode take, from the terms
    of the law; a predictor without terms splits it by tokens. Where users are asked for, the rate
    is that of Little's law.
    """
    forecast = weighing.forecast
    slo = weighing.slo
    profile_id = str(chosen.gpu_profile_id)
    lengths = weighing.case.lengths[0]
    rate_rps = slo.request_rate_rps or slo.load / replica.users * replica.requests_per_s
    prefill_share = None
    if (explain := getattr(forecast.model, "explain", None)) is not None:
        rows = weighing.case.rows_at(forecast.model, [replica.users], [profile_id])
        terms: pd.Series = explain(rows).iloc[0]
        # A step of decode is shared by the requests of its batch.
        step_ms = terms[_STEP].sum() + terms.get("overlap_ms", 0.0)
        decode_ms = (lengths[1] > 1) * lengths[1] * step_ms / max(terms["itl_batch"], 1.0)
        prefill_ms = terms["prefill_ms"]
        prefill_share = float(prefill_ms / (prefill_ms + decode_ms))
    input_usd, output_usd = token_prices(
        chosen.usd_per_hour or 0.0, rate_rps, lengths, prefill_share
    )
    most = replica.load_median * (chosen.replicas or 1)
    return TokenCost(
        input_usd,
        output_usd,
        split="tokens" if prefill_share is None else "time",
        prefill_share=lengths[0] / lengths.sum() if prefill_share is None else prefill_share,
        requests_per_s=rate_rps,
        utilisation=slo.load / most if most else None,
    )


def api_comparison(
    case: Case,
    chosen: Option,
    options: Sequence[WeighedRow] | None,
    headroom: Headroom,
    lengths: np.ndarray,
) -> ApiComparison | None:
    """Compare the chosen option with an API, if that is asked for and requests are known.

    Args:
        case: the LLM, and how it is served.
        chosen: the recommended option.
        options: all options; None: nothing is known of probabilities.
        headroom: rate and price of the chosen option.
        lengths: mean input and output tokens of a request.
    """
    question = case.question
    if question.api_prices is None or headroom.usd_per_million_tokens is None:
        return None

    def probability(replicas: int) -> float | None:
        if options is None:
            return None
        paid = (
            option.probability_met
            for option in options
            if option.gpu_profile_id == chosen.gpu_profile_id and option.replicas <= replicas
        )
        return max(paid, default=0.0)

    rate_rps = headroom.requests_per_s or 0.0
    billed = Billed(rate_rps, float(lengths[0]), float(lengths[1]), question.prefix_hit_rate)
    deployment = OwnDeployment(
        case.gpu_profiles[str(chosen.gpu_profile_id)],
        chosen.replicas or 0,
        headroom.most_requests_per_s,
        probability,
    )
    return compare_with_api(question.api_prices, case.llm_id, billed, deployment)


def no_api_note(question: Question, chosen: Option, api: ApiComparison | None) -> list[str]:
    """Return that the API that was asked for could not be compared with; nothing without one."""
    if question.api_prices and chosen.gpu_profile_id is not None and api is None:
        return ["No comparison with an API: the requests' rate or lengths are not known."]
    return []


def fit_energy(forecast: Forecast) -> EnergyLaw | None:
    """Return what devices draw, from all points that have energy and ITL; None without any."""
    points, facts = energy_basis(forecast.case, forecast.fitted_percentiles)
    return energy_or_restore(points, facts) if len(points) else None


def energy_basis(case: Case, percentiles: tuple[int, int]) -> tuple[pd.DataFrame, frame.FactTables]:
    """Return the points with energy, and an ITL at a percentile, and their facts."""
    points = frame.at_percentile(case.source.characterization.points, percentiles)
    measured = points[["itl_ms", "energy_j_per_token"]]
    points = points[points["users"].notna() & (measured > 0).all(axis=1)]
    facts = frame.FactTables(case.measured_llms, case.source.characterization.profiles)
    return case.measured_keys(points).join(measured), facts


def energy_by_profile(
    forecast: Forecast, law: EnergyLaw | None, users_by_profile: Mapping[str, int]
) -> dict[str, EnergyPerToken]:
    """Return joules per output token of a replica with these users, by GPU profile.

    Nothing where the source has no energy, None where the device has no TDP.
    """
    if law is None or not users_by_profile:
        return {}
    case = forecast.case
    keys = pd.DataFrame(
        {
            "llm_id": case.llm_id,
            "gpu_profile_id": [*users_by_profile],
            "users": [*users_by_profile.values()],
        }
    )[["gpu_profile_id", "users", "llm_id"]]
    X = case.asked_rows(forecast.model, keys, case.gpu_profiles)
    itl_ms = forecast.means_ms(forecast.draw(X))[..., 1]
    replicas = keys.assign(**case.serving.columns())
    facts = frame.FactTables(case.llms, case.gpu_profiles)
    rows = frame_rows(law.predict(replicas, facts, itl_ms, SEED))
    return {
        profile_id: EnergyPerToken(**row)
        for profile_id, row in zip(users_by_profile, rows, strict=True)
    }


def with_energy(
    forecast: Forecast, law: EnergyLaw | None, outcomes: Sequence[PredictedOutcome]
) -> list[PredictedOutcome]:
    """Return the outcomes with the energy of their replicas."""
    users_by_profile = {
        outcome.gpu_profile_id: outcome.option.users_per_replica
        for outcome in outcomes
        if outcome.option.users_per_replica is not None
    }
    energies = energy_by_profile(forecast, law, users_by_profile)
    return [
        replace(outcome, energy=energies.get(outcome.gpu_profile_id, NO_ENERGY))
        for outcome in outcomes
    ]


def answer_energy(
    forecast: Forecast, law: EnergyLaw | None, profile_id: str, users: int
) -> EnergyAnswer | None:
    """Return what a replica with these users draws, and what that rests on.

    None where the source has no energy, or the device's TDP is not known.
    """
    energy = energy_by_profile(forecast, law, {profile_id: users}).get(profile_id, NO_ENERGY)
    if law is None or energy.energy_j_per_token is None:
        return None
    points = forecast.case.source.characterization.points
    has_energy = points["energy_j_per_token"] > 0
    return EnergyAnswer(
        **energy._asdict(),
        wh_per_million_output_tokens=1e6 / 3600 * energy.energy_j_per_token,
        n_llms=law.n_llms,
        sources=sorted(points.loc[has_energy, "source"].unique()),
    )
