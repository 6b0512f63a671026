"""The figure of a capacity answer: traffic, replicas, latencies and failures over time."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes

from sextant.facts.slo import METRICS, Limit, limits_of
from sextant.pages.charts import WIDTH_IN
from sextant.pages.figure import COLOURS, Axis, Look, draw_panels, floats, style
from sextant.pages.wording import TimeUnit, time_unit

Answer = Mapping[str, Any]
_FIXED: Look = {"color": COLOURS[0]}
_SCHEDULED: Look = {"color": COLOURS[1], "linestyle": "--"}
_LIMIT: Look = {"color": COLOURS[5], "linestyle": ":"}
_STEPS: Look = {"drawstyle": "steps-post", "linewidth": 1.2}
_MISSED: Look = {"color": COLOURS[5], "marker": "o", "linestyle": "none"}


def draw_timeline(answer: Answer) -> str:
    """Return the figure as SVG: each latency against its limit, fixed and scheduled replicas."""
    demand, timeline = answer["demand"], answer["timeline"]
    start = demand["start_time"] and demand["start_time"].replace("T", " ")
    time = _Time(time_unit(demand["duration_s"], start), demand["duration_s"])
    panels = [partial(_draw_traffic, timeline, time), partial(_draw_replicas, timeline, time)]
    limits = limits_of(answer["slo"]).items()
    panels += [partial(_draw_latency, timeline, time, *limit) for limit in limits]
    panels.append(partial(_draw_failures, timeline, time))
    legend = [("fixed", _FIXED), ("limit", _LIMIT), ("missed", _MISSED)]
    if _has_schedule(timeline):
        legend.insert(1, ("scheduled", _SCHEDULED))
    return draw_panels(
        panels,
        f"{answer['llm_id']}: traffic, replicas, latencies and failures over time",
        width_in=WIDTH_IN,
        height_in=1.45,
        margin_in=0.6,
        n_columns=1,
        legend=legend,
        labels=(time.unit.label, ""),
    )


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
    high = [value if value and value > limit.limit_ms else None for value in row[f"{name}_ms"]]
    axes.plot(*time.steps(row["start_s"], high), markersize=4, **_MISSED)
    axes.axhline(limit.limit_ms, linewidth=1.2, **_LIMIT)
    style(axes, time.axis, Axis(f"{METRICS[name]}, p{limit.percentile} (ms)", low=0))


def _draw_failures(timeline: Answer, time: _Time, axes: Axes) -> None:
    row = timeline["fixed"]
    shares = [100 * share for share in row["failed_fraction"]]
    axes.plot(*time.steps(row["start_s"], shares), **_STEPS, **_FIXED)
    style(axes, time.axis, Axis("Failed (%)", low=0, high=max(1.0, 1.1 * max(shares))))
