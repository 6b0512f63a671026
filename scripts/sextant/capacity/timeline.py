"""The figures of a capacity answer over time: traffic, replicas, latencies, failures.

A figure is left out where nothing moves in it; the caption says so.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sextant.capacity.answer import CapacityAnswer, CapacityFindings
from sextant.facts.slo import METRICS, Limit
from sextant.pages.blocks import Chart
from sextant.pages.words import percent, time_unit

if TYPE_CHECKING:
    from sextant.pages.charts import Curve

_FIXED = "replicas that stay"
_SCHEDULED = "by schedule"
_POLICY = "with the policy"
_LEAST_SHARE = 0.25
"""Part of its limit that a latency has to reach somewhere to be drawn."""


def timeline_charts(
    answer: CapacityAnswer, findings: CapacityFindings, caption: str
) -> list[Chart]:
    """Return a figure of the traffic, and of what else moves over time, the caption at the last."""
    curves = _Curves(answer, findings)
    lines_by_label: dict[str, list[Curve]] = {"Requests/s": curves.traffic()}
    quiet = []
    if curves.has_moving_replicas:
        lines_by_label["Replicas"] = curves.replicas()
    else:
        replicas = findings.timeline.replicas
        stay = "the replica stays" if replicas == 1 else f"all {replicas} replicas stay"
        quiet.append(stay)
    for metric, limit in answer.slo.limits.items():
        share = curves.largest_share(metric, limit)
        if share >= _LEAST_SHARE:
            label = f"{METRICS[metric]}, p{limit.percentile} (ms)"
            lines_by_label[label] = curves.latency(metric, limit)
        else:
            quiet.append(f"{METRICS[metric]} is at most {percent(share)} of its limit")
    if curves.most_failed_percent > 0:
        lines_by_label["Failed (%)"] = curves.failures()
    else:
        quiet.append("no request fails")
    charts = [
        Chart(partial(_draw, answer, curves, label, lines), title=label.split(" (")[0])
        for label, lines in lines_by_label.items()
    ]
    if quiet:
        caption = f"{caption} Not drawn: {'; '.join(quiet)}."
    return [*charts[:-1], replace(charts[-1], caption=caption)]


def _draw(answer: CapacityAnswer, curves: "_Curves", label: str, lines: "list[Curve]") -> str:
    from sextant.pages.charts import NARROW_IN, Axis, Panel, panels_figure

    highest = {
        "Replicas": 1.15 * curves.most_replicas + 0.5,
        "Failed (%)": max(1.0, 1.1 * curves.most_failed_percent),
    }
    x = Axis(curves.since, low=-0.01 * curves.end, high=1.01 * curves.end)
    panel = Panel("", x, Axis(label, low=0, high=highest.get(label)), lines)
    title = f"{answer.llm_id}: {label} over time"
    return panels_figure([panel], title, height_in=2.1, width_in=NARROW_IN, is_step=True)


class _Curves:
    """The curves of each figure, in units of the time axis."""

    def __init__(self, answer: CapacityAnswer, findings: CapacityFindings) -> None:
        requests = answer.requests
        start = requests.origin.start_time
        self._unit_s, self.since = time_unit(
            requests.duration_s, start.isoformat(" ") if start else None
        )
        self.end = requests.duration_s / self._unit_s
        self._timeline = findings.timeline
        self._policy = findings.scaling.timeline if findings.scaling else None
        self._has_schedule = len(findings.timeline.scheduled_replicas) > 1

    @property
    def has_moving_replicas(self) -> bool:
        """Whether a schedule or a policy changes the replicas."""
        return self._policy is not None or len({*self._timeline.scheduled_replicas}) > 1

    def traffic(self) -> "list[Curve]":
        """Return the rate of requests by bucket."""
        rates = self._timeline.request_rate_rps
        starts_s = [bucket * self._timeline.bucket_s for bucket in range(len(rates))]
        return [self._steps("traffic", starts_s, rates)]

    def replicas(self) -> "list[Curve]":
        """Return the replicas that stay, by the schedule and by the policy."""
        timeline = self._timeline
        lines = [self._steps(_FIXED, [0.0], [timeline.replicas])]
        if self._has_schedule:
            counts = timeline.scheduled_replicas
            starts_s = [slot * timeline.slot_s for slot in range(len(counts))]
            lines.append(self._steps(_SCHEDULED, starts_s, counts))
        if self._policy is not None:
            lines.append(self._steps(_POLICY, self._policy.time_s, self._policy.ready))
        return lines

    def latency(self, metric: str, limit: Limit) -> "list[Curve]":
        """Return a latency by window, missed windows, and the limit."""
        from sextant.pages.charts import Curve

        column = f"{metric}_ms"
        fixed = self._timeline.fixed
        values = fixed.latencies_ms[column]
        lines = [self._steps(_FIXED, fixed.start_s, values)]
        if self._has_schedule:
            scheduled = self._timeline.scheduled
            lines.append(self._steps(_SCHEDULED, scheduled.start_s, scheduled.latencies_ms[column]))
        if self._policy is not None:
            windows = self._policy.windows
            lines.append(self._steps(_POLICY, windows.start_s, windows.latencies_ms[column]))
        missed = [value if value and value > limit.limit_ms else None for value in values]
        if any(missed):
            lines.append(self._steps("missed", fixed.start_s, missed)._replace(is_marks=True))
        limit_line = Curve("limit", [0.0, self.end], [limit.limit_ms] * 2, is_reference=True)
        return [*lines, limit_line]

    def failures(self) -> "list[Curve]":
        """Return the failed requests by window, in percent."""
        return [self._steps(_FIXED, self._timeline.fixed.start_s, self._failed_percent)]

    def largest_share(self, metric: str, limit: Limit) -> float:
        """Return the largest latency over its limit, in any window and way to run the replicas."""
        column = f"{metric}_ms"
        windows = [self._timeline.fixed, self._timeline.scheduled]
        values = [value for of in windows for value in of.latencies_ms[column]]
        if self._policy is not None:
            values += self._policy.windows.latencies_ms[column]
        return max(filter(None, values), default=0.0) / limit.limit_ms

    @property
    def most_replicas(self) -> float:
        """The most replicas at any time."""
        ready = self._policy.ready if self._policy else [0]
        return max(self._timeline.replicas, *ready)

    @property
    def most_failed_percent(self) -> float:
        """The largest share of failed requests in a window, in percent."""
        return max(filter(None, self._failed_percent), default=0.0)

    @property
    def _failed_percent(self) -> list[float | None]:
        shares = self._timeline.fixed.failed_fraction
        return [None if share is None else 100 * share for share in shares]

    def _steps(self, name: str, starts_s: Sequence[float], values: Sequence[Any]) -> "Curve":
        """Hold each value until the next start, the last to the end."""
        from sextant.pages.charts import Curve

        edges = [min(start_s / self._unit_s, self.end) for start_s in starts_s]
        return Curve(name, [*edges, self.end], [*values, values[-1]])
