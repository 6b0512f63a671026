"""What all figures share: colours, marks, logarithmic axes, and SVG for a page or a file."""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from sextant.pages.words import Row, number

# Drawn in a colour that nothing else has, which the page then replaces by its own.
INK = "#010203"
# Okabe and Ito's palette, without what is faint on white or on black. Okabe, Ito: Color
# Universal Design, 2008.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_MARKERS = ("o", "s", "D", "^", "v", "P", "X")
_LINES = ("-", "--", ":", "-.")

Look = dict[str, Any]
Ends = tuple[float, float]
"""Lowest and highest value of an axis."""

AXIS_LABELS = {
    "throughput_tok_s": "Throughput (output tokens/s)",
    "output_tokens_per_usd": "Output tokens per USD",
    "median_ttft_ms": "Median TTFT (ms)",
    "median_itl_ms": "Median ITL (ms)",
    "nttft_ms": "nTTFT (ms per input token)",
    "itl_ms": "ITL (ms)",
}


class ProfileLooks(NamedTuple):
    """How the curves of GPU profiles look."""

    of: dict[str, Look]
    """By `gpu_profile_id`: colour, marker and line."""
    legend: list[tuple[str, Look]]
    """What tells curves apart, as labels and looks."""
    points_legend: list[tuple[str, Look]]
    """The same for points without lines."""


def profile_looks(profile_ids: Sequence[str], profiles: Sequence[Row]) -> ProfileLooks:
    """Return looks where colour and marker tell the GPU type and the line the number of GPUs.

    If the sheet has one type, or type and number do not tell all profiles apart, each profile
    has a colour and marker of its own instead (no two alike up to 168).

    Args:
        profile_ids: whom to give a look, in the order of the legend.
        profiles: rows of table `gpu_profile`; not every profile with points is in it.
    """
    parts = {row["gpu_profile_id"]: (row["gpu_id"], row["n_gpus"]) for row in profiles}
    kinds = {name: parts[name] for name in profile_ids if name in parts}
    types = list(dict.fromkeys(gpu_id for gpu_id, _ in kinds.values()))
    if len(types) < 2 or len({*kinds.values()}) < len(profile_ids):
        looks = {name: _look(index) for index, name in enumerate(profile_ids)}
        return ProfileLooks(looks, [*looks.items()], _without_lines(looks))
    by_type = {gpu_id: _look(index) for index, gpu_id in enumerate(types)}
    numbers = sorted({n_gpus for _, n_gpus in kinds.values()})
    lines = {n: {"linestyle": _LINES[i % len(_LINES)]} for i, n in enumerate(numbers)}
    looks = {name: {**by_type[gpu_id], **lines[n]} for name, (gpu_id, n) in kinds.items()}
    words = [
        (f"{n} GPU" if n == 1 else f"{n} GPUs", {"color": INK, **line}) for n, line in lines.items()
    ]
    marks = _without_lines(by_type)
    return ProfileLooks(looks, [*marks, *words], marks)


def _look(index: int) -> Look:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": _MARKERS[index % len(_MARKERS)],
        "linestyle": _LINES[index // (len(COLOURS) * len(_MARKERS)) % len(_LINES)],
    }


def _without_lines(looks: Mapping[str, Look]) -> list[tuple[str, Look]]:
    return [(name, {**look, "linestyle": "none"}) for name, look in looks.items()]


def is_drawable(row: Row, *columns: str) -> bool:
    """Tell whether a row has a place on logarithmic axes."""
    return all(row[column] is not None and row[column] > 0 for column in columns)


def make_logarithmic(axes: Axes, x: Ends, y: Ends, *, is_small: bool = False) -> None:
    """Give both axes logarithmic scales, few ticks and a faint grid; fewer ticks if small."""
    sides = (
        (axes.xaxis, axes.set_xscale, axes.set_xlim, x),
        (axes.yaxis, axes.set_yscale, axes.set_ylim, y),
    )
    for axis, set_scale, set_limits, ends in sides:
        set_scale("log")
        set_limits(*ends)
        axis.set_major_locator(LogLocator(subs=ticks_per_decade(*ends, is_small)))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter(FuncFormatter(tick_label))
    axes.grid(alpha=0.15, color=INK, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def ticks_per_decade(lowest: float, highest: float, is_small: bool) -> tuple[float, ...]:
    """Return enough ticks that the axis shows at least two, and few enough to read."""
    ratio = highest / lowest
    if ratio < 5:
        return (1.0, 2.0, 3.0, 5.0, 7.0) if is_small else (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)
    if is_small:
        return (1.0, 3.0) if ratio < 100 else (1.0,)
    return (1.0, 2.0, 5.0) if ratio < 1000 else (1.0,)


def tick_label(value: float, position: int) -> str:
    """Write an axis' value briefly, as matplotlib's tick formatters call it."""
    for factor, suffix in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if value >= factor:
            return f"{number(value / (1e3 if suffix == 'k' else factor))}{suffix}"
    return number(value)


@contextmanager
def drawing(name: str) -> Iterator[None]:
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
            ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
        ),
    }
    with matplotlib.rc_context(settings):
        yield


def add_legend(figure: Figure, entries: Sequence[tuple[str, Look]]) -> None:
    """Put one legend above all panels."""
    if entries:
        handles = [Line2D([], [], markersize=5, linewidth=1.3, **look) for _, look in entries]
        names = [label for label, _ in entries]
        # Rows of 8 fit the width unless names are long.
        columns = 8 if max(map(len, names)) < 14 else 6
        place = {"loc": "outside upper left", "frameon": False, "fontsize": 8}
        figure.legend(handles, names, ncols=columns, **place)


def svg(figure: Figure, title: str) -> str:
    """Return the figure as SVG that stands in HTML or in a file, with a name for screen readers.

    Its text has the colour of what surrounds it, black in a file.
    """
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawn = buffer.getvalue()
    # Without the XML prologue the SVG can stand in HTML. Nothing refers to ids of groups,
    # and they are the same in each figure.
    inline = re.sub(r'<g id="[^"]*"', "<g", drawn[drawn.index("<svg") :])
    opening = f'<svg role="img" aria-label="{escape(title)}"'
    return inline.replace(INK, "currentColor").replace("<svg", opening, 1)
