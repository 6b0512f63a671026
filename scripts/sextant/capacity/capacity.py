"""The answer of `sextant capacity`: replicas on each GPU profile, and what would change them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from sextant.answer.answer import Answer, Option
from sextant.ask.api_prices import Billed, compare_with_api
from sextant.ask.laws import LLMLaws, Settings, find_laws, server_laws
from sextant.ask.question import Question
from sextant.ask.traffic import demand_notes, multiplied_demand
from sextant.base.errors import InputError
from sextant.decide.simulated_sizing import (
    Sizing,
    neighbours,
    simulated_server,
    size_profiles,
    summarise_windows,
)
from sextant.decide.sizing import draws_needed, fewest_replicas
from sextant.decide.windows import Judged, ServingResults, Target, judge_windows
from sextant.facts.llm import LLM
from sextant.facts.startup import Startup, startup_of
from sextant.pages.words import DAY_S, HOUR_S, percent, plural
from sextant.simulate.scaling import ScalingPolicy
from sextant.simulate.simulation import Router
from sextant.workload.requests import RequestStream, SteadyTraffic, Traffic

RISK = 0.1
N_DRAWS = 32
GROWTH = 1.5
_N_BUCKETS = 240
_BUCKETS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400)
_MINUTE_S = 60.0
_ROUNDS = 8


class Terms(NamedTuple):
    """How replicas may come and go."""

    slot_s: float = HOUR_S
    startup: Callable[[LLM], Startup] = startup_of
    """From the order of a replica until it takes requests; it is paid for."""
    least: int = 1


@dataclass(frozen=True)
class CapacityQuestion:
    """A question with the traffic to simulate."""

    question: Question
    """The LLM, the candidates, their prices and the measurements; its SLO has the limits."""
    traffic: Traffic
    target: Target
    settings: Settings = field(default_factory=Settings)
    terms: Terms = field(default_factory=Terms)
    risk: float = RISK  #: Largest probability that a window is missed.
    n_draws: int = N_DRAWS
    router: Router = "round_robin"
    split_tokens: int | None = None  #: Longest input of one of two pools to compare with one.
    is_disaggregated: bool = False  #: Compare with prefill and decode on replicas of their own.
    policy: ScalingPolicy | None = None  # how replicas come and go, to compare with those that stay
    attainment: float | None = None
    """Share of windows that a tuned policy has to meet; None: none is tuned."""
    steady: SteadyTraffic | None = None
    """What the replicas are sized by in place of `traffic`, which then shows them over time."""


def answer_capacity(asked: CapacityQuestion, notes: Sequence[str] = ()) -> Answer:
    """Return the fewest replicas on each GPU profile that meet an SLO under this traffic.

    Its own parts are `rate_at_slo_rps`, `demand`, and of the cheapest option `neighbours`,
    `failure`, `growth`, `schedule` and `timeline`. `notes` come before its warnings.

    Raises InputError: an option is wrong, or the measurements cannot answer.
    """
    least_draws = draws_needed(1 - asked.risk) - 1  # the likeliest law is one more
    if 0 < asked.n_draws < least_draws:
        problem = f"{asked.n_draws} draws cannot show a risk of {asked.risk:g}"
        raise InputError(problem, field="--draws", fix=f"give --draws {least_draws} or more")
    demand, target = asked.traffic.drawn(0), asked.target
    needs_all = (asked.policy, asked.attainment, asked.split_tokens) != (None, None, None)
    if (needs_all or asked.is_disaggregated) and demand.origin.n_requests is not None:
        problem = f"only {demand.n:,} of {demand.origin.n_requests:,} requests are simulated"
        fix = "give a shorter trace: policies and two pools are followed from request to request"
        raise InputError(
            problem, field="--policy, --tune-policy, --split-tokens, --disaggregated", fix=fix
        )
    offer = find_laws(asked.question, asked.settings, asked.n_draws)
    profiles = offer.asked.profiles
    servers = {
        name: simulated_server(
            profiles[name],
            each.schedulers,
            each.laws,
            asked.question.prefix_hit_rate,
            asked.router,
        )
        for name, each in offer.laws.items()
    }
    sized_by, least = asked.steady or asked.traffic, asked.terms.least
    sizings = size_profiles(servers, sized_by, target, 1 - asked.risk, least=least)
    rows = [_row(name, sizing, offer) for name, sizing in sizings.items()]
    for name, reason in offer.excluded.items():
        known = {"status": "does_not_fit", "reason": reason, "gpu_profile_id": name}
        is_measured = offer.is_measured(name)
        rows.append({**dict.fromkeys(rows[0]), **known, "is_gpu_measured": is_measured})

    def rank(row: dict[str, Any]) -> tuple[Any, ...]:
        """Return what rows are sorted by: the cheaper, the likelier, fewer devices."""
        replicas, chance = row["replicas"] or 0, row["probability_met"] or 0.0
        n_devices = replicas * profiles[row["gpu_profile_id"]].n_gpus
        order = row["usd_per_hour"] or 0.0, -chance, n_devices, row["gpu_profile_id"]
        return (row["replicas"] is None, *order)

    rows.sort(key=rank)
    chosen: dict[str, Any] = rows[0]
    more: dict[str, Any] = {"rate_at_slo_rps": None, "demand": demand.facts()}
    if chosen["replicas"]:
        more["rate_at_slo_rps"] = chosen["rate_at_slo_rps"]
        sizing = sizings[chosen["gpu_profile_id"]]
        startup = asked.terms.startup(offer.subject.llm)
        more |= _changes(sizing, asked, startup)
        if asked.policy is not None or asked.attainment is not None:
            from sextant.capacity.scaling import compare_policies  # few questions have one

            more["scaling"] = compare_policies(offer.asked.llm_id, sizing, asked, startup, more)
        if asked.split_tokens is not None:
            from sextant.capacity.split import size_split  # few questions split

            of_both = asked.traffic, asked.split_tokens, target, 1 - asked.risk
            more["split"] = size_split(servers, *of_both)
        if asked.is_disaggregated:
            from sextant.answer.apart import apart_note, size_apart  # few questions ask

            of = asked.settings, asked.n_draws, offer.model
            at_times = sized_by, target, 1 - asked.risk
            pools = size_apart(offer.subject, lambda each: server_laws(each, *of)[0], *at_times)
            more["disaggregated"] = pools
            notes = [apart_note(pools, chosen), *notes]
        if (prices := asked.question.api_prices) is not None:
            billed = Billed.of(demand, asked.question.prefix_hit_rate)
            most_rps = sizing.rate_rps and sizing.count * sizing.rate_rps
            own = sizing.server.profile, sizing.count, most_rps, sizing.probability
            # Within one slot, and between the busiest windows of a long trace, nothing is saved.
            is_followed = len(more["schedule"]["replicas"]) > 1 and not demand.origin.n_requests
            saved = more["schedule"]["saved"] if is_followed else 0.0
            more["api"] = compare_with_api(prices, offer.asked.llm_id, billed, *own, saved)
        if asked.question.speculative:
            drafted = _with_drafts(sizing, asked, offer, more["schedule"])
            if drafted is not None:
                return answer_capacity(drafted, notes)
    return Answer(
        llm_id=offer.asked.llm_id,
        basis="simulated",
        chosen=Option.of(chosen) if chosen["replicas"] else Option(),
        alternatives=rows,
        slo=asked.question.slo.facts() | target.facts(),
        risk=asked.risk,
        source=offer.asked.source,
        profiles=profiles.values(),
        warnings=[*notes, *offer.warnings, *_warnings(demand, asked, offer)],
        serving=offer.subject.serving.facts(),
        more=more,
    )


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


def _changes(sizing: Sizing, asked: CapacityQuestion, startup: Startup) -> dict[str, Any]:
    """Return the results of the chosen replicas, and what would change them.

    Law and traffic are those of one draw: the one that needs these replicas.
    """
    target, terms, count = asked.target, asked.terms, sizing.count
    demand = asked.traffic.drawn(sizing.draw)
    sized_by = demand if asked.steady is None else asked.steady.drawn(sizing.draw)
    fixed = sizing.server.judge(demand, count, target, sizing.draw)
    schedule, scheduled = find_schedule(sizing, demand, target, terms, startup)
    bucket_s = next(
        (each for each in _BUCKETS_S if each * _N_BUCKETS >= demand.duration_s), _BUCKETS_S[-1]
    )
    places = np.floor(demand.arrival_s / bucket_s).astype(int)
    counts = np.bincount(places, minlength=int(demand.duration_s // bucket_s) + 1)
    rates: list[float | None] = (counts / bucket_s).tolist()
    if demand.origin.n_requests is not None:  # only the busiest windows are simulated
        rates = [each or None for each in rates]
    timeline = {
        "bucket_s": bucket_s,
        "request_rate_rps": rates,
        "window_s": target.window_s or demand.duration_s,
        "replicas": count,
        "slot_s": terms.slot_s,
        "scheduled_replicas": schedule["replicas"],
        "fixed": windows_of(fixed),
        "scheduled": windows_of(scheduled),
    }
    return {
        "fixed": summarise_windows(fixed, target),
        "neighbours": neighbours(sizing, sized_by, target),
        "failure": after_failure(sizing, demand, target, startup.median_s),
        "growth": after_growth(sizing, demand, target),
        "schedule": schedule,
        "timeline": timeline,
    }


def _with_drafts(
    sizing: Sizing, asked: CapacityQuestion, offer: LLMLaws, schedule: dict[str, Any]
) -> CapacityQuestion | None:
    """Add to the slots of a schedule what speculation is worth in each (`ways.draft_by_load`).

    Returns the question with the length of the draft that is best at the busiest time, where it
    does not say one and another than that of the answer is.
    """
    from sextant.answer.ways import draft_by_load  # few questions speculate

    demand, slot_s = asked.traffic.drawn(0), asked.terms.slot_s
    outcome = sizing.server.run(demand, sizing.count, 0, None)
    slots = np.minimum(demand.arrival_s // slot_s, len(schedule["replicas"]) - 1).astype(int)
    busy_s = np.bincount(slots, np.nan_to_num(outcome.e2e_s), len(schedule["replicas"]))
    names, rows = [row["slot"] for row in schedule["by_slot"]], schedule["by_slot"]
    starts_s = slot_s * np.arange(len(busy_s))
    in_flight = busy_s / np.minimum(slot_s, demand.duration_s - starts_s) / sizing.count
    users = [float(in_flight[place :: len(names)].max()) for place in range(len(names))]
    found = draft_by_load(offer, sizing.server.profile.gpu_profile_id, users)
    for row, best in zip(rows, found, strict=True):
        row |= {name: best[name] for name in ("draft_tokens", "gain", "probability_gain")}
    schedule["drafting"] = found[int(np.argmax(users))]
    question, longest = asked.question, schedule["drafting"]["draft_tokens"]
    if question.draft_tokens is not None or longest in (0, 1):
        return None
    return replace(asked, question=replace(question, draft_tokens=longest))


def windows_of(judged: Judged) -> dict[str, Any]:
    """Return latencies and failures by window, for a figure."""
    share = np.where(judged.n_requests, judged.n_failed / np.maximum(judged.n_requests, 1), np.nan)
    known = {f"{name}_ms": values for name, values in judged.latencies_ms.items()}
    return {
        "start_s": judged.start_s.tolist(),
        "n_requests": judged.n_requests.tolist(),
        "is_met": judged.is_met.tolist(),
        **{
            name: [None if np.isnan(value) else float(value) for value in values]
            for name, values in {"failed_fraction": share, **known}.items()
        },
    }


def serve_with_failure(
    sizing: Sizing, demand: RequestStream, at_s: float, back_s: float, window_s: float | None = None
) -> ServingResults:
    """Return the results of requests when one replica fails, and is back later.

    Replicas take requests in turn, so each is simulated by itself. What the failed one was working
    on is sent again to the others at once, and waits from its first arrival on. With a single
    replica it waits until that is back.
    """
    demand = replace(demand, turns=None)  # turns keep their times
    count, arrival_s, turn = sizing.count, demand.arrival_s, np.arange(demand.n)
    run, draw = sizing.server.run, sizing.draw
    outcome = run(demand, turn % count, draw, window_s)
    end_s = arrival_s + np.where(outcome.is_ok, outcome.e2e_s, 0.0)
    is_lost = (turn % count == 0) & (arrival_s < at_s) & (end_s > at_s)
    sent_s = np.where(is_lost, at_s, arrival_s)
    if count == 1:  # nobody serves until it is back
        sent_s = np.where((sent_s >= at_s) & (sent_s < back_s), back_s, sent_s)
    order = np.argsort(sent_s, kind="stable")
    moved = replace(demand.at(order), arrival_s=sent_s[order])
    is_down = (moved.arrival_s >= at_s) & (moved.arrival_s < back_s)
    taken = np.where(is_down, 1 + turn % max(count - 1, 1), turn % count)
    # What arrived before the failure stays where it was; what follows takes turns.
    is_before = ((arrival_s < at_s) & ~is_lost)[order]
    taken[is_before] = (turn % count)[order][is_before]
    served, back = run(moved, taken, draw, window_s), np.argsort(order, kind="stable")
    return served._replace(
        arrival_s=arrival_s,
        input_tokens=demand.input_tokens,
        output_tokens=demand.output_tokens,
        ttft_s=served.ttft_s[back] + sent_s - arrival_s,
        e2e_s=served.e2e_s[back] + sent_s - arrival_s,
        is_ok=served.is_ok[back],
    )


def after_failure(
    sizing: Sizing, demand: RequestStream, target: Target, startup_s: float
) -> dict[str, Any]:
    """Return the results when one replica fails in the middle of the busiest minute.

    Another one takes its place after the start-up time.
    """
    start_s, _ = demand.busiest(_MINUTE_S)
    at_s = start_s + min(_MINUTE_S, demand.duration_s - start_s) / 2
    gaps_s = target.window_s if "itl" in target.limits else None
    outcome = serve_with_failure(sizing, demand, at_s, at_s + startup_s, gaps_s)
    judged = judge_windows(outcome, target, demand.n_windows(target.window_s))
    return {"at_s": at_s, "back_s": at_s + startup_s, **summarise_windows(judged, target)}


def after_growth(sizing: Sizing, demand: RequestStream, target: Target) -> dict[str, Any]:
    """Return the results with more traffic, and the replicas that it needs."""
    server, count = sizing.server, sizing.count
    more = multiplied_demand(demand, GROWTH, target.window_s)
    results = partial(server.judge, more, target=target, draw=sizing.draw)
    needed = fewest_replicas(lambda n: not results(n).n_missed, round(count * GROWTH))
    return {
        "factor": GROWTH,
        "replicas_needed": needed,
        "usd_per_hour": None if needed is None else server.usd_per_hour(needed),
        **summarise_windows(results(count), target),
    }


def find_schedule(
    sizing: Sizing,
    demand: RequestStream,
    target: Target,
    terms: Terms,
    startup: Startup,
    *,
    has_labels: bool = True,
) -> tuple[dict[str, Any], Judged]:
    """Return the fewest replicas by slot of time that meet the target, and the results by window.

    Each slot is sized by itself, with the time before it in which queues build up. Then all are
    followed together: a slot with a missed window gets one more, and so does the one before it.
    Slots with the same label, e.g. the same hour of all days, have the most that any of them needs;
    without labels each has its own.
    """
    server, most, draw, slot_s = sizing.server, sizing.count, sizing.draw, terms.slot_s
    n_slots, turn = demand.n_windows(slot_s), np.arange(demand.n)
    slot_of = np.minimum(demand.arrival_s // slot_s, n_slots - 1).astype(int)
    labels = _labels(demand.origin.start_time, demand.duration_s / DAY_S, n_slots, slot_s)
    if not has_labels:
        labels = [str(place) for place in range(n_slots)]

    def need(place: int) -> int:
        start_s, end_s = place * slot_s, min((place + 1) * slot_s, demand.duration_s)
        part = demand.between(start_s, max(end_s, start_s + 1))
        if part.n == 0:  # of a long trace, hours between the busiest windows are not known
            return terms.least if demand.origin.n_requests is None else most
        share = part.n / part.duration_s / max(demand.n / demand.duration_s, 1e-12)
        results = partial(server.judge, part, target=target, draw=draw)
        start = max(round(most * share), 1)
        fewest = fewest_replicas(lambda n: not results(n).n_missed, start, most)
        return max(fewest or most, terms.least)

    def follow(counts: Sequence[int]) -> tuple[list[int], Judged]:
        by_label: dict[str, int] = {}
        for label, count in zip(labels, counts, strict=True):
            by_label[label] = max(by_label.get(label, 0), count)
        replicas = [by_label[label] for label in labels]
        taken = turn % np.array(replicas)[slot_of]
        return replicas, server.judge(demand, taken, target, draw)

    replicas, judged = follow([need(place) for place in range(n_slots)])
    for _ in range(_ROUNDS):
        slots = {int(start // slot_s) for start in judged.start_s[~judged.is_met]}
        more = [
            min(count + (place in slots or place + 1 in slots), most)
            for place, count in enumerate(replicas)
        ]
        if not slots or more == replicas:
            break
        replicas, judged = follow(more)
    ends = np.minimum(np.arange(1, n_slots + 1) * slot_s, demand.duration_s)
    started = np.maximum(np.diff(replicas), 0).sum()
    replica_s = (replicas * np.diff(ends, prepend=0.0)).sum() + started * startup.median_s
    hours, fixed_hours = float(replica_s) / HOUR_S, most * demand.duration_s / HOUR_S
    saved = (fixed_hours - hours) / demand.duration_s * HOUR_S
    by_label = dict(zip(labels, replicas, strict=True))
    facts = {
        "replicas": replicas,
        "by_slot": [{"slot": name, "replicas": count} for name, count in by_label.items()],
        "replica_hours": hours,
        "fixed_replica_hours": fixed_hours,
        "saved": 1 - hours / fixed_hours,
        "n_windows_missed": judged.n_missed,
        "slot_s": slot_s,
        "least": terms.least,
        **startup.facts(),
        "usd_per_hour_saved": saved * server.profile.usd_per_hour,
    }
    return facts, judged


def _labels(start: datetime | None, days: float, n_slots: int, slot_s: float) -> list[str]:
    """Return the names of slots: from two days on the hours of the day, else dates and times."""
    afters = [timedelta(seconds=place * slot_s) for place in range(n_slots)]
    if start is None:
        seconds = [round(each.total_seconds()) for each in afters]
        return [f"+{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}" for s in seconds]
    moments = [start + each for each in afters]
    form = "%H:%M" if slot_s == HOUR_S and days >= 2 else "%Y-%m-%d %H:%M:%S"
    return [each.strftime(form) for each in moments]


def _warnings(demand: RequestStream, asked: CapacityQuestion, offer: LLMLaws) -> list[str]:
    is_given = bool(asked.question.prefix_hit_rate)
    warnings = demand_notes(demand, None if is_given else asked.settings.has_prefix_caching)
    if demand.origin.n_requests is not None:
        warnings.append(
            f"Only the busiest windows of {demand.name} are simulated, {demand.n:,} of "
            f"{demand.origin.n_requests:,} requests, each with the window before it."
        )
    if n := demand.origin.n_failed:
        n_ok = (demand.origin.n_requests or demand.n) / demand.origin.factor
        warnings.append(
            f"{plural(n, 'request')} of {demand.name} ({percent(n / (n + n_ok))}) failed there and "
            "are left out: their lengths are not known. "
            f"`--traffic {demand.origin.factor * (1 + n / n_ok):.4g}` counts them."
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
