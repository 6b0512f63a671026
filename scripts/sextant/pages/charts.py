"""Charts as SVG: curves in panels, matrices of coefficients."""

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.typing import RcKeyType

from sextant.pages.words import number

# Drawn in a colour that nothing else has, which the page then replaces by its own.
INK = "#010203"
# Okabe and Ito's palette, without colours that are faint on white or on black. Okabe, Ito: Color
# Universal Design, 2008.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
MARKERS = ("o", "s", "D", "^", "v", "P", "X")
LINES = ("-", "--", ":", "-.")
NARROW_IN = 5.0
"""Width in inches of a figure of one panel: pages set such figures side by side, and its text can
be read on a phone."""
_WIDTH_IN = 8.5  # of a figure of several panels: narrow enough to be read on a page of 800 px
_WIDEST_NARROW_IN = 6.0
_LEAST_LOG_RATIO = 4
_MAX_LABELS = 40

Look = dict[str, Any]  # arguments of matplotlib for a line or mark: colour, marker, line style
Numbers = Sequence[float | None] | np.ndarray  # values to draw; None leaves a gap
_SETTINGS: dict[RcKeyType, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.size": 9,
    "axes.labelsize": 9,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
}


class Axis(NamedTuple):
    """What an axis shows."""

    label: str
    is_log: bool = False
    ticks: Sequence[float] | None = None
    names: Sequence[str] | None = None  # words at the ticks
    low: float | None = None
    high: float | None = None


class Curve(NamedTuple):
    """Values over an axis; None leaves a gap."""

    name: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None  # with `low`: a band around the line, or error bars of points
    is_marks: bool = False  # no line; `low` and `high` are error bars
    is_reference: bool = False  # a thin dashed line with its name where it begins
    labels: Sequence[str] = ()  # beside the points
    ringed: Sequence[int] = ()  # places of points with a ring around them
    hollow: Sequence[int] = ()  # places of points whose mark is not filled

    def look(self, index: int, has_points: bool) -> Look:
        """Return the look of the `index`-th name of a figure; with `has_points` it has marks."""
        colour = COLOURS[index % len(COLOURS)]
        marker = MARKERS[index % len(MARKERS)] if has_points else "o"
        if self.is_marks:
            return {"color": colour, "linestyle": "none", "marker": marker}
        if has_points:
            line = LINES[index // len(COLOURS) % len(LINES)]
            return {"color": colour, "marker": marker, "linestyle": line}
        return {"color": colour, "linestyle": LINES[index % len(LINES)]}


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
    width_in: float = _WIDTH_IN,
    is_step: bool = False,
    has_points: bool = False,
) -> str:
    """Draw panels side by side, then down; curves of the same name look the same in all panels.

    With `is_step` a curve holds its value until the next (a cumulative distribution). With
    `has_points` each value is a measured point and has a mark. Screen readers read the title, so
    it has to be unique in a page. `height_in` is the height of a row of panels in inches,
    `width_in` the width of the figure: a wide one scrolls on a phone.
    """
    looks: dict[str, Look] = {}
    for panel in panels:
        for curve in panel.curves:
            if not curve.is_reference:
                looks.setdefault(curve.name, curve.look(len(looks), has_points))

    n_columns = min(n_columns, len(panels))
    n_rows = -(-len(panels) // n_columns)
    # Text stays text, in the page's font. The salt makes ids, which have to be unique in the page,
    # unlike those of other figures, and the SVG the same bytes each time.
    with matplotlib.rc_context({**_SETTINGS, "svg.hashsalt": title}):
        figure = Figure(figsize=(width_in, height_in * n_rows + 0.3), layout="constrained")
        grid = figure.subplots(n_rows, n_columns, squeeze=False).flat
        for index, panel in enumerate(panels):
            below = panels[index + n_columns :][:1]
            if below and below[0].x.label == panel.x.label:
                panel = panel._replace(x=panel.x._replace(label=""))
            _draw_panel(grid[index], panel, looks, is_step)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        if len(looks) > 1 or has_points:
            # An entry's width in inches, by its letters; rows that are too long would be cut.
            entry_in = 0.55 + 0.065 * max(map(len, looks))
            figure.legend(
                [Line2D([], [], markersize=5, linewidth=1.3, **look) for look in looks.values()],
                [*looks],
                ncols=max(1, min(8, int(figure.get_figwidth() / entry_in))),
                loc="outside upper left",
                frameon=False,
                fontsize=8,
            )

        return _svg_of(figure, title)


def _draw_panel(axes: Axes, panel: Panel, looks: Mapping[str, Look], is_step: bool) -> None:
    is_labelled = sum(len(curve.labels) for curve in panel.curves) <= _MAX_LABELS
    for curve in panel.curves:
        x = np.array(curve.x, float)
        y = np.array(curve.y, float)
        if curve.is_reference:
            axes.plot(x, y, color=INK, linestyle=(0, (4, 3)), linewidth=0.8, alpha=0.7)
            axes.text(x[0], y[0], curve.name, va="bottom", fontsize=7)
            continue
        look = looks[curve.name]
        colour = look["color"]
        has_marks = "marker" in look
        if curve.low is not None and curve.high is not None:
            low = np.array(curve.low, float)
            high = np.array(curve.high, float)
            if has_marks:
                axes.vlines(x, low, high, color=colour, alpha=0.8, linewidth=1.4)
            else:
                axes.fill_between(x, low, high, color=colour, alpha=0.2, linewidth=0)
        drawstyle = "steps-post" if is_step and not curve.is_marks else "default"
        axes.plot(x, y, linewidth=1.2, markersize=4, drawstyle=drawstyle, **look)
        if places := list(curve.ringed):
            ring: Look = {"s": 90, "facecolors": "none", "linewidths": 1.3}
            axes.scatter(x[places], y[places], edgecolors=colour, **ring)
        if places := list(curve.hollow):
            # The page's own background is not known: a mark without its filling is drawn over.
            hollow = look | {"linestyle": "none", "markerfacecolor": "white", "markersize": 4}
            axes.plot(x[places], y[places], **hollow)
        for across, up, label in zip(x, y, curve.labels if is_labelled else (), strict=False):
            if np.isfinite([across, up]).all():
                # Beside an interval, which else would cross it.
                at = {"xytext": (0, 8), "ha": "center"}
                if curve.low is not None:
                    at = {"xytext": (7, -3), "ha": "left"}
                offset: Look = {**at, "textcoords": "offset points"}
                axes.annotate(label, (across, up), fontsize=7, **offset)
    _style(axes, panel.x, panel.y)
    axes.set_title(panel.heading, fontsize=8.5, loc="left")


def _svg_of(figure: Figure, title: str) -> str:
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawn = buffer.getvalue()
    # Without the XML prologue the SVG can be part of HTML. Nothing refers to ids of groups, and
    # they are the same in each figure. Text has the colour of what surrounds it, black in a file.
    inline = re.sub(r'<g id="[^"]*"', "<g", drawn[drawn.index("<svg") :])
    look = ' class="wide"' if figure.get_figwidth() > _WIDEST_NARROW_IN else ""
    opening = f'<svg{look} role="img" aria-label="{escape(title)}"'
    return inline.replace(INK, "currentColor").replace("<svg", opening, 1)


def _style(axes: Axes, x: Axis, y: Axis) -> None:
    sides = (
        (axes.xaxis, x, axes.set_xscale, axes.set_xlim),
        (axes.yaxis, y, axes.set_yscale, axes.set_ylim),
    )
    for axis, wanted, set_scale, set_limits in sides:
        axis.set_label_text(wanted.label)
        has_limits = wanted.low is not None and wanted.high is not None
        low, high = sorted(axis.get_data_interval())
        # Within a factor of a few a logarithmic axis has hardly a round number to show.
        is_log = wanted.is_log and (has_limits or (low > 0 and high / low > _LEAST_LOG_RATIO))
        if is_log:
            set_scale("log")
        if wanted.low is not None or wanted.high is not None:
            set_limits(wanted.low, wanted.high)
        if is_log:
            axis.set_minor_locator(NullLocator())
            # Enough ticks that the axis shows at least two, and few enough to read.
            lowest, highest = (max(end, 1e-12) for end in sorted(axis.get_view_interval()))
            few = (1.0, 2.0, 5.0)
            many = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
            ratio = highest / lowest
            subs = many if ratio < 5 else few if ratio < 1000 else (1.0,)
            axis.set_major_locator(LogLocator(subs=subs))
        elif wanted.ticks is None:
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axis.set_major_formatter(FuncFormatter(_tick_label))
        if wanted.ticks is not None:
            axis.set_ticks(wanted.ticks, wanted.names)
    axes.grid(alpha=0.15, color=INK, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _tick_label(value: float, position: int) -> str:
    """Write an axis' value briefly, as matplotlib's tick formatters call it."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= factor:
            return f"{number(value / (1e3 if suffix == 'k' else factor))}{suffix}"
    return number(value)
