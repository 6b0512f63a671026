"""How many replicas of which GPU profile meet an SLO under given traffic, by simulation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sextant.answer.drafting import draft_by_load
from sextant.answer.pools import PoolsOption, pools_note, size_pools
from sextant.ask.api_prices import ApiComparison, Billed, OwnDeployment, compare_with_api
from sextant.ask.laws import CaseLaws, find_laws, server_laws
from sextant.ask.traffic import demand_notes
from sextant.capacity.answer import (
    AloneResults,
    CapacityAnswer,
    CapacityFindings,
    CapacityOutcome,
    Neighbour,
    Schedule,
    Slot,
    TrafficTimeline,
    WindowCurves,
    WindowsSummary,
)
from sextant.capacity.failure import after_failure, after_growth
from sextant.capacity.question import CapacityQuestion, check_capacity
from sextant.capacity.schedule import ScheduleResults, find_schedule
from sextant.decide.profile_sizing import size_profiles
from sextant.decide.simulated_sizing import (
    SimulatedReplica,
    Sizing,
    SizingSettings,
    neighbours,
    simulated_server,
)
from sextant.decide.windows import Judged
from sextant.facts.engine import Startup
from sextant.pages.words import percent, plural
from sextant.workload.requests import RequestStream

_N_BUCKETS = 240
"""Buckets of the timeline, at most."""
_BUCKETS_S = (1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 86400)


@dataclass(frozen=True)
class _Sized:
    """A question with the laws of a step, and what each GPU profile needs."""

    asked: CapacityQuestion
    laws: CaseLaws
    servers: dict[str, SimulatedReplica]
    sizings: dict[str, Sizing]

    @property
    def requests(self) -> RequestStream:
        """What arrives, in the likeliest draw."""
        return self.asked.traffic.drawn(0)

    @property
    def startup(self) -> Startup:
        """How long a replica of the LLM takes to start."""
        return self.asked.terms.startup(self.laws.case.llm)


def answer_capacity(
    capacity_question: CapacityQuestion, notes: Sequence[str] = ()
) -> CapacityAnswer:
    """Return the fewest replicas on each GPU profile that meet an SLO under this traffic.

    Args:
        capacity_question: the question.
        notes: come before the answer's own warnings.

    Raises:
        InputError: an option is wrong, or the measurements cannot answer.
    """
    check_capacity(capacity_question)
    sized = _size(capacity_question)
    outcomes = _ranked_outcomes(sized)
    best = outcomes[0]
    if not best.replicas:
        return _answer(sized, outcomes, None, notes)

    sizing = sized.sizings[best.gpu_profile_id]
    findings = _findings(sized, sizing)
    if capacity_question.question.speculative:
        schedule = _with_drafts(sized, sizing, findings.schedule)
        best_draft = schedule.busiest_draft.draft_tokens if schedule.busiest_draft else 0
        if capacity_question.question.draft_tokens is None and best_draft not in (0, 1):
            longer = replace(capacity_question.question, draft_tokens=best_draft)
            return answer_capacity(replace(capacity_question, question=longer), notes)
        findings = replace(findings, schedule=schedule)
    return _answer(sized, outcomes, findings, notes)


def _size(capacity_question: CapacityQuestion) -> _Sized:
    """Size each GPU profile that can serve the LLM."""
    laws = find_laws(
        capacity_question.question, capacity_question.settings, capacity_question.n_draws
    )
    servers = {
        profile_id: simulated_server(
            laws.case.gpu_profiles[profile_id],
            server.schedulers,
            server.laws,
            capacity_question.question.prefix_hit_rate,
            capacity_question.router,
        )
        for profile_id, server in laws.servers.items()
    }
    settings = SizingSettings(least=capacity_question.terms.least)
    sizings = size_profiles(
        servers,
        capacity_question.sizing_traffic,
        capacity_question.target,
        1 - capacity_question.risk,
        settings,
    )
    return _Sized(capacity_question, laws, servers, sizings)


def _ranked_outcomes(sized: _Sized) -> list[CapacityOutcome]:
    """Return one outcome per GPU profile: the cheaper, the likelier, fewer devices first."""
    case = sized.laws.case
    outcomes = [_outcome(profile_id, sized) for profile_id in sized.sizings]
    outcomes += [
        CapacityOutcome(
            gpu_profile_id=profile_id,
            status="does_not_fit",
            is_gpu_measured=case.is_gpu_measured(profile_id),
            reason=reason,
        )
        for profile_id, reason in sized.laws.excluded.items()
    ]

    def rank(outcome: CapacityOutcome) -> tuple[bool, float, float, int, str]:
        n_gpus = case.gpu_profiles[outcome.gpu_profile_id].n_gpus
        return (
            outcome.replicas is None,
            outcome.usd_per_hour or 0.0,
            -(outcome.probability_met or 0.0),
            (outcome.replicas or 0) * n_gpus,
            outcome.gpu_profile_id,
        )

    return sorted(outcomes, key=rank)


def _outcome(profile_id: str, sized: _Sized) -> CapacityOutcome:
    """Return what a GPU profile needs; the interval of its replicas holds 90% of the draws."""
    sizing = sized.sizings[profile_id]
    low = None
    high = None
    if len(sizing.needs):
        ends = np.quantile(sizing.needs, [0.05, 0.95], method="inverted_cdf")
        low, high = (int(end) if np.isfinite(end) else None for end in ends)
    worst = max(sizing.alone, key=sizing.alone.__getitem__, default=None)
    return CapacityOutcome(
        gpu_profile_id=profile_id,
        status=sizing.status,
        replicas=sizing.replicas,
        usd_per_hour=sizing.usd_per_hour,
        probability_met=sizing.replicas and sizing.probability(sizing.replicas),
        replicas_lo=low,
        replicas_hi=high,
        rate_at_slo_rps=None if sizing.rate_rps == np.inf else sizing.rate_rps,
        binds=sizing.binds,
        alone=AloneResults(
            n_refused=sizing.n_failed_alone,
            refused_share=sizing.failed_share_alone,
            alone_limit=worst,
            alone_ratio=sizing.alone.get(worst or ""),
        ),
        kv_tokens=sized.laws.servers[profile_id].schedulers[0].kv_tokens,
        is_gpu_measured=sized.laws.case.is_gpu_measured(profile_id),
    )


def _findings(sized: _Sized, sizing: Sizing) -> CapacityFindings:
    """Return the results of the chosen replicas, and what would change them.

    Law and traffic are those of one draw: the one that needs these replicas.
    """
    capacity_question = sized.asked
    target = capacity_question.target
    requests = capacity_question.traffic.drawn(sizing.draw)
    fixed = sizing.server.judge(requests, sizing.count, target, sizing.draw)
    scheduled = find_schedule(sizing, requests, target, capacity_question.terms, sized.startup)
    findings = CapacityFindings(
        fixed=WindowsSummary.of(fixed, target),
        neighbours=_neighbours(capacity_question, sizing),
        failure=after_failure(sizing, requests, target, sized.startup.median_s),
        growth=after_growth(sizing, requests, target),
        schedule=scheduled.schedule,
        timeline=_timeline(capacity_question, sizing, requests, fixed, scheduled),
        pools=_separate_pools(sized),
        are_pools_asked=capacity_question.is_disaggregated,
    )
    if capacity_question.has_policy:
        from sextant.capacity.scaling import compare_policies  # few questions have one

        llm_id = sized.laws.case.llm_id
        comparison = compare_policies(llm_id, sizing, capacity_question, sized.startup, findings)
        findings = replace(findings, scaling=comparison)
    if capacity_question.split_tokens is not None:
        from sextant.capacity.split import size_split  # few questions split

        split = size_split(
            sized.servers,
            capacity_question.traffic,
            capacity_question.split_tokens,
            target,
            1 - capacity_question.risk,
        )
        findings = replace(findings, split=split)
    return findings


def _neighbours(capacity_question: CapacityQuestion, sizing: Sizing) -> list[Neighbour]:
    """Return the results of one replica fewer, the answer's number, and one more."""
    requests = capacity_question.sizing_traffic.drawn(sizing.draw)
    rows = []
    for row in neighbours(sizing, requests, capacity_question.target):
        names = ("replicas", "usd_per_hour", "probability_met")
        windows = WindowsSummary(
            **{name: value for name, value in row.items() if name not in names}
        )
        rows.append(
            Neighbour(row["replicas"], row["usd_per_hour"], row["probability_met"], windows)
        )
    return rows


def _timeline(
    capacity_question: CapacityQuestion,
    sizing: Sizing,
    requests: RequestStream,
    fixed: Judged,
    scheduled: ScheduleResults,
) -> TrafficTimeline:
    """Return traffic, replicas and results over time."""
    duration_s = requests.duration_s
    fitting = [bucket_s for bucket_s in _BUCKETS_S if bucket_s * _N_BUCKETS >= duration_s]
    bucket_s = fitting[0] if fitting else _BUCKETS_S[-1]
    buckets = np.floor(requests.arrival_s / bucket_s).astype(int)
    counts = np.bincount(buckets, minlength=int(duration_s // bucket_s) + 1)
    rates: list[float | None] = (counts / bucket_s).tolist()
    if requests.origin.n_requests is not None:  # only the busiest windows are simulated
        rates = [rate or None for rate in rates]
    return TrafficTimeline(
        bucket_s=bucket_s,
        request_rate_rps=rates,
        window_s=capacity_question.target.window_s or duration_s,
        replicas=sizing.count,
        slot_s=capacity_question.terms.slot_s,
        scheduled_replicas=scheduled.schedule.replicas,
        fixed=WindowCurves.of(fixed),
        scheduled=WindowCurves.of(scheduled.judged),
    )


def _separate_pools(sized: _Sized) -> PoolsOption | None:
    """Return prefill and decode on separate replicas, where they are asked for."""
    capacity_question = sized.asked
    if not capacity_question.is_disaggregated:
        return None
    return size_pools(
        sized.laws.case,
        lambda case: server_laws(
            case, capacity_question.settings, capacity_question.n_draws, sized.laws.model
        )[0],
        capacity_question.sizing_traffic,
        capacity_question.target,
        1 - capacity_question.risk,
    )


def _with_drafts(sized: _Sized, sizing: Sizing, schedule: Schedule) -> Schedule:
    """Return the schedule with what speculation is worth in each slot (`draft_by_load`)."""
    requests = sized.requests
    slot_s = sized.asked.terms.slot_s
    n_slots = len(schedule.replicas)
    results = sizing.server.run(requests, sizing.count, 0, None)
    slots = np.minimum(requests.arrival_s // slot_s, n_slots - 1).astype(int)
    busy_s = np.bincount(slots, np.nan_to_num(results.e2e_s), n_slots)
    starts_s = slot_s * np.arange(len(busy_s))
    in_flight = busy_s / np.minimum(slot_s, requests.duration_s - starts_s) / sizing.count
    n_names = len(schedule.slots)
    users = [float(in_flight[first::n_names].max()) for first in range(n_names)]
    drafts = draft_by_load(sized.laws, sizing.server.profile.gpu_profile_id, users)
    named = [
        Slot(slot.name, slot.replicas, draft)
        for slot, draft in zip(schedule.slots, drafts, strict=True)
    ]
    return replace(schedule, slots=named, busiest_draft=drafts[int(np.argmax(users))])


def _answer(
    sized: _Sized,
    outcomes: Sequence[CapacityOutcome],
    findings: CapacityFindings | None,
    notes: Sequence[str],
) -> CapacityAnswer:
    capacity_question = sized.asked
    case = sized.laws.case
    chosen = outcomes[0].option
    if findings is not None and capacity_question.is_disaggregated:
        notes = [pools_note(findings.pools, chosen), *notes]
    return CapacityAnswer(
        llm_id=case.llm_id,
        basis="simulated",
        chosen=chosen,
        alternatives=outcomes,
        slo=capacity_question.question.slo,
        target=capacity_question.target,
        requests=sized.requests,
        risk=capacity_question.risk,
        source=case.source,
        gpu_profiles=case.gpu_profiles.values(),
        warnings=[*notes, *sized.laws.warnings, *_warnings(sized)],
        serving=case.serving,
        findings=findings,
        api=_api_comparison(sized, outcomes[0], findings),
    )


def _api_comparison(
    sized: _Sized, best: CapacityOutcome, findings: CapacityFindings | None
) -> ApiComparison | None:
    """Compare the chosen replicas with an API, where that is asked for."""
    prices = sized.asked.question.api_prices
    if prices is None or findings is None:
        return None
    requests = sized.requests
    sizing = sized.sizings[best.gpu_profile_id]
    # Within one slot, and between the busiest windows of a long trace, nothing is saved.
    is_followed = len(findings.schedule.replicas) > 1 and not requests.origin.n_requests
    deployment = OwnDeployment(
        sizing.server.profile,
        sizing.count,
        sizing.rate_rps and sizing.count * sizing.rate_rps,
        sizing.probability,
        findings.schedule.saved if is_followed else 0.0,
    )
    billed = Billed.of(requests, sized.asked.question.prefix_hit_rate)
    return compare_with_api(prices, sized.laws.case.llm_id, billed, deployment)


def _warnings(sized: _Sized) -> list[str]:
    """Return what to know of the traffic, and of what was not simulated."""
    capacity_question = sized.asked
    requests = sized.requests
    has_caching = (
        None
        if capacity_question.question.prefix_hit_rate
        else capacity_question.settings.has_prefix_caching
    )
    warnings = demand_notes(requests, has_caching)
    if requests.origin.n_requests is not None:
        warnings.append(
            f"Only the busiest windows of {requests.name} are simulated, {requests.n:,} of "
            f"{requests.origin.n_requests:,} requests, each with the window before it."
        )
    if n_failed := requests.origin.n_failed:
        n_ok = (requests.origin.n_requests or requests.n) / requests.origin.factor
        warnings.append(
            f"{plural(n_failed, 'request')} of {requests.name} "
            f"({percent(n_failed / (n_failed + n_ok))}) failed there and "
            "are left out: their lengths are not known. "
            f"`--traffic {requests.origin.factor * (1 + n_failed / n_ok):.4g}` counts them."
        )
    if (
        capacity_question.target.window_s
        and requests.duration_s < 2 * capacity_question.target.window_s
    ):
        warnings.append(
            f"The traffic lasts {requests.duration_s:.0f} s, which is one window: the answer does "
            "not hold for other hours."
        )
    if not capacity_question.n_draws:
        warnings.append(
            "The answer is that of the likeliest law of a step alone (--draws 0): it has no "
            "probability."
        )
    longest = sized.laws.longest_tokens
    n_too_long = int((requests.input_tokens + requests.output_tokens > longest).sum())
    if n_too_long:
        warnings.append(
            f"{n_too_long:,} of {requests.n:,} requests have more than {longest:,} tokens "
            "(--max-model-len, or the LLM's context): every replica refuses them."
        )
    return warnings
