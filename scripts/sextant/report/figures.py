"""Latency against throughput and cost, and predictions against measurements, as SVG."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sextant.pages.plotting import (
    AXIS_LABELS,
    INK,
    Ends,
    ProfileLooks,
    add_legend,
    drawing,
    is_drawable,
    make_logarithmic,
    svg,
)
from sextant.pages.words import Row, number
from sextant.report.read import group_by
from sextant.report.tables import LIMIT_NAMES

_MAX_LABELS = 20
_LLMS_PER_ROW = 10

Limits = Mapping[str, Ends]


class _Panel(NamedTuple):
    x: str
    y: str


_LATENCY_PANELS = (
    _Panel("throughput_tok_s", "median_ttft_ms"),
    _Panel("throughput_tok_s", "median_itl_ms"),
    _Panel("output_tokens_per_usd", "median_itl_ms"),
)


def axis_limits(points: Sequence[Row]) -> dict[str, Ends]:
    """Return the range of each drawn column, with a margin, so that LLMs share their axes."""
    limits = {}
    for column in {name for panel in _LATENCY_PANELS for name in panel}:
        values = [point[column] for point in points if is_drawable(point, column)]
        if values:
            # The margin is wider above, where points carry labels.
            limits[column] = (min(values) / 1.3, max(values) * 1.5)
    return limits


def latency_figure(
    points: Sequence[Row],
    looks: ProfileLooks,
    limits: Limits,
    itl_limits: Mapping[str, float],
    title: str,
) -> str:
    """Draw latency against throughput and against throughput per dollar (LLM-Pilot, Fig. 7).

    Args:
        points: one LLM's points of one setting, from `points_with_costs`.
        looks: of the GPU profiles.
        limits: axis range by column.
        itl_limits: SLOs that hold for the median: their ITL limits, in ms.
        title: what a screen reader says of the figure.
    """
    with drawing(title):
        figure = Figure(figsize=(11, 3.1), layout="constrained")
        for axes, panel in zip(figure.subplots(1, 3), _LATENCY_PANELS, strict=True):
            _draw_curves(axes, panel, points, looks)
            if panel.y == "median_itl_ms":
                _draw_limits(axes, itl_limits, limits)
            make_logarithmic(axes, *(limits.get(column, (0.5, 2.0)) for column in panel))
            axes.set_xlabel(AXIS_LABELS[panel.x])
            axes.set_ylabel(AXIS_LABELS[panel.y])
        add_legend(figure, looks.legend)
        return svg(figure, title)


def _draw_curves(axes: Axes, panel: _Panel, points: Sequence[Row], looks: ProfileLooks) -> None:
    drawable = [point for point in points if is_drawable(point, *panel)]
    for (profile_id,), rows in group_by(drawable, "gpu_profile_id").items():
        rows = sorted(rows, key=lambda row: row["level"])
        x, y = ([row[column] for row in rows] for column in panel)
        axes.plot(x, y, markersize=4, linewidth=1.3, **looks.of[profile_id])
        # Labels of many points would cover each other; levels rise along a curve anyway.
        for row in rows if len(drawable) <= _MAX_LABELS else ():
            axes.annotate(
                str(row["level"]),
                (row[panel.x], row[panel.y]),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )


def _draw_limits(axes: Axes, itl_limits: Mapping[str, float], limits: Limits) -> None:
    lowest, highest = limits.get("median_itl_ms", (0.0, 0.0))
    for slo_id, itl_ms in itl_limits.items():
        # A limit far from every point would squeeze the curves.
        if lowest <= itl_ms <= highest:
            axes.axhline(itl_ms, color=INK, linestyle=(0, (4, 3)), linewidth=0.8)
            label = f"{slo_id}: {number(itl_ms)} ms"
            place = axes.get_yaxis_transform()
            axes.text(0.01, itl_ms, label, transform=place, va="bottom", fontsize=7)


def prediction_figure(pairs: Sequence[Row], looks: ProfileLooks, title: str) -> str:
    """Draw held-out predictions against measurements, a panel per LLM and latency.

    Points on the diagonal are right; a panel's percentage is its mean absolute error relative
    to the measured latency (MAPE), which also counts predictions of 0 or less: they have no
    place on a logarithmic axis.

    Args:
        pairs: rows of `prediction_pairs`.
        looks: of the GPU profiles.
        title: what a screen reader says of the figure.
    """
    llms = [llm_id for (llm_id,) in group_by(pairs, "llm_id")]
    n_columns = min(_LLMS_PER_ROW, len(llms))
    chunks = [llms[start : start + n_columns] for start in range(0, len(llms), n_columns)]
    n_rows = len(chunks) * len(LIMIT_NAMES)
    # A few LLMs get larger panels, and many fill the width of the page.
    side = min(1.9, 11 / n_columns)
    with drawing(title):
        size = (max(4.5, side * n_columns + 0.6), (side + 0.12) * n_rows + 0.8)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(n_rows, n_columns, squeeze=False)
        ends = {name: _shared_ends(pairs, name) for name in LIMIT_NAMES}
        rows = [(chunk, name) for chunk in chunks for name in LIMIT_NAMES]
        for line, (chunk, name) in zip(grid, rows, strict=True):
            for axes, llm_id in zip(line, chunk, strict=False):
                own = [pair for pair in pairs if pair["llm_id"] == llm_id]
                _draw_pairs(axes, own, name, ends[name], looks)
                axes.tick_params(labelleft=axes is line[0], labelsize=7)
                if name == "nttft":
                    axes.set_title(_broken(llm_id), fontsize=7.5)
            for axes in line[len(chunk) :]:
                axes.set_axis_off()
            line[0].set_ylabel(f"Predicted {LIMIT_NAMES[name]}", fontsize=8)
        figure.supxlabel("Measured nTTFT (ms per input token) and ITL (ms)", fontsize=8)
        add_legend(figure, looks.points_legend)
        return svg(figure, title)


def n_not_drawn(pairs: Sequence[Row]) -> int:
    """Return how many pairs miss a panel: a latency is missing, or not above 0."""
    columns = [column for name in LIMIT_NAMES for column in (f"true_{name}_ms", f"{name}_ms")]
    return sum(not is_drawable(pair, *columns) for pair in pairs)


def _draw_pairs(
    axes: Axes, pairs: Sequence[Row], name: str, ends: Ends, looks: ProfileLooks
) -> None:
    true, predicted = f"true_{name}_ms", f"{name}_ms"
    drawable = [pair for pair in pairs if is_drawable(pair, true, predicted)]
    axes.plot(ends, ends, color=INK, linewidth=0.7)
    for (profile_id,), rows in group_by(drawable, "gpu_profile_id").items():
        look = {**looks.of[profile_id], "linestyle": "none"}
        x, y = ([row[column] for row in rows] for column in (true, predicted))
        axes.plot(x, y, markersize=3.6, markeredgewidth=0, alpha=0.75, **look)
    known = [p for p in pairs if is_drawable(p, true) and p[predicted] is not None]
    if known:
        error = sum(abs(row[predicted] - row[true]) / row[true] for row in known)
        text = f"{number(100 * error / len(known))} %"
        axes.text(0.05, 0.95, text, transform=axes.transAxes, va="top", fontsize=7)
    make_logarithmic(axes, ends, ends, is_small=True)
    axes.set_box_aspect(1)


def _shared_ends(pairs: Sequence[Row], name: str) -> Ends:
    columns = (f"true_{name}_ms", f"{name}_ms")
    drawable = [pair for pair in pairs if is_drawable(pair, *columns)]
    values = [pair[column] for pair in drawable for column in columns]
    return (min(values) / 1.3, max(values) * 1.3) if values else (0.5, 2.0)


def _broken(name: str, width: int = 17) -> str:
    """Break a long name once, after the separators nearest its middle."""
    breaks = [found.end() for found in re.finditer(r"[-/_ ]+", name)]
    if len(name) <= width or not breaks:
        return name
    place = min(breaks, key=lambda place: abs(place - len(name) / 2))
    return f"{name[:place]}\n{name[place:]}"
