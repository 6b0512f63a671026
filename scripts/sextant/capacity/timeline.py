"""The figure of a capacity answer: traffic, replicas, each latency against its limit, failures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sextant.capacity.answer import CapacityAnswer, CapacityFindings
from sextant.facts.slo import METRICS, Limit
from sextant.pages.words import time_unit

if TYPE_CHECKING:
    from sextant.pages.charts import Curve


def timeline_figure(answer: CapacityAnswer, findings: CapacityFindings) -> str:
    """Return the figure as SVG."""
    from sextant.pages.charts import Axis, Panel, panels_figure

    requests = answer.requests
    start = requests.origin.start_time.isoformat(" ") if requests.origin.start_time else None
    unit_s, since = time_unit(requests.duration_s, start)
    end = requests.duration_s / unit_s
    curves = _Curves(findings, unit_s, end)
    panels = {
        "Requests/s": curves.traffic(),
        "Replicas": curves.replicas(),
        **{
            f"{METRICS[metric]}, p{limit.percentile} (ms)": curves.latency(metric, limit)
            for metric, limit in answer.slo.limits.items()
        },
        "Failed (%)": curves.failures(),
    }
    highest = {
        "Replicas": 1.15 * curves.most_replicas + 0.5,
        "Failed (%)": max(1.0, 1.1 * curves.most_failed_percent),
    }
    x = Axis(since, low=-0.01 * end, high=1.01 * end)
    title = f"{answer.llm_id}: traffic, replicas, latencies and failures over time"
    return panels_figure(
        [
            Panel("", x, Axis(label, low=0, high=highest.get(label)), lines)
            for label, lines in panels.items()
        ],
        title,
        n_columns=1,
        height_in=1.45,
        is_step=True,
    )


class _Curves:
    """The curves of each panel, in units of the time axis."""

    def __init__(self, findings: CapacityFindings, unit_s: float, end: float) -> None:
        self._timeline = findings.timeline
        self._policy = findings.scaling.timeline if findings.scaling else None
        self._unit_s = unit_s
        self._end = end
        self._has_schedule = len(findings.timeline.scheduled_replicas) > 1

    def traffic(self) -> "list[Curve]":
        """Return the rate of requests by bucket."""
        rates = self._timeline.request_rate_rps
        starts_s = [bucket * self._timeline.bucket_s for bucket in range(len(rates))]
        return [self._steps("traffic", starts_s, rates)]

    def replicas(self) -> "list[Curve]":
        """Return the replicas that stay, by the schedule and by the policy."""
        timeline = self._timeline
        lines = [self._steps("fixed", [0.0], [timeline.replicas])]
        if self._has_schedule:
            counts = timeline.scheduled_replicas
            starts_s = [slot * timeline.slot_s for slot in range(len(counts))]
            lines.append(self._steps("scheduled", starts_s, counts))
        if self._policy is not None:
            lines.append(self._steps("policy", self._policy.time_s, self._policy.ready))
        return lines

    def latency(self, metric: str, limit: Limit) -> "list[Curve]":
        """Return a latency by window, missed windows, and the limit."""
        from sextant.pages.charts import Curve

        column = f"{metric}_ms"
        fixed = self._timeline.fixed
        values = fixed.latencies_ms[column]
        lines = [self._steps("fixed", fixed.start_s, values)]
        if self._has_schedule:
            scheduled = self._timeline.scheduled
            lines.append(
                self._steps("scheduled", scheduled.start_s, scheduled.latencies_ms[column])
            )
        if self._policy is not None:
            windows = self._policy.windows
            lines.append(self._steps("policy", windows.start_s, windows.latencies_ms[column]))
        missed = [value if value and value > limit.limit_ms else None for value in values]
        if any(missed):
            lines.append(self._steps("missed", fixed.start_s, missed)._replace(is_marks=True))
        limit_line = Curve("limit", [0.0, self._end], [limit.limit_ms] * 2, is_reference=True)
        return [*lines, limit_line]

    def failures(self) -> "list[Curve]":
        """Return the failed requests by window, in percent."""
        return [self._steps("fixed", self._timeline.fixed.start_s, self._failed_percent)]

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

        edges = [min(start_s / self._unit_s, self._end) for start_s in starts_s]
        return Curve(name, [*edges, self._end], [*values, values[-1]])
