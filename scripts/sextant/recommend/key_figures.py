"""The figures that a recommendation comes down to, and how much of each limit they use."""

import math
from functools import partial

from sextant.answer.key_figures import chance_figure, price_figure
from sextant.facts.slo import METRICS
from sextant.pages.blocks import Chart, KeyFigure, KeyFigures, Tone
from sextant.pages.words import number, plural
from sextant.recommend.recommendation import (
    Interval,
    PredictedRecommendation,
    Recommendation,
    ReplicaForecast,
)


def key_figures(answer: Recommendation) -> KeyFigures:
    """Return price, probability, each latency with its interval and limit, and price of tokens."""
    option = answer.chosen
    if not answer.has_option or option.usd_per_hour is None:
        return KeyFigures([])

    replicas = f"{plural(option.replicas or 0, 'replica')} of {option.gpu_profile_id}"
    figures = [price_figure(option.usd_per_hour, replicas)]
    if option.probability_met is not None:
        figures.append(chance_figure("Probability to meet the SLO", option.probability_met))
    if not isinstance(answer, PredictedRecommendation):
        return KeyFigures(figures)

    findings = answer.findings
    replica = findings.latency
    if replica is not None:
        for metric, limit in answer.slo.limits.items():
            interval = replica.latencies_ms[metric]
            nearest = ", the nearest" if metric == replica.binding_limit else ""
            figures.append(
                KeyFigure(
                    f"{METRICS[metric]} at p{limit.percentile}",
                    f"{number(interval.median)} ms",
                    f"90% interval {interval.end_words()}; limit {limit.limit_ms:g}{nearest}",
                    _latency_tone(interval, limit.limit_ms),
                )
            )
    if (cost := findings.cost) is not None:
        million = f"{cost.usd_per_million_output_tokens:.3g} USD"
        inputs = f"input {cost.usd_per_million_input_tokens:.3g} USD"
        figures.append(KeyFigure("A million output tokens", million, inputs))
    return KeyFigures(figures)


def _latency_tone(interval: Interval, limit_ms: float) -> Tone:
    if interval.median > limit_ms:
        return "bad"
    return "good" if interval.hi <= limit_ms else "doubt"


def limits_chart(answer: PredictedRecommendation) -> list[Chart]:
    """Return how much of each limit a replica uses; nothing without an option."""
    replica = answer.findings.latency
    if replica is None:
        return []
    caption = (
        "Latency of a replica at its load as a share of its limit: median and 90% interval. What "
        "comes nearest to 100% breaks its limit first."
    )
    return [
        Chart(partial(_draw_limits, answer, replica), caption, "How much of each limit is used")
    ]


def _draw_limits(answer: PredictedRecommendation, replica: ReplicaForecast) -> str:
    from sextant.pages.charts import NARROW_IN, Axis, Curve, Panel, panels_figure

    limits = answer.slo.limits
    places = range(len(limits))
    names = [f"{METRICS[metric]}, p{limit.percentile}" for metric, limit in limits.items()]
    percent_of = {metric: 100 / limit.limit_ms for metric, limit in limits.items()}
    intervals = [replica.latencies_ms[metric] for metric in limits]
    median, low, high = (
        [
            value * percent_of[metric] if math.isfinite(value) else None
            for metric, value in zip(limits, values, strict=True)
        ]
        for values in zip(*intervals, strict=True)
    )
    ends = [end or 0.0 for end in (*median, *high)]
    labels = [f"{number(interval.median)} ms" for interval in intervals]
    marks = Curve("median", places, median, low, high, is_marks=True, labels=labels)
    limit = Curve("the limit", [-0.5, len(limits) - 0.5], [100, 100], is_reference=True)
    x = Axis("", ticks=places, names=names, low=-0.5, high=len(limits) - 0.5)
    y = Axis("Share of the limit (%)", low=0, high=max(110.0, 1.1 * max(ends)))
    title = f"{answer.llm_id}: how much of each limit is used"
    return panels_figure([Panel("", x, y, [marks, limit])], title, width_in=NARROW_IN)
