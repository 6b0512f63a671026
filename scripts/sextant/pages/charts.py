"""Charts: curves in panels, bars, matrices of coefficients."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from sextant.pages.figure import (
    COLOURS,
    INK,
    LINES,
    MARKERS,
    RING,
    WIDTH_IN,
    Axis,
    Look,
    Numbers,
    draw_panels,
    floats,
    style,
)

_MANY_NAMES = 5
"""From so many parameters on, a matrix's numbers need more than a third of the width."""
_VERY_MANY_NAMES = 7
_MAX_LABELS = 40


class Curve(NamedTuple):
    """Values over an axis; None leaves a gap."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None
    """With `low`: ends of a band around the line, or of error bars through points."""
    is_marks: bool = False
    """Whether values are marks without a line; `low` and `high` are then error bars."""
    is_reference: bool = False
    """Whether values are compared with it: a thin dashed line that has its name where it begins."""
    labels: Sequence[str] = ()
    """Beside the points."""
    ringed: Sequence[int] = ()
    """Places of points with a ring around them."""
    hollow: Sequence[int] = ()
    """Places of points whose mark is not filled."""


class Panel(NamedTuple):
    """One panel of a figure."""

    heading: str
    x: Axis
    y: Axis
    curves: Sequence[Curve]


def cumulative_curve(name: str, points: Mapping[str, Numbers]) -> Curve:
    """Return a distribution function, `value` and `fraction`, with its rise from 0."""
    return Curve(name, [points["value"][0], *points["value"]], [0.0, *points["fraction"]])


def panels_figure(
    panels: Sequence[Panel],
    title: str,
    *,
    n_columns: int = 2,
    height_in: float = 2.7,
    is_step: bool = False,
    has_points: bool = False,
) -> str:
    """Draw panels side by side, then down; curves of the same name look the same in all of them.

    With `is_step` a curve holds its value until the next (a cumulative distribution); with
    `has_points` each value is a measured point with a mark of its own.
    """
    drawn_curves = (curve for panel in panels for curve in panel.curves)
    looks = _looks((each for each in drawn_curves if not each.is_reference), has_points)
    n_columns = min(n_columns, len(panels))
    drawn = []
    for place, panel in enumerate(panels):
        below = panels[place + n_columns :][:1]
        is_said_below = bool(below) and below[0].x.label == panel.x.label
        x = panel.x._replace(label="") if is_said_below else panel.x
        drawn.append(partial(_draw_panel, panel=panel._replace(x=x), looks=looks, is_step=is_step))
    legend = list(looks.items()) if len(looks) > 1 or has_points else []
    return draw_panels(drawn, title, height_in=height_in, n_columns=n_columns, legend=legend)


def _looks(curves: Iterable[Curve], has_points: bool) -> dict[str, Look]:
    """Return colour, line and mark by the name of a curve."""
    looks: dict[str, Look] = {}
    for curve in curves:
        place = len(looks)
        look: Look = {"color": COLOURS[place % len(COLOURS)]}
        if curve.is_marks:
            look |= {"linestyle": "none", "marker": "o"}
        elif has_points:
            look |= {"marker": MARKERS[place % len(MARKERS)]}
            look |= {"linestyle": LINES[place // len(COLOURS) % len(LINES)]}
        else:
            look |= {"linestyle": LINES[place % len(LINES)]}
        looks.setdefault(curve.name, look)
    return looks


def _draw_panel(axes: Axes, panel: Panel, looks: Mapping[str, Look], is_step: bool) -> None:
    is_labelled = sum(len(curve.labels) for curve in panel.curves) <= _MAX_LABELS
    for curve in panel.curves:
        if curve.is_reference:
            x, y = floats(curve.x), floats(curve.y)
            axes.plot(x, y, color=INK, linestyle=(0, (4, 3)), linewidth=0.8, alpha=0.7)
            axes.text(x[0], y[0], curve.name, va="bottom", fontsize=7)
            continue
        look = looks[curve.name]
        _draw_curve(axes, curve, look, is_step)
        if "marker" in look:
            _draw_marked_points(axes, curve, look, is_labelled)
    style(axes, panel.x, panel.y)
    axes.set_title(panel.heading, fontsize=8.5, loc="left")


def _draw_curve(axes: Axes, curve: Curve, look: Look, is_step: bool) -> None:
    x, y = floats(curve.x), floats(curve.y)
    if curve.low is not None and curve.high is not None:
        low, high = floats(curve.low), floats(curve.high)
        if "marker" in look:
            axes.vlines(x, low, high, color=look["color"], alpha=0.6, linewidth=0.9)
        else:
            axes.fill_between(x, low, high, color=look["color"], alpha=0.2, linewidth=0)
    size = 3 if curve.is_marks else 4
    drawstyle = "steps-post" if is_step and not curve.is_marks else "default"
    axes.plot(x, y, linewidth=1.2, markersize=size, drawstyle=drawstyle, **look)


def _draw_marked_points(axes: Axes, curve: Curve, look: Look, is_labelled: bool) -> None:
    x, y, colour = floats(curve.x), floats(curve.y), look["color"]
    if curve.ringed:
        places = list(curve.ringed)
        axes.scatter(x[places], y[places], edgecolors=colour, **RING)
    if curve.hollow:
        places = list(curve.hollow)
        # The page's own background is not known: a mark without its filling is drawn over.
        hollow = look | {"linestyle": "none", "markerfacecolor": "white", "markersize": 4}
        axes.plot(x[places], y[places], **hollow)
    for across, up, label in zip(x, y, curve.labels if is_labelled else (), strict=False):
        if np.isfinite([across, up]).all():
            offset: Look = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
            axes.annotate(label, (across, up), fontsize=7, **offset)


def bars_figure(
    names: Sequence[str], groups: Sequence[tuple[str, Sequence[float]]], x_label: str, title: str
) -> str:
    """Draw horizontal bars: one per name and group, the first name at the top."""
    square: Look = {"marker": "s", "linestyle": "none"}
    looks = [{"color": colour, **square} for colour in COLOURS]
    legend = [(name, look) for (name, _), look in zip(groups, looks, strict=False)]

    def draw(axes: Axes) -> None:
        thickness = 0.8 / len(groups)
        for position, (_, values) in enumerate(groups):
            places = np.arange(len(names)) + thickness * (position + 0.5) - 0.4
            axes.barh(places, values, thickness * 0.9, color=COLOURS[position % len(COLOURS)])
        style(axes, Axis(x_label, low=0), Axis("", ticks=range(len(names)), names=names))
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")

    return draw_panels(
        [draw],
        title,
        height_in=0.32 * len(names),
        margin_in=0.7,
        legend=legend if len(groups) > 1 else [],
    )


def matrix_figure(
    matrices: Sequence[tuple[str, Sequence[str], Sequence[Sequence[float | None]]]], title: str
) -> str:
    """Draw square matrices of coefficients from -1 to 1, with the numbers in their cells."""
    n_names = max(len(names) for _, names, _ in matrices)
    # Of one width, whatever is in it: text has the same size in all figures of the page.
    n_columns = 3 if n_names < _MANY_NAMES else 2
    panels: list[Callable[[Axes], None]]
    panels = [partial(_draw_matrix, matrix=matrix) for matrix in matrices]
    height_in = 0.72 * WIDTH_IN / n_columns + 0.4
    # Fewer matrices than columns keep the size of a column.
    panels += [Axes.set_axis_off] * (n_columns - len(panels))
    return draw_panels(panels, title, height_in=height_in, n_columns=n_columns, margin_in=0)


def _draw_matrix(
    axes: Axes, matrix: tuple[str, Sequence[str], Sequence[Sequence[float | None]]]
) -> None:
    heading, names, cells = matrix
    size = 8 if len(names) < _VERY_MANY_NAMES else 7
    for y, line in enumerate(cells):
        for x, value in enumerate(line):
            known = 0.0 if value is None else value
            text = "–" if value is None else f"{value:.2f}".replace("-0.00", "0.00")
            colour = COLOURS[0 if known >= 0 else 5]
            # A faint filling: the number has to be readable on light and dark pages.
            look: Look = {"facecolor": colour, "alpha": 0.6 * abs(known), "linewidth": 0}
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, **look))
            axes.text(x, y, text, ha="center", va="center", fontsize=size)
    axes.set_xticks(range(len(names)), names, rotation=35, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), aspect="equal")
    axes.set_title(heading, fontsize=8.5, loc="left")
    axes.tick_params(length=0)
    axes.spines[:].set_linewidth(0.5)
