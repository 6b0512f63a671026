"""Figures as SVG that takes its text colour and font from the page around it."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from sextant.report.tables import LIMIT_NAMES, Row, group_by, number

# Drawn in a colour that nothing else has, which the page then replaces by its own.
_INK = "#010203"
# Okabe and Ito's palette, without what is faint on white or on black. Okabe, Ito: Color
# Universal Design, 2008.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_LINES = ("-", "--", "-.")
_MAX_LABELS = 20

Limits = Mapping[str, tuple[float, float]]


class _Panel(NamedTuple):
    x: str
    y: str


_AXIS_LABELS = {
    "throughput_tok_s": "Throughput (output tokens/s)",
    "output_tokens_per_usd": "Output tokens per USD",
    "median_ttft_ms": "Median TTFT (ms)",
    "median_itl_ms": "Median ITL (ms)",
    "nttft_ms": "nTTFT (ms per input token)",
    "itl_ms": "ITL (ms)",
}
_LATENCY_PANELS = (
    _Panel("throughput_tok_s", "median_ttft_ms"),
    _Panel("throughput_tok_s", "median_itl_ms"),
    _Panel("output_tokens_per_usd", "median_itl_ms"),
)


def profile_styles(profile_ids: Sequence[str]) -> dict[str, dict]:
    """Return a look per GPU profile: colour, marker and line, no two alike up to 126."""
    return {
        profile_id: {
            "color": _COLOURS[index % len(_COLOURS)],
            "marker": _MARKERS[index % len(_MARKERS)],
            "linestyle": _LINES[index // (len(_COLOURS) * len(_MARKERS)) % len(_LINES)],
        }
        for index, profile_id in enumerate(profile_ids)
    }


def axis_limits(points: Sequence[Row]) -> dict[str, tuple[float, float]]:
    """Return the range of each drawn column, with a margin, so that LLMs share their axes."""
    limits = {}
    for column in {name for panel in _LATENCY_PANELS for name in panel}:
        values = [point[column] for point in points if _is_drawable(point, column)]
        if values:
            # The margin is wider above, where points carry labels.
            limits[column] = (min(values) / 1.3, max(values) * 1.5)
    return limits


def latency_figure(
    points: Sequence[Row],
    styles: Mapping[str, Mapping],
    limits: Limits,
    itl_limits: Mapping[str, float],
    title: str,
) -> str:
    """Draw latency against throughput and against throughput per dollar, as SVG.

    Args:
        points: one LLM's points of one setting, from `points_with_costs`.
        styles: look of each GPU profile.
        limits: axis range by column.
        itl_limits: SLOs that hold for the median: their ITL limits, in ms.
        title: what a screen reader says of the figure.
    """
    with _drawing(title):
        figure = Figure(figsize=(11, 3.1), layout="constrained")
        for axes, panel in zip(figure.subplots(1, 3), _LATENCY_PANELS, strict=True):
            _draw_curves(axes, panel, points, styles)
            if panel.y == "median_itl_ms":
                _draw_limits(axes, itl_limits, limits)
            _finish(axes, panel, limits)
        return _svg(figure, title)


def _draw_curves(
    axes: Axes, panel: _Panel, points: Sequence[Row], styles: Mapping[str, Mapping]
) -> None:
    drawable = [point for point in points if _is_drawable(point, *panel)]
    for (profile_id,), rows in group_by(drawable, "gpu_profile_id").items():
        rows = sorted(rows, key=lambda row: row["level"])
        x, y = ([row[column] for row in rows] for column in panel)
        axes.plot(x, y, label=profile_id, markersize=4, linewidth=1.3, **styles[profile_id])
        # All labels of many curves would cover each other: then the last has to do.
        labelled = rows if len(drawable) <= _MAX_LABELS else rows[-1:]
        for row in labelled:
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
            axes.axhline(itl_ms, color=_INK, linestyle=(0, (4, 3)), linewidth=0.8)
            label = f"{slo_id}: {number(itl_ms)} ms"
            place = axes.get_yaxis_transform()
            axes.text(0.01, itl_ms, label, transform=place, va="bottom", fontsize=7)


def prediction_figure(pairs: Sequence[Row], styles: Mapping[str, Mapping], title: str) -> str:
    """Draw held-out predictions against measurements; points on the diagonal are right.

    Args:
        pairs: rows of `prediction_pairs`.
        styles: look of each GPU profile.
        title: what a screen reader says of the figure.
    """
    with _drawing(title):
        figure = Figure(figsize=(8, 3.9), layout="constrained")
        for axes, name in zip(figure.subplots(1, 2), LIMIT_NAMES, strict=True):
            true, predicted = f"true_{name}_ms", f"{name}_ms"
            drawable = [pair for pair in pairs if _is_drawable(pair, true, predicted)]
            for (profile_id,), rows in group_by(drawable, "gpu_profile_id").items():
                look = {**styles[profile_id], "linestyle": "none"}
                x, y = ([row[column] for row in rows] for column in (true, predicted))
                axes.plot(x, y, label=profile_id, markersize=4, alpha=0.8, **look)
            values = [pair[column] for pair in drawable for column in (true, predicted)]
            ends = (min(values) / 1.3, max(values) * 1.3) if values else (0.5, 2.0)
            axes.plot(ends, ends, color=_INK, linewidth=0.8)
            axes.set_box_aspect(1)
            _finish(axes, _Panel(predicted, predicted), {predicted: ends})
            axes.set_xlabel(f"Measured {_AXIS_LABELS[predicted]}")
            axes.set_ylabel(f"Predicted {_AXIS_LABELS[predicted]}")
        return _svg(figure, title)


def _is_drawable(row: Row, *columns: str) -> bool:
    """Tell whether a row has a place on logarithmic axes."""
    return all(row[column] is not None and row[column] > 0 for column in columns)


def _finish(axes: Axes, panel: _Panel, limits: Limits) -> None:
    sides = (
        (panel.x, axes.xaxis, axes.set_xscale, axes.set_xlim),
        (panel.y, axes.yaxis, axes.set_yscale, axes.set_ylim),
    )
    for column, axis, set_scale, set_limits in sides:
        set_scale("log")
        ends = limits.get(column, (0.5, 2.0))
        set_limits(*ends)
        axis.set_major_locator(LogLocator(subs=_ticks_per_decade(*ends)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(_tick_label))
        axis.set_label_text(_AXIS_LABELS[column])
    axes.grid(alpha=0.15, color=_INK, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _ticks_per_decade(lowest: float, highest: float) -> tuple[float, ...]:
    """Return enough ticks that the axis shows at least two, and few enough to read."""
    if highest / lowest < 5:
        return (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    return (1.0, 2.0, 5.0) if highest / lowest < 1000 else (1.0,)


def _tick_label(value: float, position: int) -> str:
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= factor:
            return f"{number(value / (1e3 if suffix == 'k' else factor))}{suffix}"
    return number(value)


@contextmanager
def _drawing(name: str) -> Iterator[None]:
    """Draw for an SVG that is the same bytes each time.

    Text stays text, in the page's font; a `$` in a name is no formula. The salt makes ids,
    which have to be unique in the page, unlike those of other figures.
    """
    settings = {
        "svg.hashsalt": name,
        "svg.fonttype": "none",
        "text.parse_math": False,
        "font.size": 9,
        "axes.labelsize": 9,
        "xtick.labelsize": 8,
        "ytick.labelsize": 8,
        **dict.fromkeys(
            ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), _INK
        ),
    }
    with matplotlib.rc_context(settings):
        yield


def _svg(figure: Figure, title: str) -> str:
    handles = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        place = {"loc": "outside upper left", "ncols": 6, "frameon": False, "fontsize": 8}
        figure.legend(handles.values(), handles.keys(), **place)
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawn = buffer.getvalue()
    # Without the XML prologue the SVG can stand in HTML. Nothing refers to ids of groups,
    # and they are the same in each figure.
    inline = re.sub(r'<g id="[^"]*"', "<g", drawn[drawn.index("<svg") :])
    opening = f'<svg role="img" aria-label="{escape(title)}"'
    return inline.replace(_INK, "currentColor").replace("<svg", opening, 1)
