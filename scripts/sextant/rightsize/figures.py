"""The figures of a rightsizing: what it comes down to, and the hours, observed and predicted."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from sextant.answer.key_figures import chance_figure
from sextant.decide.decision import FAIR
from sextant.facts.slo import METRICS
from sextant.pages.blocks import Chart, KeyFigure, KeyFigures
from sextant.pages.words import HOUR_S, number, usd_words
from sextant.rightsize.answer import HourOutcome, Rightsizing

if TYPE_CHECKING:
    from sextant.pages.charts import Axis, Curve


def key_figures(answer: Rightsizing) -> KeyFigures:
    """Return what runs and how sure that is, what would do, and what it saves."""
    present = answer.present
    deployed = f"{present.deployed.replicas} × {present.deployed.gpu_profile_id}"
    figures = [KeyFigure("Now", usd_words(present.usd_per_hour), deployed)]
    if (kept := present.probability_met) is not None:
        figures.append(chance_figure("Keeps the SLO now", kept))
    chosen = answer.chosen
    if not answer.has_option or chosen.usd_per_hour is None:
        return KeyFigures(figures)
    plan = f"{number(chosen.replicas)} × {chosen.gpu_profile_id}"
    figures.append(KeyFigure("Would do", usd_words(chosen.usd_per_hour), plan))
    figures.append(chance_figure("Would keep the SLO", chosen.probability_met or 0.0))
    saved = answer.usd_per_month_saved(chosen) or 0.0
    label = "Saves a month" if saved >= 0 else "Costs more a month"
    figures.append(KeyFigure(label, f"{number(abs(saved))} USD", "of 730 hours"))
    return KeyFigures(figures)


def hour_charts(answer: Rightsizing) -> list[Chart]:
    """Return load, observed latencies beside their limits, and probabilities, hour by hour."""
    hours = answer.present.hours
    if len(hours) < 2:
        return []
    charts = [Chart(partial(_draw_load, answer, hours), title="Busiest requests a second")]
    for metric, limit in answer.slo.limits.items():
        if any(metric in hour.observed_ms for hour in hours):
            title = f"{METRICS[metric]} observed at p{limit.percentile}"
            charts.append(Chart(partial(_draw_observed, answer, hours, metric), title=title))
    title = "Probability that the deployment keeps the SLO"
    return [*charts, Chart(partial(_draw_kept, answer, hours), title=title)]


def _draw_load(answer: Rightsizing, hours: Sequence[HourOutcome]) -> str:
    from sextant.pages.charts import Axis

    curves = [_steps("busiest", hours, [hour.busiest_rps for hour in hours])]
    return _drawn(answer, "load by hour", Axis("Requests/s", low=0), curves)


def _draw_observed(answer: Rightsizing, hours: Sequence[HourOutcome], metric: str) -> str:
    from sextant.pages.charts import Axis, Curve

    limit_ms = answer.slo.limits[metric].limit_ms
    values = [hour.observed_ms.get(metric) for hour in hours]
    limit = Curve("limit", _ends(hours), [limit_ms] * 2, is_reference=True)
    curves = [_steps("observed", hours, values), limit]
    y = Axis(f"{METRICS[metric]} (ms)", low=0)
    return _drawn(answer, f"observed {METRICS[metric]} by hour", y, curves)


def _draw_kept(answer: Rightsizing, hours: Sequence[HourOutcome]) -> str:
    from sextant.pages.charts import Axis, Curve

    curves = [
        _steps("calibrated", hours, [hour.probability_met for hour in hours]),
        _steps("uncalibrated", hours, [hour.uncalibrated_probability_met for hour in hours]),
        Curve("as likely as not", _ends(hours), [FAIR, FAIR], is_reference=True),
    ]
    y = Axis("Probability", low=-0.02, high=1.05)
    return _drawn(answer, "probability by hour", y, curves)


def _ends(hours: Sequence[HourOutcome]) -> list[float]:
    last = hours[-1]
    return [hours[0].start_s / HOUR_S, (last.start_s + last.duration_s) / HOUR_S]


def _steps(name: str, hours: Sequence[HourOutcome], values: Sequence[float | None]) -> "Curve":
    """Return a curve that holds each value to the end of its hour."""
    from sextant.pages.charts import Curve

    edges = [*(hour.start_s / HOUR_S for hour in hours), _ends(hours)[1]]
    return Curve(name, edges, [*values, values[-1]])


def _drawn(answer: Rightsizing, what: str, y: "Axis", curves: "Sequence[Curve]") -> str:
    from sextant.pages.charts import NARROW_IN, Axis, Panel, panels_figure

    panel = Panel("", Axis(f"Hours since {answer.present.hours[0].start}"), y, curves)
    title = f"{answer.llm_id}: {what}"
    return panels_figure([panel], title, height_in=2.1, width_in=NARROW_IN, is_step=True)
