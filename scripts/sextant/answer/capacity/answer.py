"""The answer: replicas on each GPU profile, cheapest first, and what would change them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sextant.answer.capacity.answer_text import as_text
from sextant.answer.capacity.changes import Schedule, Terms, burst, failure, growth, scheduled
from sextant.answer.capacity.demand import Demand, DrawnTraffic, Traffic, prefix_notes
from sextant.answer.capacity.servers import simulated
from sextant.answer.capacity.sizing import Sizing, neighbours, size, summary
from sextant.answer.capacity.target import Judged, Target
from sextant.answer.question import Question
from sextant.answer.step_laws import Offer, Settings, find_laws
from sextant.facts.prices import old_price_lines, price_origins
from sextant.pages.wording import HOUR_S, plural
from sextant.simulate.run import Router

RISK = 0.1
N_DRAWS = 32
_N_BUCKETS = 240
_BUCKETS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400)


@dataclass(frozen=True)
class Asked:
    """What `sextant capacity` is asked."""

    question: Question
    """The LLM, the GPU profiles, their prices and the measurements; its SLO has the limits."""
    traffic: Traffic
    target: Target
    settings: Settings = field(default_factory=Settings)
    terms: Terms = field(default_factory=Terms)
    risk: float = RISK
    """Largest probability that a window is missed."""
    n_draws: int = N_DRAWS
    seed: int = 42
    router: Router = "round_robin"


def capacity(asked: Asked, notes: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fewest replicas on each GPU profile that keep an SLO under this traffic.

    `notes` come before the answer's own warnings.

    Returns:
        The cheapest option (`gpu_profile_id, replicas, usd_per_hour, probability_met,
        rate_at_slo_rps`; None: there is none) and `alternatives`, a row a profile; of the option
        `neighbours`, `failure`, `growth`, `burst`, `schedule` and `timeline`; `demand`, `slo`,
        `serving`, `characterization`, `prices`, `warnings` and `text`.

    Raises:
        InputError: an option is wrong, or the measurements cannot answer.
    """
    demand = asked.traffic.drawn(0)
    offer = find_laws(asked.question, asked.settings, asked.n_draws)
    sizings = {name: _size(asked, offer, name) for name in offer.laws}
    rows = [_row(name, sizing, offer) for name, sizing in sizings.items()]
    rows += [_ruled_out(name, reason, offer) for name, reason in offer.excluded.items()]
    rows.sort(key=lambda row: (row["usd_per_hour"] is None, row["usd_per_hour"] or 0.0))
    chosen = rows[0]
    on_offer = offer.profiles.values()
    prices = price_origins((each.price_source, each.price_as_of) for each in on_offer)
    answer: dict[str, Any] = {
        "llm_id": offer.llm_id,
        **{name: chosen[name] if chosen["replicas"] else None for name in _OPTION},
        "risk": asked.risk,
        "slo": asked.question.slo.facts() | asked.target.facts(),
        "demand": demand.facts(),
        "serving": offer.facts,
        "alternatives": rows,
        "characterization": offer.source.facts(),
        "prices": [each._asdict() for each in prices],
        "warnings": [
            *notes,
            *offer.warnings,
            *_warnings(demand, asked, offer),
            *old_price_lines(prices),
        ],
    }
    if chosen["replicas"]:
        answer |= _about(sizings[chosen["gpu_profile_id"]], demand, asked)
    return answer | {"text": as_text(answer)}


_OPTION = ("gpu_profile_id", "replicas", "usd_per_hour", "probability_met", "rate_at_slo_rps")


def _size(asked: Asked, offer: Offer, name: str) -> Sizing:
    laws = offer.laws[name]
    hit_rate = asked.question.prefix_hit_rate
    profile = offer.profiles[name]
    server = simulated(profile, laws.schedulers, laws.laws, hit_rate, asked.router)
    return size(server, asked.traffic, asked.target, 1 - asked.risk)


def _row(name: str, sizing: Sizing, offer: Offer) -> dict[str, Any]:
    """Return what is said of a GPU profile."""
    low, high = _interval(sizing.needs)
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
        "n_refused": sizing.n_failed_alone,
        "alone_limit": worst,
        "alone_ratio": sizing.alone.get(worst or ""),
        "kv_tokens": offer.laws[name].schedulers[0].kv_tokens,
        "is_gpu_measured": offer.is_measured(name),
        "reason": None,
    }


def _interval(needs: Sequence[float]) -> tuple[int | None, int | None]:
    """Return the 90% interval of the replicas; None where no number that was tried is enough."""
    if not len(needs):
        return None, None
    ends = np.quantile(needs, [0.05, 0.95], method="inverted_cdf")
    low, high = (int(end) if np.isfinite(end) else None for end in ends)
    return low, high


def _ruled_out(name: str, reason: str, offer: Offer) -> dict[str, Any]:
    columns = ("replicas", "usd_per_hour", "probability_met", "replicas_lo", "replicas_hi")
    more = ("rate_at_slo_rps", "n_refused", "alone_limit", "alone_ratio", "kv_tokens")
    known = {"status": "does_not_fit", "reason": reason, "is_gpu_measured": offer.is_measured(name)}
    return {"gpu_profile_id": name, **dict.fromkeys(columns + more), **known}


def _about(sizing: Sizing, demand: Demand, asked: Asked) -> dict[str, Any]:
    """Return what would happen with the chosen replicas."""
    target, terms, count = asked.target, asked.terms, sizing.replicas or 0
    fixed = sizing.server.judge(demand, count, target, sizing.draw)
    by_slot = scheduled(sizing, demand, target, terms)
    facts = by_slot.facts(count, demand.duration_s)
    saved = (facts["fixed_replica_hours"] - facts["replica_hours"]) / demand.duration_s * HOUR_S
    usd_saved = saved * sizing.server.profile.usd_per_hour
    return {
        "fixed": summary(fixed, target),
        "neighbours": neighbours(sizing, demand, target),
        "failure": failure(sizing, demand, target, terms.startup_s),
        "growth": growth(sizing, demand, target),
        "burst": burst(sizing, demand, target),
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
    return {
        "bucket_s": bucket_s,
        "request_rate_rps": (counts / bucket_s).tolist(),
        "window_s": target.window_s or demand.duration_s,
        "replicas": count,
        "slot_s": terms.slot_s,
        "scheduled_replicas": by_slot.replicas,
        "fixed": _windows(fixed),
        "scheduled": _windows(by_slot.judged),
    }


def _windows(judged: Judged) -> dict[str, Any]:
    share = judged.n_failed / np.maximum(judged.n_requests, 1)
    return {
        "start_s": judged.start_s.tolist(),
        "n_requests": judged.n_requests.tolist(),
        "failed_fraction": share.tolist(),
        "is_met": judged.is_met.tolist(),
        **{f"{name}_ms": _numbers(values) for name, values in judged.latencies_ms.items()},
    }


def _numbers(values: Sequence[float] | np.ndarray) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]


def _warnings(demand: Demand, asked: Asked, offer: Offer) -> list[str]:
    found = []
    if isinstance(asked.traffic, DrawnTraffic):
        found.append(
            "Requests arrive one by one here, and every window has to be met. For the same rate as "
            "a steady load, which may take fewer replicas, ask `sextant recommend --request-rate`."
        )
    if asked.router != "round_robin":
        found.append(
            "The router sends a request to the replica with the fewest; where a replica fails or a "
            "schedule is followed, requests are taken in turn."
        )
    if not asked.question.prefix_hit_rate:
        found += prefix_notes(demand, asked.settings.has_prefix_caching)
    if demand.n_of_trace is not None:
        found.append(
            f"Simulated are the busiest windows of {demand.name}, {demand.n:,} of "
            f"{demand.n_of_trace:,} requests, each with the window before it."
        )
    if demand.n_failed:
        found.append(
            f"{plural(demand.n_failed, 'request')} of {demand.name} failed there, left out: what "
            "was asked for is not known."
        )
    if asked.target.window_s and demand.duration_s < 2 * asked.target.window_s:
        found.append(
            f"The traffic lasts {demand.duration_s:.0f} s: that is one window, and no statement "
            "about other hours."
        )
    n_laws = asked.n_draws + 1
    if n_laws * asked.risk < 1:
        told = f"{n_laws} laws of a step" if asked.n_draws else "the likeliest law of a step alone"
        found.append(
            f"The probability is over {told}: too few to tell a risk of {asked.risk:g} (--draws)."
        )
    longest = offer.longest_tokens
    too_long = int((demand.input_tokens + demand.output_tokens > longest).sum())
    if too_long:
        found.append(
            f"{too_long:,} of {demand.n:,} requests have more than {longest:,} tokens "
            "(--max-model-len, or the LLM's context): every replica refuses them."
        )
    return found
