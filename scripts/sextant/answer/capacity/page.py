"""A capacity answer as one page that refers to no other file: the timeline, and every number."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from sextant.answer.capacity import answer_text as text
from sextant.base.files import provenance
from sextant.facts.slo import METRICS, Limit, limits_of
from sextant.pages.charts import WIDTH_IN
from sextant.pages.figure import COLOURS, Axis, Look, draw_panels, floats, style
from sextant.pages.sections import Section, Table
from sextant.pages.wording import TimeUnit, number, time_unit
from sextant.pages.write import render_sections, write_page

Answer = Mapping[str, Any]
_FIXED: Look = {"color": COLOURS[0]}
_SCHEDULED: Look = {"color": COLOURS[1], "linestyle": "--"}
_LIMIT: Look = {"color": COLOURS[5], "linestyle": ":"}
_STEPS: Look = {"drawstyle": "steps-post", "linewidth": 1.2}
_MISSED: Look = {"color": COLOURS[5], "marker": "o", "linestyle": "none"}


def write_capacity(answer: Answer, out: Path) -> None:
    """Write an answer of `capacity` as HTML; same answer, same bytes."""
    title = f"{answer['llm_id']}: capacity for {answer['demand']['name']}"
    subtitle = f"{text.demand_line(answer)}; {text.slo_line(answer)}"
    origin = provenance()
    html = render_sections(
        title,
        _sentence(subtitle),
        sections(answer),
        origin,
        lead=text.headline(answer) + ".",
        cautions=answer["warnings"],
    )
    write_page(out, html)


def write_answers(
    answers: Sequence[Answer],
    facts: Answer,
    origin: Mapping[str, Any],
    out: str | Path,
    json_out: str | Path,
) -> None:
    """Write the answers for several LLMs and one SLO as a page, and as JSON.

    `facts` are the `slo`, the `demand` and, by LLM, why it has `no_answer`.
    """
    title = f"Capacity: {facts['slo']['slo_id']}"
    found = []
    for answer in answers:
        own = sections(answer, of_llm=answer["llm_id"])
        found += [replace(own[0], takeaway=text.headline(answer) + "."), *own[1:]]
    lead = "" if answers else "No LLM has an answer."
    subtitle = f"Replicas for the traffic of {facts['demand']['name']}"
    if answers:
        subtitle = f"{text.demand_line(answers[0])}; {text.slo_line(answers[0])}"
    cautions = [f"{llm_id} has no answer: {why}" for llm_id, why in facts["no_answer"].items()]
    cautions += dict.fromkeys(line for answer in answers for line in answer["warnings"])
    html = render_sections(title, _sentence(subtitle), found, origin, lead=lead, cautions=cautions)
    write_page(out, html, json_out, {**facts, "answers": answers, "provenance": origin})


def _sentence(line: str) -> str:
    return line[0].upper() + line[1:] + "."


def sections(answer: Answer, of_llm: str = "") -> list[Section]:
    """Return the parts of the page; `of_llm` is named in their titles."""
    found = [_profiles(answer)]
    if answer["replicas"] is not None:
        found = [_timeline(answer), *found, _what_if(answer), _schedule(answer)]
    found.append(Section.of_text("Where this comes from", text.source_line(answer)))
    if not of_llm:
        return found
    of_one = [replace(each, title=f"{of_llm}: {each.title}", key="") for each in found]
    return of_one[:-1]


def _profiles(answer: Answer) -> Section:
    rows = [text.profile_cells(row) for row in answer["alternatives"]]
    header = ["Deployment", "Price", "Probability", "Why"]
    note = (
        "A replica's rate is the mean rate of such traffic, gaps and windows stretched alike, at "
        "which one replica alone just meets the SLO. The probability is over draws of the law and "
        "of the traffic."
    )
    return Section("GPU profiles", notes=[note], tables=[Table(header, rows, (0, 3))])


def _what_if(answer: Answer) -> Section:
    rows = [
        [
            number(row["replicas"]),
            f"{row['usd_per_hour']:.2f}",
            text.chance(row["probability_met"]),
            text.missed_words(row),
        ]
        for row in answer["neighbours"]
    ]
    table = Table(["Replicas", "USD/h", "Probability", "Windows"], rows, (0, 3))
    lines = [text.failure_line(answer), text.growth_line(answer), text.burst_line(answer)]
    notes = [_sentence(line) for line in lines]
    return Section("What would change the answer", notes=notes, tables=[table])


def _schedule(answer: Answer) -> Section:
    rows = [[row["slot"], number(row["replicas"])] for row in answer["schedule"]["by_slot"]]
    line = text.schedule_line(answer)
    table = Table(["From", "Replicas"], rows)
    return Section("Schedule", _sentence(line), tables=[table])


def _timeline(answer: Answer) -> Section:
    """Return the figure: traffic, replicas, each latency against its limit, failures."""
    demand, timeline = answer["demand"], answer["timeline"]
    start = demand["start_time"] and demand["start_time"].replace("T", " ")
    time = _Time(time_unit(demand["duration_s"], start), demand["duration_s"])
    limits = limits_of(answer["slo"])
    panels = [partial(_draw_traffic, timeline, time), partial(_draw_replicas, timeline, time)]
    panels += [partial(_draw_latency, timeline, time, *limit) for limit in limits.items()]
    panels.append(partial(_draw_failures, timeline, time))
    legend = [("fixed", _FIXED), ("limit", _LIMIT), ("missed", _MISSED)]
    if _has_schedule(timeline):
        legend.insert(1, ("scheduled", _SCHEDULED))
    figure = draw_panels(
        panels,
        f"{answer['llm_id']}: traffic, replicas, latencies and failures over time",
        width_in=WIDTH_IN,
        height_in=1.45,
        margin_in=0.6,
        n_columns=1,
        legend=legend,
        labels=(time.unit.label, ""),
    )
    caption = (
        f"Traffic in buckets of {timeline['bucket_s']} s; latencies and failures "
        f"{text.windows_words(answer['slo'])}, simulated with the law that needs these replicas."
    )
    return Section("Timeline", figures=[(figure, caption)])


class _Time(NamedTuple):
    """The horizontal axis that all panels share."""

    unit: TimeUnit
    duration_s: float

    @property
    def axis(self) -> Axis:
        end = self.duration_s / self.unit.unit_s
        return Axis("", low=-0.01 * end, high=1.01 * end)

    def steps(self, starts_s: Sequence[float], values: Sequence[Any]) -> tuple[list, np.ndarray]:
        """Return a line that holds each value until the next start, the last to the end."""
        edges = [min(start, self.duration_s) / self.unit.unit_s for start in starts_s]
        return [*edges, self.duration_s / self.unit.unit_s], floats([*values, values[-1]])


def _has_schedule(timeline: Answer) -> bool:
    return len(timeline["scheduled_replicas"]) > 1


def _draw_traffic(timeline: Answer, time: _Time, axes: Axes) -> None:
    rates = timeline["request_rate_rps"]
    starts = [place * timeline["bucket_s"] for place in range(len(rates))]
    x, y = time.steps(starts, rates)
    axes.fill_between(x, 0, y, step="post", linewidth=0, alpha=0.4, **_FIXED)
    style(axes, time.axis, Axis("Requests/s", low=0))


def _draw_replicas(timeline: Answer, time: _Time, axes: Axes) -> None:
    most, by_slot = timeline["replicas"], timeline["scheduled_replicas"]
    axes.plot(*time.steps([0.0], [most]), linewidth=1.2, **_FIXED)
    if _has_schedule(timeline):
        starts = [place * timeline["slot_s"] for place in range(len(by_slot))]
        axes.plot(*time.steps(starts, by_slot), **_STEPS, **_SCHEDULED)
    style(axes, time.axis, Axis("Replicas", low=0, high=1.15 * most + 0.5))


def _draw_latency(timeline: Answer, time: _Time, name: str, limit: Limit, axes: Axes) -> None:
    looks = {"fixed": _FIXED} | ({"scheduled": _SCHEDULED} if _has_schedule(timeline) else {})
    for key, look in looks.items():
        row = timeline[key]
        axes.plot(*time.steps(row["start_s"], row[f"{name}_ms"]), **_STEPS, **look)
    row = timeline["fixed"]
    values = row[f"{name}_ms"]
    high = [value if value and value > limit.limit_ms else None for value in values]
    axes.plot(*time.steps(row["start_s"], high), markersize=4, **_MISSED)
    axes.axhline(limit.limit_ms, linewidth=1.2, **_LIMIT)
    label = f"{METRICS[name]}, p{limit.percentile} (ms)"
    style(axes, time.axis, Axis(label, low=0))


def _draw_failures(timeline: Answer, time: _Time, axes: Axes) -> None:
    row = timeline["fixed"]
    shares = [100 * share for share in row["failed_fraction"]]
    axes.plot(*time.steps(row["start_s"], shares), **_STEPS, **_FIXED)
    style(axes, time.axis, Axis("Failed (%)", low=0, high=max(1.0, 1.1 * max(shares))))
