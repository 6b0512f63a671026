"""What the figures of a trace are drawn with: curves, panels, and axes in words."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from sextant.pages.plotting import (
    COLOURS,
    INK,
    Look,
    add_legend,
    drawing,
    svg,
    tick_label,
    ticks_per_decade,
)

WIDTH_IN = 8.5
"""Narrower than the report's figures: on a page of 800 px the text is still to be read."""
_LINES = ("-", "--", ":", "-.")
_LEAST_LOG_RATIO = 4
_MANY_NAMES = 5
"""From so many parameters on, a matrix's numbers need more than a third of the width."""
_VERY_MANY_NAMES = 7

Numbers = Sequence[float | None] | np.ndarray


class Curve(NamedTuple):
    """Values over an axis; None leaves a gap."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    """With `low`: ends of a band around the line."""
    is_marks: bool = False
    """Whether values are marks without a line; `low` and `high` are then error bars."""


class Axis(NamedTuple):
    """What an axis shows."""

    label: str
    is_log: bool = False
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None
    """Words at the ticks."""
    low: float | None = None
    high: float | None = None


def cumulative_curve(name: str, points: Mapping[str, Numbers]) -> Curve:
    """Return a distribution function, `value` and `fraction`, with its rise from 0."""
    return Curve(name, [points["value"][0], *points["value"]], [0.0, *points["fraction"]])


def style(axes: Axes, x: Axis, y: Axis) -> None:
    """Give a panel its limits, scales, ticks, labels and a faint grid."""
    sides = (
        (axes.xaxis, x, axes.set_xscale, axes.set_xlim),
        (axes.yaxis, y, axes.set_yscale, axes.set_ylim),
    )
    for axis, wanted, set_scale, set_limits in sides:
        axis.set_label_text(wanted.label)
        # Within a factor of a few a logarithmic axis has hardly a round number to show.
        is_log = wanted.is_log and _ratio(axis) > _LEAST_LOG_RATIO
        if is_log:
            set_scale("log")
        if wanted.low is not None or wanted.high is not None:
            set_limits(wanted.low, wanted.high)
        if is_log:
            axis.set_minor_locator(NullLocator())
            axis.set_major_locator(LogLocator(subs=ticks_per_decade(*_ends(axis), False)))
        elif wanted.ticks is None:
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(tick_label))
        if wanted.ticks is not None:
            axis.set_ticks(wanted.ticks, wanted.names)
    axes.grid(alpha=0.15, color=INK, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _ratio(axis: XAxis | YAxis) -> float:
    low, high = sorted(axis.get_data_interval())
    return high / low if low > 0 else 0.0


def _ends(axis: XAxis | YAxis) -> tuple[float, float]:
    low, high = sorted(axis.get_view_interval())
    return max(low, 1e-12), max(high, 1e-12)


def floats(values: Numbers) -> np.ndarray:
    """Return numbers with NaN for None, which is drawn as a gap."""
    return np.array([np.nan if value is None else value for value in values], float)


def stacked_figure(
    curves: Sequence[Curve], x: Axis, y: Axis, title: str, *, is_filled: bool = True
) -> str:
    """Draw a panel a curve, one below the other, over one horizontal axis."""
    with drawing(title):
        size = (WIDTH_IN, 0.5 + 1.35 * len(curves) + (0.5 if len(curves) == 1 else 0))
        figure = Figure(figsize=size, layout="constrained")
        rows = figure.subplots(len(curves), 1, sharex=True, squeeze=False)[:, 0]
        for position, (axes, curve) in enumerate(zip(rows, curves, strict=True)):
            colour = COLOURS[position % len(COLOURS)]
            across, up = floats(curve.x), floats(curve.y)
            axes.plot(across, up, color=colour, linewidth=1, drawstyle="steps-post")
            if is_filled:
                axes.fill_between(across, 0, up, step="post", color=colour, alpha=0.25, linewidth=0)
            own_x = x if axes is rows[-1] else x._replace(label="")
            style(axes, own_x, y._replace(label=""))
            if len(curves) > 1:
                axes.set_title(curve.name, fontsize=8.5, loc="left")
        figure.supylabel(y.label, fontsize=9)
        return svg(figure, title)


def panels_figure(
    panels: Sequence[tuple[str, Axis, Axis, Sequence[Curve]]],
    title: str,
    *,
    n_columns: int = 2,
    height_in: float = 2.4,
    is_step: bool = False,
) -> str:
    """Draw panels side by side, each with its own axes and curves.

    Args:
        panels: heading, horizontal and vertical axis, and curves of each.
        title: what a screen reader says of the figure.
        n_columns: panels beside each other.
        height_in: height of a panel.
        is_step: whether a curve holds its value until the next (a cumulative distribution).
    """
    n_columns = min(n_columns, len(panels))
    n_rows = -(-len(panels) // n_columns)
    looks = _looks(curve for *_, curves in panels for curve in curves)
    with drawing(title):
        size = (WIDTH_IN, height_in * n_rows + 0.3)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(n_rows, n_columns, squeeze=False)
        for place, (axes, (heading, x, y, curves)) in enumerate(
            zip(grid.flat, panels, strict=False)
        ):
            for curve in curves:
                _draw_curve(axes, curve, looks[curve.name], is_step)
            below = panels[place + n_columns :][:1]
            is_said_below = bool(below) and below[0][1].label == x.label
            style(axes, x._replace(label="") if is_said_below else x, y)
            axes.set_title(heading, fontsize=8.5, loc="left")
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        if len(looks) > 1:
            add_legend(figure, list(looks.items()))
        return svg(figure, title)


def _looks(curves: Iterable[Curve]) -> dict[str, Look]:
    """Return colour and line, or mark, by the name of a curve."""
    looks: dict[str, Look] = {}
    for curve in curves:
        place = len(looks)
        line = {"linestyle": _LINES[place % len(_LINES)]}
        mark = {"linestyle": "none", "marker": "o"}
        look = {"color": COLOURS[place % len(COLOURS)], **(mark if curve.is_marks else line)}
        looks.setdefault(curve.name, look)
    return looks


def _draw_curve(axes: Axes, curve: Curve, look: Look, is_step: bool) -> None:
    x, y = floats(curve.x), floats(curve.y)
    has_ends = curve.low is not None and curve.high is not None
    if curve.is_marks:
        if has_ends:
            ends = (floats(curve.low), floats(curve.high))
            axes.vlines(x, *ends, color=look["color"], alpha=0.45, linewidth=0.9)
        axes.plot(x, y, markersize=3, **look)
        return
    if has_ends:
        ends = (floats(curve.low), floats(curve.high))
        axes.fill_between(x, *ends, color=look["color"], alpha=0.2, linewidth=0)
    style = {"drawstyle": "steps-post"} if is_step else {}
    axes.plot(x, y, linewidth=1.2, **look, **style)


def bars_figure(
    names: Sequence[str], groups: Sequence[tuple[str, Sequence[float]]], x_label: str, title: str
) -> str:
    """Draw horizontal bars: of each name one a group, the first name at the top."""
    with drawing(title):
        figure = Figure(figsize=(WIDTH_IN, 0.7 + 0.32 * len(names)), layout="constrained")
        axes = figure.subplots()
        thickness = 0.8 / len(groups)
        for position, (_, values) in enumerate(groups):
            places = np.arange(len(names)) + thickness * (position + 0.5) - 0.4
            axes.barh(places, values, thickness * 0.9, color=COLOURS[position % len(COLOURS)])
        style(axes, Axis(x_label, low=0), Axis("", ticks=range(len(names)), names=names))
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        if len(groups) > 1:
            square = {"marker": "s", "linestyle": "none"}
            legend = [(name, {"color": COLOURS[i], **square}) for i, (name, _) in enumerate(groups)]
            add_legend(figure, legend)
        return svg(figure, title)


def matrix_figure(
    matrices: Sequence[tuple[str, Sequence[str], Sequence[Sequence[float | None]]]], title: str
) -> str:
    """Draw square matrices of coefficients from -1 to 1, with the numbers in their cells."""
    n_names = max(len(names) for _, names, _ in matrices)
    # Of one width, whatever is in it: text has the same size in all figures of the page.
    n_columns = 3 if n_names < _MANY_NAMES else 2
    n_rows = -(-len(matrices) // n_columns)
    height = n_rows * (0.72 * WIDTH_IN / n_columns + 0.4)
    with drawing(title):
        figure = Figure(figsize=(WIDTH_IN, height), layout="constrained")
        panels = figure.subplots(n_rows, n_columns, squeeze=False)
        for axes, (heading, names, cells) in zip(panels.flat, matrices, strict=False):
            _draw_matrix(axes, names, cells)
            axes.set_title(heading, fontsize=8.5, loc="left")
        for axes in panels.flat[len(matrices) :]:
            axes.set_axis_off()
        return svg(figure, title)


def _draw_matrix(axes: Axes, names: Sequence[str], cells: Sequence[Sequence[float | None]]) -> None:
    size = 8 if len(names) < _VERY_MANY_NAMES else 7
    for y, line in enumerate(cells):
        for x, value in enumerate(line):
            known = 0.0 if value is None else value
            # Faint enough that the number is readable, on light and dark pages.
            shade = {"facecolor": COLOURS[0 if known >= 0 else 5], "alpha": 0.6 * abs(known)}
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, linewidth=0, **shade))
            text = "–" if value is None else f"{value:.2f}".replace("-0.00", "0.00")
            axes.text(x, y, text, ha="center", va="center", fontsize=size)
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), aspect="equal")
    axes.tick_params(length=0)
    axes.spines[:].set_linewidth(0.5)
