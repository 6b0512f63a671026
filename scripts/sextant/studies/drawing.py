"""What the figures of studies are drawn with: lines through a few marked points."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sextant.pages.charts import WIDTH_IN, Axis, Numbers, floats, style
from sextant.pages.plotting import COLOURS, Look, add_legend, drawing, svg

_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_LINES = ("-", "--", ":", "-.")
_MAX_LABELS = 40
_RING = {"s": 90, "facecolors": "none", "linewidths": 1.3}


class Line(NamedTuple):
    """Measured points and the line through them; None leaves a gap."""

    name: str
    x: Numbers
    y: Numbers
    labels: Sequence[str] = ()
    """Beside the points."""
    ringed: Sequence[int] = ()
    """Places of points with a ring around them."""
    hollow: Sequence[int] = ()
    """Places of points whose mark is not filled."""
    low: Numbers | None = None
    high: Numbers | None = None
    """With `low`: ends of error bars."""


class Panel(NamedTuple):
    """One panel of a figure."""

    heading: str
    x: Axis
    y: Axis
    lines: Sequence[Line]


def lines_figure(
    panels: Sequence[Panel], title: str, *, n_columns: int = 2, height_in: float = 2.7
) -> str:
    """Draw panels side by side; lines of the same name look the same in all of them.

    Args:
        panels: from left to right, then down.
        title: what a screen reader says of the figure.
        n_columns: panels beside each other.
        height_in: height of a panel.
    """
    n_columns = min(n_columns, len(panels))
    n_rows = -(-len(panels) // n_columns)
    looks = _looks(line.name for panel in panels for line in panel.lines)
    with drawing(title):
        size = (WIDTH_IN, height_in * n_rows + 0.3)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(n_rows, n_columns, squeeze=False)
        for axes, panel in zip(grid.flat, panels, strict=False):
            n_labels = sum(len(line.labels) for line in panel.lines)
            for line in panel.lines:
                _draw(axes, line, looks[line.name], is_labelled=n_labels <= _MAX_LABELS)
            style(axes, panel.x, panel.y)
            axes.set_title(panel.heading, fontsize=8.5, loc="left")
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        add_legend(figure, list(looks.items()))
        return svg(figure, title)


def _looks(names: Iterable[str]) -> dict[str, Look]:
    return {
        name: {
            "color": COLOURS[place % len(COLOURS)],
            "marker": _MARKERS[place % len(_MARKERS)],
            "linestyle": _LINES[place // len(COLOURS) % len(_LINES)],
        }
        for place, name in enumerate(dict.fromkeys(names))
    }


def _draw(axes: Axes, line: Line, look: Look, *, is_labelled: bool) -> None:
    x, y, colour = floats(line.x), floats(line.y), look["color"]
    axes.plot(x, y, markersize=4, linewidth=1.2, **look)
    if line.low is not None and line.high is not None:
        axes.vlines(x, floats(line.low), floats(line.high), color=colour, linewidth=1)
    if line.ringed:
        places = list(line.ringed)
        axes.scatter(x[places], y[places], edgecolors=colour, **_RING)
    if line.hollow:
        places = list(line.hollow)
        hollow = {"marker": look["marker"], "linestyle": "none", "markersize": 4}
        # The page's own background is not known: a mark without its filling is drawn over.
        axes.plot(x[places], y[places], markerfacecolor="white", markeredgecolor=colour, **hollow)
    for across, up, label in zip(x, y, line.labels if is_labelled else (), strict=False):
        if np.isfinite([across, up]).all():
            place = {"xytext": (0, 5), "textcoords": "offset points", "ha": "center"}
            axes.annotate(label, (across, up), fontsize=7, **place)
