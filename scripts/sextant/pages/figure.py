"""How every figure is set up: colours, axes, legend, and SVG for a page or a file."""

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.typing import RcKeyType

from sextant.pages.wording import number

# Drawn in a colour that nothing else has, which the page then replaces by its own.
INK = "#010203"
# Okabe and Ito's palette, without what is faint on white or on black. Okabe, Ito: Color
# Universal Design, 2008.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
WIDTH_IN = 8.5
"""Narrow enough that text can be read on a page of 800 px."""
_LEAST_LOG_RATIO = 4

Look = dict[str, Any]
"""Arguments of matplotlib for a line or mark: colour, marker, line style."""
RING: Look = {"s": 90, "facecolors": "none", "linewidths": 1.3}
"""Around a point, as `Axes.scatter` takes it."""
Numbers = Sequence[float | None] | np.ndarray
"""Values to draw; None leaves a gap."""
_SETTINGS: dict[RcKeyType, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


class Axis(NamedTuple):
    """What an axis shows."""

    label: str
    is_log: bool = False
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None
    """Words at the ticks."""
    low: float | None = None
    high: float | None = None


def svg(figure: Figure, title: str) -> str:
    """Return the figure as SVG for HTML or a file, with a name for screen readers.

    Its text has the colour of what surrounds it, black in a file.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawn = buffer.getvalue()
    # Without the XML prologue the SVG can be part of HTML. Nothing refers to ids of groups,
    # and they are the same in each figure.
    inline = re.sub(r'<g id="[^"]*"', "<g", drawn[drawn.index("<svg") :])
    opening = f'<svg role="img" aria-label="{escape(title)}"'
    return inline.replace(INK, "currentColor").replace("<svg", opening, 1)


def draw_panels(
    panels: Sequence[Callable[[Axes], None]],
    title: str,
    *,
    height_in: float,
    n_columns: int = 1,
    margin_in: float = 0.3,
    legend: Sequence[tuple[str, Look]] = (),
) -> str:
    """Draw panels side by side, then down, each by a function of its axes; return the SVG.

    No two figures of a page share a title, which screen readers read. `height_in` is of a row of
    panels, `margin_in` the height beyond the rows. The legend is above the panels.
    """
    n_columns = min(n_columns, len(panels))
    n_rows = -(-len(panels) // n_columns)
    # Text stays text, in the page's font. The salt makes ids, which have to be unique in the page,
    # unlike those of other figures, and the SVG the same bytes each time.
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": title}):
        size = (WIDTH_IN, height_in * n_rows + margin_in)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(n_rows, n_columns, squeeze=False).flat
        for axes, draw in zip(grid, panels, strict=False):
            draw(axes)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        if legend:
            handles = [Line2D([], [], markersize=5, linewidth=1.3, **look) for _, look in legend]
            names = [label for label, _ in legend]
            # An entry's width in inches, by its letters; rows that are too long would be cut.
            entry_in = 0.55 + 0.065 * max(map(len, names))
            n_fitting = max(1, min(8, int(figure.get_figwidth() / entry_in)))
            place: Look = {"loc": "outside upper left", "frameon": False, "fontsize": 8}
            figure.legend(handles, names, ncols=n_fitting, **place)
        return svg(figure, title)


def style(axes: Axes, x: Axis, y: Axis) -> None:
    """Give a panel its limits, scales, ticks, labels and a faint grid."""
    sides = (
        (axes.xaxis, x, axes.set_xscale, axes.set_xlim),
        (axes.yaxis, y, axes.set_yscale, axes.set_ylim),
    )
    for axis, wanted, set_scale, set_limits in sides:
        axis.set_label_text(wanted.label)
        has_limits = wanted.low is not None and wanted.high is not None
        # Within a factor of a few a logarithmic axis has hardly a round number to show.
        is_log = wanted.is_log and (has_limits or _ratio(axis) > _LEAST_LOG_RATIO)
        if is_log:
            set_scale("log")
        if wanted.low is not None or wanted.high is not None:
            set_limits(wanted.low, wanted.high)
        if is_log:
            axis.set_minor_locator(NullLocator())
            axis.set_major_locator(LogLocator(subs=_ticks_per_decade(axis)))
        elif wanted.ticks is None:
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(_tick_label))
        if wanted.ticks is not None:
            axis.set_ticks(wanted.ticks, wanted.names)
    axes.grid(alpha=0.15, color=INK, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _ratio(axis: XAxis | YAxis) -> float:
    low, high = sorted(axis.get_data_interval())
    return high / low if low > 0 else 0.0


def _ticks_per_decade(axis: XAxis | YAxis) -> tuple[float, ...]:
    """Return enough ticks that the axis shows at least two, and few enough to read."""
    lowest, highest = (max(end, 1e-12) for end in sorted(axis.get_view_interval()))
    ratio = highest / lowest
    if ratio < 5:
        return (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    return (1.0, 2.0, 5.0) if ratio < 1000 else (1.0,)


def _tick_label(value: float, position: int) -> str:
    """Write an axis' value briefly, as matplotlib's tick formatters call it."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= factor:
            return f"{number(value / (1e3 if suffix == 'k' else factor))}{suffix}"
    return number(value)


def floats(values: Numbers) -> np.ndarray:
    """Return numbers with NaN for None, which is drawn as a gap."""
    return np.array([np.nan if value is None else value for value in values], float)
