"""A capacity answer in words: blocks for a person, beside the JSON for a program."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from sextant.answer.certainty import price_sections
from sextant.answer.key_figures import chance_figure, price_figure
from sextant.answer.option import beaten_notes, split_beaten
from sextant.answer.variations import variations_sections
from sextant.answer.words import (
    answer_source_line,
    chosen_words,
    deployment_words,
    moment_words,
)
from sextant.ask.api_prices import api_section
from sextant.capacity.answer import (
    CapacityAnswer,
    CapacityFindings,
    CapacityOutcome,
    PolicyCost,
    ScalingComparison,
    Schedule,
    Split,
    WindowsSummary,
)
from sextant.capacity.manifests import RayConfig, ScaledObject
from sextant.capacity.timeline import timeline_charts
from sextant.decide.most_replicas import MOST_REPLICAS
from sextant.decide.windows import Target
from sextant.facts.slo import METRICS
from sextant.pages.blocks import (
    Beside,
    Block,
    Document,
    Facts,
    Headline,
    KeyFigure,
    KeyFigures,
    Note,
    Section,
    Table,
)
from sextant.pages.words import (
    HOUR_S,
    chance,
    duration_words,
    joined,
    number,
    per_second,
    percent,
    plural,
    rate_words,
    usd_words,
)

_RATE_NOTE = (
    "A replica's mean rate: that of this traffic, gaps and windows stretched alike, at which as "
    "many replicas as the best estimate needs just meet the SLO, over their number. It is not a "
    "steady rate that a replica serves: a busy hour has more. Utilisation: the mean rate over that "
    "of all replicas. The probability is over draws of the law of a step and of the traffic."
)
_BINDS = {
    "compute": "beyond it the queue grows without end, for want of compute",
    "kv_cache": "beyond it the queue grows without end, for want of KV cache",
    "batch": "beyond it the queue grows without end: a step takes no more (--max-num-seqs, "
    "--max-num-batched-tokens)",
}
_POLICIES = {
    "fixed": "replicas that stay",
    "schedule": "schedule",
    "policy": "your policy",
    "tuned": "tuned",
    "foresight": "foresight",
}
_POLICIES_NOTE = (
    "GPU hours are of the whole trace, starts included. Foresight knows the traffic and orders "
    "replicas before they are needed, sized window by window. A policy starts with the replicas "
    "that the first window needs."
)


def capacity_document(answer: CapacityAnswer, origin: Mapping[str, Any] | None = None) -> Document:
    """Return an answer of `answer_capacity` for people (blocks) and programs (data)."""
    blocks: list[Block] = [
        Headline(capacity_headline(answer)),
        capacity_figures(answer),
        *(Note(text, "warning") for text in answer.all_warnings),
        *variations_sections(answer.variations),
        *api_section(answer.api),
        *capacity_sections(answer),
        *(Note(line) for line in answer.replica_lines),
        Note(answer_source_line(answer)),
    ]
    title = f"{answer.llm_id}: capacity for {answer.requests.name}"
    kind = "Sextant: capacity"
    return Document(title, blocks, answer.to_dict(), asked_words(answer), origin, kind)


def capacity_figures(answer: CapacityAnswer) -> KeyFigures:
    """Return price, probability, replicas with their interval, and use."""
    option = answer.chosen
    if not answer.has_option or option.usd_per_hour is None:
        return KeyFigures([])
    figures = [price_figure(option.usd_per_hour)]
    if (probability := option.probability_met) is not None:
        windows = windows_words(answer.target)
        figures.append(chance_figure("Probability to meet the SLO", probability, windows))
    for outcome in answer.alternatives:
        if outcome.gpu_profile_id == option.gpu_profile_id:
            interval = ""
            if outcome.replicas_lo is not None and outcome.replicas_hi is not None:
                interval = f"90% interval {_span(outcome.replicas_lo, outcome.replicas_hi)}"
            replicas = f"{number(option.replicas)} × {option.gpu_profile_id}"
            figures.append(KeyFigure("Replicas", replicas, interval))
    if answer.utilisation is not None:
        figures.append(KeyFigure("Utilisation", percent(answer.utilisation), "in the mean"))
    return KeyFigures(figures)


def capacity_sections(answer: CapacityAnswer) -> list[Block]:
    """Return the GPU profiles, and the results of the chosen replicas."""
    outcomes, beaten = split_beaten(answer.alternatives)
    by_price = [
        *price_sections(answer.frontier, answer.chosen, answer.certainty),
        Section("GPU profiles", [_profile_table(outcomes), *beaten_notes(beaten, answer.risk)]),
    ]
    profiles: list[Block] = [Beside(by_price)]
    if beaten:
        table = _profile_table(beaten)
        profiles.append(Section("GPU profiles that others beat", [table], is_detail=True))
    findings = answer.findings
    if findings is None:
        return profiles

    caption = (
        f"Traffic in buckets of {findings.timeline.bucket_s} s; latencies and failures "
        f"{windows_words(answer.target)}, simulated in the worst case that these replicas are "
        "meant for."
    )
    condition = "in the worst case that they are meant for"
    if answer.chosen.probability_met is None:
        condition = "by the best estimate"
    rows = [
        (
            plural(neighbour.replicas, "replica"),
            usd_words(neighbour.usd_per_hour),
            _chance(neighbour.probability_met),
            missed_words(neighbour.windows),
        )
        for neighbour in findings.neighbours
    ]
    header = ["Replicas", "Price", "Probability", "Windows"]
    neighbours = Table(header, rows, {0, 3}, has_header_in_text=False)
    changes = Facts(_change_lines(answer, findings))
    return [
        Section("Timeline", timeline_charts(answer, findings, caption)),
        *profiles,
        Section("How to read these numbers", [Note(_RATE_NOTE)], is_detail=True),
        Section(f"With {deployment_words(answer.chosen)}, {condition}", [neighbours, changes]),
        _schedule_section(findings.schedule),
        *(_scaling_sections(answer, findings.scaling) if findings.scaling else []),
    ]


def _profile_table(outcomes: Sequence[CapacityOutcome]) -> Table:
    header = ["Deployment", "Price", "Probability", "Why"]
    rows = [outcome_cells(outcome) for outcome in outcomes]
    return Table(header, rows, {0, 3}, has_header_in_text=False)


def _schedule_section(schedule: Schedule) -> Section:
    """Return one row per change of the replicas or the draft, in place of one per slot."""
    has_drafts = schedule.by_slot[0].draft is not None
    rows = []
    for _, run in groupby(
        schedule.by_slot, key=lambda slot: (slot.replicas, slot.draft and slot.draft.draft_tokens)
    ):
        first = next(run)
        drafts = [first.draft.draft_tokens] if first.draft is not None else []
        replicas = "not simulated" if first.replicas is None else first.replicas
        rows.append([first.slot, replicas, *drafts])
    header = ["From", "Replicas", *["Best draft tokens"] * has_drafts]
    return Section("Schedule", [Table(header, rows)], is_detail=len(rows) < 2)


def _scaling_sections(answer: CapacityAnswer, scaling: ScalingComparison) -> list[Block]:
    """Return what policies cost and attain, the worst minutes, and the tuned policy."""
    policies = []
    for cost in scaling.policies:
        others = ""
        if cost.attainment_lo is not None and cost.replica_hours_lo is not None:
            shares = f"{percent(cost.attainment_lo)} to {percent(cost.attainment_hi)}"
            low = number(cost.replica_hours_lo * scaling.n_gpus)
            high = number((cost.replica_hours_hi or 0.0) * scaling.n_gpus)
            others = f"{shares}, {low} to {high} GPU hours"
        name = _POLICIES[cost.policy]
        figures = [number(cost.gpu_hours), number(cost.usd), percent(cost.attainment)]
        policies.append([name, *figures, others])
    header = ["Policy", "GPU hours", "USD", "Windows met", "In other draws"]
    blocks: list[Block] = [Table(header, policies, {0, 4})]

    minutes = []
    for minute in scaling.worst:
        why = f"the policy {'has' if minute.why == 'most' else 'asks for'} no more"
        if minute.why == "starting":
            more = minute.ordered - minute.ready
            why = f"{more} more {'is' if more == 1 else 'are'} starting"
        when = moment_words(answer.requests.origin.start_time, minute.start_s)
        beyond = f"{number(minute.n_beyond)} of {number(minute.n_requests)}"
        minutes.append([when, beyond, number(minute.ready), why])
    if minutes:
        header = ["Worst minute", "Requests beyond a limit", "Replicas ready", "Why"]
        blocks.append(Table(header, minutes, {0, 3}))

    if scaling.manifest is not None:
        blocks.append(Note(_tuned_words(scaling.policies, scaling.manifest)))
    elif scaling.asked_attainment is not None:
        share = percent(scaling.asked_attainment)
        text = f"No target attains {share} of the windows: no file is written."
        blocks.append(Note(text, "warning"))
    return [Section("Autoscaling", [*blocks, Note(_POLICIES_NOTE)])]


def _tuned_words(costs: Sequence[PolicyCost], tuned: ScaledObject | RayConfig) -> str:
    """Return the tuned policy in words, and its price beside that of replicas that stay."""
    tuned_usd, fixed_usd = (
        next(cost.usd for cost in costs if cost.policy == name) for name in ("tuned", "fixed")
    )
    saved = 1 - tuned_usd / fixed_usd
    verdict = f"saves {percent(saved)}" if saved > 0 else "costs more: keep those"
    policy = tuned.policy
    targets = joined([f"{query} at {threshold}" for query, threshold in tuned.thresholds])
    return (
        f"Tuned: {targets} for each replica, {policy.least} to {policy.most} replicas, a peak "
        f"remembered for {int(policy.down.stabilization_s)} s. Beside replicas that stay it "
        f"{verdict}."
    )


def capacity_headline(answer: CapacityAnswer) -> str:
    """Return the answer in one line."""
    window = windows_words(answer.target)
    probability = answer.chosen.probability_met
    if not answer.has_option:
        wanted = f"with probability {1 - (answer.risk or 0.0):.10g} or more"
        return f"{answer.llm_id}: no GPU profile meets the SLO {window} {wanted}"
    sure = "by the best estimate"
    if probability is not None:
        sure = f"with probability {chance(probability)}"
    return f"{answer.llm_id}: {chosen_words(answer)}; meets the SLO {window} {sure} (simulated)"


def windows_words(target: Target) -> str:
    """Return e.g. `in every window of 5 minutes`."""
    if target.window_s is None:
        return "over the whole time"
    return f"in every window of {duration_words(target.window_s)}"


def asked_words(answer: CapacityAnswer) -> str:
    """Return what arrives, and the limits, a line each."""
    requests = answer.requests
    target = answer.target
    bursts = {"1s": "second", "10s": "10 seconds", "60s": "minute"}
    measured = requests.measures()
    most = [
        f"{number(measured.busiest[key])} in the busiest {span}" for key, span in bursts.items()
    ]
    gaps = "" if measured.gap_cv is None else f", CV of the gaps {number(measured.gap_cv)}"
    words = [
        f"p{limit.percentile} of {METRICS[name]} ≤ {limit.limit_ms:g} ms"
        for name, limit in answer.slo.limits.items()
    ]
    if target.goodput is not None:
        words.append(f"{percent(target.goodput)} of the requests within all limits")
    words.append(f"at most {percent(target.max_failed)} of them refused or timed out")

    n_requests = measured.n_requests
    inputs, outputs = measured.mean_lengths
    return (
        f"for {requests.name}: {plural(n_requests, 'request')} in "
        f"{duration_words(requests.duration_s)} ("
        f"{rate_words(requests.rate_rps)}; {joined(most)}{gaps}), "
        f"{number(inputs)} input and {number(outputs)} output tokens on average,\n"
        f"so that {joined(words)}, {windows_words(target)}"
    )


def outcome_cells(outcome: CapacityOutcome) -> list[str]:
    """Return the cells of a GPU profile: its name, price and probability, and why."""
    name = outcome.gpu_profile_id
    if not outcome.is_gpu_measured:
        name += " (GPU never measured)"
    if outcome.status == "meets":
        price = usd_words(outcome.usd_per_hour)
        probability = _chance(outcome.probability_met)
        return [f"{outcome.replicas} × {name}", price, probability, _why(outcome)]
    status = "ruled out" if outcome.status == "does_not_fit" else "misses"
    return [name, status, "", _why(outcome)]


def _chance(probability: float | None) -> str:
    return "" if probability is None else chance(probability)


def _why(outcome: CapacityOutcome) -> str:
    """Return why a GPU profile needs these replicas, or is no option."""
    limit = METRICS.get(outcome.alone.alone_limit or "")
    ratio = outcome.alone.alone_ratio or 0.0
    match outcome.status:
        case "does_not_fit":
            return str(outcome.reason)
        case "refused":
            return _too_long_words(outcome)
        case "too_slow" if ratio > 1:
            return f"{limit} of requests alone is {number(ratio)} times its limit"
        case "too_slow":
            return "too few requests alone are within all limits (--goodput)"

    bears = "one replica meets the SLO at any mean rate"
    if outcome.rate_at_slo_rps is not None:
        bears = f"a replica just meets the SLO at a mean of {per_second(outcome.rate_at_slo_rps)}"
    if outcome.status == "too_many":
        return f"{bears}: it takes more than {MOST_REPLICAS:,} replicas, which is not simulated"
    if outcome.status == "unsure":
        cause = f"{limit} of a request alone is {number(ratio)} times its limit by the best "
        cause += "estimate, but above it more often than --risk allows: raise the limit, or --risk"
        return f"{bears}; {_too_long_words(outcome) if outcome.alone.n_refused else cause}"
    binds = f" ({_BINDS[outcome.binds]})" if outcome.binds in _BINDS else ""
    low = outcome.replicas_lo
    high = outcome.replicas_hi
    if high is None or low is None:
        least = f"at least {plural(low or 1, 'replica')}"
        return f"{bears}{binds}; {least}; no number is enough with probability 0.05 or more"
    return f"{bears}{binds}; 90% interval {_span(low, high)}"


def _too_long_words(outcome: CapacityOutcome) -> str:
    share = f"up to {percent(outcome.alone.refused_share)} of the requests of a window"
    return (
        f"{plural(outcome.alone.n_refused or 0, 'request')} ({share}) beyond its context or "
        "KV cache, or timed out even alone: raise --max-failed, --max-model-len, the memory or "
        "--timeout-s"
    )


def _span(low: int, high: int) -> str:
    return f"{number(low)} to {plural(high, 'replica')}" if low < high else plural(high, "replica")


def missed_words(windows: WindowsSummary) -> str:
    """Return results by window, e.g. `3 of 12 windows missed (TTFT 2.1 times its limit)`."""
    failed = ""
    if windows.failed_fraction:
        failed = f", {percent(windows.failed_fraction)} of the requests fail"
    every = number(windows.n_windows)
    n_missed = windows.n_windows_missed
    text = f"{n_missed} of {every} windows" if n_missed else f"all {every} windows"
    if windows.n_windows == 1:
        text = "the only window"
    if not n_missed:
        return f"{text} met{failed}"
    worst = ""
    if windows.worst_ratio > 1:
        ratio = f"{number(windows.worst_ratio)} times its limit"
        worst = f" ({METRICS[windows.worst_limit or '']} up to {ratio})"
    return f"{text} missed{worst}{failed}"


def _change_lines(answer: CapacityAnswer, findings: CapacityFindings) -> list[str]:
    """Return what failure, growth, a schedule, two pools and speculation would change."""
    failure = findings.failure
    when = moment_words(answer.requests.origin.start_time, failure.at_s)
    back = duration_words(failure.back_s - failure.at_s)
    fails = f"a replica fails in the busiest minute ({when}), back after {back}"

    growth = findings.growth
    enough = "no number of replicas is enough"
    if growth.replicas_needed is not None:
        needed = plural(growth.replicas_needed, "replica")
        enough = f"it takes {needed}, {usd_words(growth.usd_per_hour)}"

    use = [] if answer.utilisation is None else [f"utilisation {percent(answer.utilisation)}"]
    lines = [
        *use,
        f"{fails}: {missed_words(failure.windows)}",
        f"traffic × {growth.factor:g}: {missed_words(growth.windows)}; {enough}",
        _schedule_line(findings.schedule),
    ]
    if findings.split is not None:
        lines.append(split_line(findings.split, answer.chosen.usd_per_hour or 0.0))

    draft = findings.schedule.drafting
    if draft is not None and draft.draft_tokens:
        pays = f"as many users are answered {1 + draft.gain:.2f} times as fast"
        tokens = plural(draft.draft_tokens, "draft token")
        sure = f"with probability {chance(draft.probability_gain or 0.0)}"
        lines.append(f"speculation pays at the busiest time: {tokens}, {pays}, {sure}")
    elif draft is not None:
        lines.append("speculation does not pay at the busiest time: leave it out")
    return lines


def split_line(split: Split, usd_per_hour: float) -> str:
    """Return whether two pools are cheaper than one at this price."""
    text = f"two pools, split at {split.tokens:,} input tokens: "
    if split.usd_per_hour is None:
        return text + "no numbers of replicas are likely enough"
    pools = [
        f"{pool.replicas} × {pool.gpu_profile_id} ({name})"
        for name, pool in (("short", split.short), ("long", split.long))
    ]
    price = usd_words(split.usd_per_hour)
    text += f"{' and '.join(pools)}, {price}, probability {_chance(split.probability_met)}"
    saved = usd_per_hour - split.usd_per_hour
    if math.isclose(usd_per_hour, split.usd_per_hour):
        return f"{text}: as much as one pool"
    return f"{text}: {usd_words(abs(saved))} {'less' if saved > 0 else 'more'} than one pool"


def _schedule_line(schedule: Schedule) -> str:
    """Return what a schedule saves beside replicas that stay."""
    counts = schedule.counts
    slot = "the hour" if schedule.slot_s == HOUR_S else duration_words(schedule.slot_s)
    if len(schedule.replicas) == 1:
        return f"by {slot}: the traffic is no longer than that, so nothing can be saved"
    state = "all windows met"
    if schedule.n_windows_missed:
        state = f"{plural(schedule.n_windows_missed, 'window')} missed"
    unknown = ""
    if n_unknown := sum(slot.replicas is None for slot in schedule.by_slot):
        unknown = f"; {plural(n_unknown, 'slot')} not simulated, counted with all replicas"
    saved = "saves nothing: starting takes as much"
    if schedule.saved > 0:
        saved = f"saves {percent(schedule.saved)} "
        saved += f"({usd_words(schedule.usd_per_hour_saved)} on average)"
    return (
        f"by {slot}: {_span(min(counts), max(counts))}, {number(schedule.replica_hours)} replica "
        f"hours instead of {number(schedule.fixed_replica_hours)}, with "
        f"{duration_words(schedule.startup.median_s)} to start "
        f"one: {saved}; {state}{unknown}"
    )
