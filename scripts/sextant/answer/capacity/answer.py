"""The answer of `sextant capacity`: replicas on each GPU profile, and what would change them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from sextant.answer.answer import Answer, Option
from sextant.answer.capacity.changes import (
    Schedule,
    Terms,
    after_failure,
    after_growth,
    find_schedule,
    in_busiest_minute,
)
from sextant.answer.capacity.traffic import demand_notes
from sextant.answer.demand import Demand, Judged, SteadyTraffic, Target, Traffic
from sextant.answer.question import Question
from sextant.answer.sizing import (
    Server,
    Sizing,
    neighbours,
    simulated_server,
    size_profiles,
    summary,
)
from sextant.answer.step_laws import LLMLaws, Settings, find_laws
from sextant.base.errors import InputError
from sextant.decide.sizing import draws_needed
from sextant.facts.gpu import GPUProfile
from sextant.pages.wording import HOUR_S, plural
from sextant.simulate import Router

RISK = 0.1
N_DRAWS = 32
_N_BUCKETS = 240
_BUCKETS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400)


_ROW = (
    *("status", "replicas", "usd_per_hour", "probability_met", "replicas_lo", "replicas_hi"),
    *(
        "rate_at_slo_rps",
        "binds",
        "n_refused",
        "refused_share",
        "alone_limit",
        "alone_ratio",
        "kv_tokens",
        "is_gpu_measured",
        "reason",
    ),
)


@dataclass(frozen=True)
class CapacityQuestion:
    """A question with the traffic to simulate."""

    question: Question
    """The LLM, the candidates, their prices and the measurements; its SLO has the limits."""
    traffic: Traffic
    target: Target
    settings: Settings = field(default_factory=Settings)
    terms: Terms = field(default_factory=Terms)
    risk: float = RISK
    """Largest probability that a window is missed."""
    n_draws: int = N_DRAWS
    seed: int = 42
    router: Router = "round_robin"
    steady: SteadyTraffic | None = None
    """What the replicas are sized by in place of `traffic`, which then shows them over time."""


def answer_capacity(asked: CapacityQuestion, notes: Sequence[str] = ()) -> Answer:
    """Return the fewest replicas on each GPU profile that meet an SLO under this traffic.

    `notes` come before the answer's own warnings.

    Returns:
        The cheapest option; its own are `rate_at_slo_rps` and `demand`, and of the option
        `neighbours`, `failure`, `growth`, `burst`, `schedule` and `timeline`.

    Raises:
        InputError: an option is wrong, or the measurements cannot answer.
    """
    least_draws = draws_needed(1 - asked.risk) - 1  # the likeliest law is one more
    if 0 < asked.n_draws < least_draws:
        problem = f"{asked.n_draws} draws cannot show a risk of {asked.risk:g}"
        raise InputError(problem, field="--draws", fix=f"give --draws {least_draws} or more")
    demand = asked.traffic.drawn(0)
    offer = find_laws(asked.question, asked.settings, asked.n_draws)
    servers = {name: _server(asked, offer, name) for name in offer.laws}
    least = asked.terms.least
    sizings = size_profiles(
        servers, asked.steady or asked.traffic, asked.target, 1 - asked.risk, least=least
    )
    rows = [_row(name, sizing, offer) for name, sizing in sizings.items()]
    for name, reason in offer.excluded.items():
        is_measured = offer.is_measured(name)
        known = {"status": "does_not_fit", "reason": reason, "is_gpu_measured": is_measured}
        rows.append({"gpu_profile_id": name, **dict.fromkeys(_ROW), **known})
    rows.sort(key=partial(_rank, offer.profiles))
    chosen, more = rows[0], {"rate_at_slo_rps": None, "demand": demand.facts()}
    if chosen["replicas"]:
        more["rate_at_slo_rps"] = chosen["rate_at_slo_rps"]
        more |= _changes(sizings[chosen["gpu_profile_id"]], asked)
    return Answer(
        llm_id=offer.llm_id,
        basis="simulated",
        chosen=Option.of(chosen) if chosen["replicas"] else Option(),
        alternatives=rows,
        slo=asked.question.slo.facts() | asked.target.facts(),
        risk=asked.risk,
        source=offer.source,
        profiles=offer.profiles.values(),
        warnings=[*notes, *offer.warnings, *_warnings(demand, asked, offer)],
        serving=offer.facts,
        more=more,
    )


def _server(asked: CapacityQuestion, offer: LLMLaws, name: str) -> Server:
    laws, hit_rate = offer.laws[name], asked.question.prefix_hit_rate
    profile = offer.profiles[name]
    return simulated_server(profile, laws.schedulers, laws.laws, hit_rate, asked.router)


def _row(name: str, sizing: Sizing, offer: LLMLaws) -> dict[str, Any]:
    """Return the facts of a GPU profile; the interval of its replicas holds 90% of the draws."""
    low, high = None, None
    if len(sizing.needs):
        ends = np.quantile(sizing.needs, [0.05, 0.95], method="inverted_cdf")
        low, high = (int(end) if np.isfinite(end) else None for end in ends)
    worst = max(sizing.alone, key=sizing.alone.__getitem__, default=None)
    return {
        "gpu_profile_id": name,
        "status": sizing.status,
        "replicas": sizing.replicas,
        "usd_per_hour": sizing.usd_per_hour,
        "probability_met": sizing.replicas and sizing.probability(sizing.replicas),
        "replicas_lo": low,
        "replicas_hi": high,
        "rate_at_slo_rps": None if sizing.rate_rps == np.inf else sizing.rate_rps,
        "binds": sizing.binds,
        "n_refused": sizing.n_failed_alone,
        "refused_share": sizing.failed_share_alone,
        "alone_limit": worst,
        "alone_ratio": sizing.alone.get(worst or ""),
        "kv_tokens": offer.laws[name].schedulers[0].kv_tokens,
        "is_gpu_measured": offer.is_measured(name),
        "reason": None,
    }


def _rank(profiles: Mapping[str, GPUProfile], row: dict[str, Any]) -> tuple[Any, ...]:
    """Return what rows are sorted by: the cheaper, the likelier, fewer devices."""
    if row["replicas"] is None:
        return (True, row["gpu_profile_id"])
    name, probability = row["gpu_profile_id"], row["probability_met"] or 0.0
    n_devices = row["replicas"] * profiles[name].n_gpus
    return (False, row["usd_per_hour"], -probability, n_devices, name)


def _changes(sizing: Sizing, asked: CapacityQuestion) -> dict[str, Any]:
    """Return the results of the chosen replicas, and what would change them.

    Law and traffic are those of one draw: the one that needs these replicas.
    """
    target, terms, count = asked.target, asked.terms, sizing.count
    demand = asked.traffic.drawn(sizing.draw)
    sized_by = demand if asked.steady is None else asked.steady.drawn(sizing.draw)
    fixed = sizing.server.judge(demand, count, target, sizing.draw)
    by_slot = find_schedule(sizing, demand, target, terms)
    facts = by_slot.facts(count, demand.duration_s)
    saved = (facts["fixed_replica_hours"] - facts["replica_hours"]) / demand.duration_s * HOUR_S
    usd_saved = saved * sizing.server.profile.usd_per_hour
    return {
        "fixed": summary(fixed, target),
        "neighbours": neighbours(sizing, sized_by, target),
        "failure": after_failure(sizing, demand, target, terms.startup_s),
        "growth": after_growth(sizing, demand, target),
        "burst": in_busiest_minute(sizing, demand, target),
        "schedule": facts | terms._asdict() | {"usd_per_hour_saved": usd_saved},
        "timeline": _timeline(demand, target, fixed, by_slot, terms, count),
    }


def _timeline(
    demand: Demand, target: Target, fixed: Judged, by_slot: Schedule, terms: Terms, count: int
) -> dict[str, Any]:
    """Return traffic by bucket of time, and by window latencies and failures, for a figure."""
    bucket_s = next(
        (each for each in _BUCKETS_S if each * _N_BUCKETS >= demand.duration_s), _BUCKETS_S[-1]
    )
    places = np.floor(demand.arrival_s / bucket_s).astype(int)
    counts = np.bincount(places, minlength=int(demand.duration_s // bucket_s) + 1)
    rates: list[float | None] = (counts / bucket_s).tolist()
    if demand.n_of_trace is not None:  # what lies between the busiest windows is not simulated
        rates = [each or None for each in rates]
    return {
        "bucket_s": bucket_s,
        "request_rate_rps": rates,
        "window_s": target.window_s or demand.duration_s,
        "replicas": count,
        "slot_s": terms.slot_s,
        "scheduled_replicas": by_slot.replicas,
        "fixed": _windows(fixed),
        "scheduled": _windows(by_slot.judged),
    }


def _windows(judged: Judged) -> dict[str, Any]:
    share = np.where(judged.n_requests, judged.n_failed / np.maximum(judged.n_requests, 1), np.nan)
    known = {"failed_fraction": share}
    known |= {f"{name}_ms": values for name, values in judged.latencies_ms.items()}
    return {
        "start_s": judged.start_s.tolist(),
        "n_requests": judged.n_requests.tolist(),
        "is_met": judged.is_met.tolist(),
        **{
            name: [None if np.isnan(value) else float(value) for value in values]
            for name, values in known.items()
        },
    }


def _warnings(demand: Demand, asked: CapacityQuestion, offer: LLMLaws) -> list[str]:
    warnings = []
    if asked.router != "round_robin":
        warnings.append(
            "The router sends each request to the replica with the fewest; for a failed replica "
            "and for a schedule the replicas take turns instead."
        )
    is_given = bool(asked.question.prefix_hit_rate)
    warnings += demand_notes(demand, None if is_given else asked.settings.has_prefix_caching)
    if demand.n_of_trace is not None:
        warnings.append(
            f"Only the busiest windows of {demand.name} are simulated, {demand.n:,} of "
            f"{demand.n_of_trace:,} requests, each with the window before it."
        )
    if demand.n_failed:
        warnings.append(
            f"{plural(demand.n_failed, 'request')} of {demand.name} failed there and are left out: "
            "their lengths are not known."
        )
    if asked.target.window_s and demand.duration_s < 2 * asked.target.window_s:
        warnings.append(
            f"The traffic lasts {demand.duration_s:.0f} s, which is one window: the answer does "
            "not hold for other hours."
        )
    if not asked.n_draws:
        warnings.append(
            "The answer is that of the likeliest law of a step alone (--draws 0): it has no "
            "probability."
        )
    longest = offer.longest_tokens
    too_long = int((demand.input_tokens + demand.output_tokens > longest).sum())
    if too_long:
        warnings.append(
            f"{too_long:,} of {demand.n:,} requests have more than {longest:,} tokens "
            "(--max-model-len, or the LLM's context): every replica refuses them."
        )
    return warnings
