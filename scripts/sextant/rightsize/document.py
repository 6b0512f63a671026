"""A rightsizing in words: blocks for a person, beside the JSON for a program."""

from collections.abc import Mapping, Sequence
from typing import Any

from sextant.answer.option import Option
from sextant.answer.words import answer_source_line, deployment_words
from sextant.facts.slo import METRICS
from sextant.pages.blocks import Beside, Block, Document, Facts, Headline, Note, Section, Table
from sextant.pages.words import (
    chance,
    duration_words,
    joined,
    number,
    per_second,
    plural,
    rate_words,
    usd_number,
    usd_words,
)
from sextant.rightsize.answer import (
    Comparison,
    HourOutcome,
    LoadComparison,
    Predicted,
    ProfileOutcome,
    Rightsizing,
    SizedByLaw,
)
from sextant.rightsize.doubts import end_words
from sextant.rightsize.figures import hour_charts, key_figures

_HOURS_IN_TEXT = 8
_PROFILES_IN_TEXT = 6
_HOW = (
    "Observed means are exact; a percentile of a histogram lies in its bucket, whose ends stand in "
    "parentheses. Predicted are medians with 90% intervals over the draws of the law; calibrated, "
    "the law goes through the observed means. An hour is judged by the rate of its busiest window. "
    "USD are of 730 hours a month, by the prices of `sextant recommend`."
)


def rightsizing_document(answer: Rightsizing, origin: Mapping[str, Any] | None = None) -> Document:
    """Return an answer for people (blocks) and programs (data)."""
    blocks: list[Block] = [
        Headline(_headline(answer)),
        key_figures(answer),
        *(Note(text, "warning") for text in answer.doubts),
        Facts(_verdict_lines(answer)),
        Beside(_load_sections(answer)),
        _profile_section(answer),
        _hour_section(answer),
        *(Note(text, "warning") for text in answer.all_warnings),
        Note(_HOW, "soft"),
        *(Note(line) for line in answer.replica_lines),
        Note(answer_source_line(answer)),
    ]
    title = f"{answer.llm_id}: rightsizing of {_present_words(answer)}"
    kind = "Sextant: rightsizing"
    return Document(title, blocks, answer.to_dict(), _asked_words(answer), origin, kind)


def _present_words(answer: Rightsizing) -> str:
    deployed = answer.present.deployed
    return f"{deployed.replicas} × {deployed.gpu_profile_id}"


def _headline(answer: Rightsizing) -> str:
    """Return what would do in place of what runs, and what that saves."""
    usd = answer.present.usd_per_hour
    now = f"{_present_words(answer)} = {usd_words(usd)}"
    chosen = answer.chosen
    if not answer.has_option:
        wanted = f"with probability {1 - (answer.risk or 0.0):.10g} or more"
        return f"{answer.llm_id}: {now} now; no GPU profile meets the SLO {wanted}"
    sure = f"with probability {chance(chosen.probability_met or 0.0)}"
    is_present = (chosen.replicas, chosen.gpu_profile_id) == tuple(answer.present.deployed)
    if is_present:
        return f"{answer.llm_id}: {now} is right: it meets the SLO {sure}, and nothing is cheaper"
    saved = answer.usd_per_month_saved(chosen) or 0.0
    change = f"{number(abs(saved))} USD a month {'saved' if saved > 0 else 'more'}"
    if not round(saved):
        change = "at the same price"
    return f"{answer.llm_id}: {now} now; {deployment_words(chosen)} would do, {sure}; {change}"


def _asked_words(answer: Rightsizing) -> str:
    """Return what arrives, and the limits, a line each."""
    requests = answer.requests
    inputs, outputs = requests.measures().mean_lengths
    words = [
        f"p{limit.percentile} of {METRICS[name]} ≤ {limit.limit_ms:g} ms"
        for name, limit in answer.slo.limits.items()
    ]
    window_s = answer.target.window_s
    where = "over the whole time"
    if window_s is not None:
        where = f"in every window of {duration_words(window_s)}"
    return (
        f"for {requests.name}: {plural(requests.measures().n_requests, 'request')} in "
        f"{duration_words(requests.duration_s)} ({rate_words(requests.rate_rps)}), "
        f"{number(inputs)} input and {number(outputs)} output tokens on average,\n"
        f"so that {joined(words)}, {where}"
    )


def _verdict_lines(answer: Rightsizing) -> list[str | tuple[str, str]]:
    """Return the present deployment, the same GPUs, and the cheapest, a line each."""
    present = answer.present
    lines: list[str | tuple[str, str]] = []
    n_hours = len(present.hours)
    observed = [hour for hour in present.hours if hour.is_observed_met is not None]
    if observed:
        n_met = sum(bool(hour.is_observed_met) for hour in observed)
        seen = {metric for hour in observed for metric in hour.observed_ms}
        names = {
            is_seen: joined([METRICS[m] for m in answer.slo.limits if (m in seen) == is_seen])
            for is_seen in (True, False)
        }
        kept = f"kept the limit on {names[True]}" if names[False] else "kept the limits"
        unseen = f" {names[False]} was not observed." if names[False] else ""
        lines.append(
            f"Observed: {_present_words(answer)} {kept} in {n_met} of "
            f"{plural(len(observed), 'slot')} of {duration_words(_slot_s(observed))}.{unseen}"
        )
    sure = _chance(present.probability_met)
    plain = _chance(present.uncalibrated_probability_met)
    is_calibrated = bool(present.loads)
    law = "Calibrated" if is_calibrated else "Predicted"
    beside = f" (uncalibrated {plain})" if is_calibrated else ""
    n_small = len(present.hours_too_small)
    lines.append(
        f"{law}: it keeps the SLO in every window with probability {sure}{beside}; it is too small "
        f"in {n_small} of {plural(n_hours, 'slot')}."
    )
    same = answer.same_profile
    lines.append(f"Of these GPUs: {_sized_words(answer, same.calibrated, same.gpu_profile_id)}.")
    chosen = answer.chosen
    if answer.has_option and chosen.gpu_profile_id != same.gpu_profile_id:
        lines.append(f"Cheapest: {_option_words(answer, chosen)}.")
    if is_calibrated:
        lines.append(f"Uncalibrated it would be {_option_words(answer, answer.uncalibrated)}.")
    return lines


def _slot_s(hours: Sequence[HourOutcome]) -> float:
    return max(hour.duration_s for hour in hours)


def _sized_words(answer: Rightsizing, sized: SizedByLaw, name: str) -> str:
    if sized.replicas is None:
        return "no number of replicas is likely enough"
    return _option_words(answer, sized.option(name))


def _option_words(answer: Rightsizing, option: Option) -> str:
    """Return an option with its probability, and what it saves a month."""
    if option.replicas is None:
        return "no option: none is likely enough"
    saved = answer.usd_per_month_saved(option) or 0.0
    change = f"{number(abs(saved))} USD a month {'saved' if saved > 0 else 'more'}"
    change = change if round(saved) else "as much as now"
    sure = chance(option.probability_met or 0.0)
    return f"{deployment_words(option)}, probability {sure}, {change}"


def _chance(probability: float | None) -> str:
    return "unknown" if probability is None else chance(probability)


def _load_sections(answer: Rightsizing) -> list[Block]:
    """Return observed beside predicted, a section per load; the busiest first."""
    loads = sorted(answer.present.loads, key=lambda load: -load.rate_rps)
    sections: list[Block] = []
    for position, load in enumerate(loads):
        title = f"Observed beside predicted at {per_second(load.replica_rps)} a replica"
        rows = [_comparison_cells(it) for it in load.comparisons]
        header = ["Latency in ms", "Observed", "Predicted", "Calibrated", "Limit"]
        table = Table(header, rows, {0, 1, 2, 3}, note=_load_words(load))
        sections.append(Section(title, [table], key=f"load-{position + 1}"))
    return sections


def _load_words(load: LoadComparison) -> str:
    """Return what a load is, in one sentence."""
    words = [f"{plural(load.n_answered, 'request')} in {duration_words(load.duration_s)}"]
    if load.input_tokens is not None and load.output_tokens is not None:
        words.append(
            f"{number(load.input_tokens)} input and {number(load.output_tokens)} output tokens"
        )
    if load.running is not None and load.n_readings:
        words.append(f"{number(load.running)} in flight as read")
    if load.in_flight is not None:
        words.append(f"{number(load.in_flight)} by Little's law")
    return f"{', '.join(words)}."


def _comparison_cells(it: Comparison) -> list[str | float | None]:
    name = METRICS[it.metric]
    label = f"mean {name}" if it.percentile is None else f"p{it.percentile} {name}"
    observed = "–"
    if it.observed_ms is not None:
        observed = number(it.observed_ms)
        if it.observed_low_ms != it.observed_high_ms:
            observed += f" ({_ms(it.observed_low_ms)} to {_ms(it.observed_high_ms)})"
    return [label, observed, _between(it.uncalibrated), _between(it.calibrated), it.limit_ms]


def _between(predicted: Predicted) -> str:
    low = _ms(predicted.low_ms)
    return f"{_ms(predicted.median_ms)} ({low} to {_ms(predicted.high_ms)})"


def _ms(value: float | None) -> str:
    return "–" if value is None else end_words(value)


def _profile_section(answer: Rightsizing) -> Section:
    """Return every GPU profile: calibrated beside uncalibrated."""
    fitting = [it for it in answer.alternatives if it.reason is None]
    rows = [_profile_cells(outcome) for outcome in fitting]
    header = [
        *("GPU profile", "Calibrated", "Probability", "USD/h"),
        *("USD a month saved", "Uncalibrated"),
    ]
    blocks: list[Block] = [
        Table(header, rows, {0, 1, 5}, n_rows_in_text=max(_PROFILES_IN_TEXT, _place(fitting)))
    ]
    excluded = [f"{it.gpu_profile_id}: {it.reason}" for it in answer.alternatives if it.reason]
    if excluded:
        blocks.append(Section("Left out", [Facts(excluded)], is_detail=True))
    return Section("What would do", blocks)


def _place(outcomes: Sequence[ProfileOutcome]) -> int:
    """Return the number of the row of the deployed GPU profile, from 1."""
    return next((i for i, it in enumerate(outcomes, start=1) if it.is_deployed), 0)


def _profile_cells(outcome: ProfileOutcome) -> list[str | float | None]:
    name = outcome.gpu_profile_id
    name += " (deployed)" if outcome.is_deployed else ""
    name += "" if outcome.is_gpu_measured else " (GPU never measured)"
    calibrated = outcome.calibrated
    probability = calibrated.probability_met
    saved = outcome.usd_per_month_saved
    return [
        name,
        _replica_words(calibrated),
        None if probability is None else chance(probability),
        None if calibrated.usd_per_hour is None else usd_number(calibrated.usd_per_hour),
        None if saved is None else number(round(saved)),
        _replica_words(outcome.uncalibrated, has_chance=True),
    ]


def _replica_words(sized: SizedByLaw, *, has_chance: bool = False) -> str:
    if sized.replicas is None:
        return "too slow" if sized.status == "too_slow" else "none is likely enough"
    sure = f", {chance(sized.probability_met or 0.0)}" if has_chance else ""
    return f"{plural(sized.replicas, 'replica')}{sure}"


def _hour_section(answer: Rightsizing) -> Section:
    """Return the slots: all of them on a page, in text those that are too small."""
    hours = answer.present.hours
    ranked = sorted(hours, key=lambda hour: (hour.probability_met, -hour.busiest_rps))
    shown = answer.present.hours_too_small or ranked[:1]
    table = _hour_table(answer, shown, _HOURS_IN_TEXT)
    title = "Hours in which the deployment is too small"
    if not answer.present.hours_too_small:
        title = "No hour in which the deployment is too small; the tightest"
    blocks: list[Block] = [*hour_charts(answer), table]
    left = len(shown) - _HOURS_IN_TEXT
    if left > 0:
        blocks.append(Note(f"{left} more on the page (--format html) and in the JSON.", "soft"))
    if len(hours) > len(shown):
        blocks.append(Section("All hours", [_hour_table(answer, hours, None)], is_detail=True))
    return Section(title, blocks, key="hours")


def _hour_table(
    answer: Rightsizing, hours: Sequence[HourOutcome], n_rows_in_text: int | None
) -> Table:
    limits = answer.target.limits
    observed = [f"p{limit.percentile} {METRICS[name]} observed" for name, limit in limits.items()]
    header = ["From", "Busiest requests/s", "Running", *observed, "Kept with probability"]
    rows = [
        [
            hour.start,
            number(hour.busiest_rps),
            hour.running,
            *(hour.observed_ms.get(name) for name in limits),
            f"{chance(hour.probability_met)} (uncalibrated "
            f"{chance(hour.uncalibrated_probability_met)})",
        ]
        for hour in hours
    ]
    return Table(header, rows, {0, len(header) - 1}, n_rows_in_text=n_rows_in_text)
