"""Latency against throughput and cost, and predictions against measurements, as SVG."""

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sextant.base.rows import Row, group_by
from sextant.facts.slo import METRICS, PERCENTILE_PREFIX, SLO
from sextant.pages.figure import (
    COLOURS,
    INK,
    LINES,
    MARKERS,
    RING,
    Axis,
    Look,
    add_legend,
    draw_panels,
    figure_settings,
    label_point,
    style,
    svg,
)
from sextant.pages.wording import number, plural
from sextant.points.frame import BOUNDS, FLOOR_MS, LENGTHS, TARGETS
from sextant.report.recommendations import TARGET_NAMES
from sextant.report.store_tables import MEASURED

_MAX_LABELS, _MAX_TICKS = 20, 10
_LLMS_PER_ROW, _LONGEST_LINE = 10, 17
_WIDTH_IN, _LOAD_WIDTH_IN = 11.0, 6.8
_LATENCY_PANELS = (
    ("throughput_tok_s", "median_ttft_ms"),
    ("throughput_tok_s", "median_itl_ms"),
    ("output_tokens_per_usd", "median_itl_ms"),
)
_AXIS_LABELS = {
    "throughput_tok_s": "Throughput (output tokens/s)",
    "output_tokens_per_usd": "Output tokens per USD",
    "median_ttft_ms": "Median TTFT (ms)",
    "median_itl_ms": "Median ITL (ms)",
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

    If the sheet has one type, or type and number do not tell all profiles apart, each profile has
    a colour and marker of its own instead (no two alike up to 168). `profiles` are rows of table
    `gpu_profile`; not every profile with points is in it.
    """
    parts = {row["gpu_profile_id"]: (row["gpu_id"], row["n_gpus"]) for row in profiles}
    kinds = {name: parts[name] for name in profile_ids if name in parts}
    types = list(dict.fromkeys(gpu_id for gpu_id, _ in kinds.values()))
    if len(types) < 2 or len({*kinds.values()}) < len(profile_ids):
        looks = {name: _look(index) for index, name in enumerate(profile_ids)}
        return ProfileLooks(looks, [*looks.items()], _without_lines(looks))
    by_type = {gpu_id: _look(index) for index, gpu_id in enumerate(types)}
    numbers = sorted({n_gpus for _, n_gpus in kinds.values()})
    lines = {n: {"linestyle": LINES[i % len(LINES)]} for i, n in enumerate(numbers)}
    looks = {name: {**by_type[gpu_id], **lines[n]} for name, (gpu_id, n) in kinds.items()}
    words: list[tuple[str, Look]]
    words = [(plural(n, "GPU"), {"color": INK, **line}) for n, line in lines.items()]
    marks = _without_lines(by_type)
    return ProfileLooks(looks, [*marks, *words], marks)


def _look(index: int) -> Look:
    return {
        "color": COLOURS[index % len(COLOURS)],
        "marker": MARKERS[index % len(MARKERS)],
        "linestyle": LINES[index // (len(COLOURS) * len(MARKERS)) % len(LINES)],
    }


def _without_lines(looks: Mapping[str, Look]) -> list[tuple[str, Look]]:
    return [(name, {**look, "linestyle": "none"}) for name, look in looks.items()]


def is_drawable(row: Row, *columns: str) -> bool:
    """Tell whether a row has a place on logarithmic axes; a prediction of 0 or less has none."""
    return all(row[column] is not None and row[column] > FLOOR_MS for column in columns)


def latency_axes(points: Sequence[Row]) -> dict[str, Axis]:
    """Return the axis of each drawn column, of one range for all LLMs, with a margin."""
    axes = {}
    for column, label in _AXIS_LABELS.items():
        values = [point[column] for point in points if is_drawable(point, column)]
        # The margin is wider above, where points carry labels.
        low, high = (min(values) / 1.3, max(values) * 1.5) if values else (0.5, 2.0)
        axes[column] = Axis(label, is_log=True, low=low, high=high)
    return axes


def latency_figure(
    points: Sequence[Row],
    looks: ProfileLooks,
    axes_of: Mapping[str, Axis],
    itl_limits: Mapping[str, float],
    title: str,
) -> str:
    """Draw latency against throughput and against throughput per dollar (LLM-Pilot, Fig. 7).

    `points` are one LLM's of one setting, from `points_with_costs`; `axes_of` is from
    `latency_axes`; `itl_limits` (ms) are those of the SLOs that hold for the median.
    """

    def draw(axes: Axes, x: str, y: str) -> None:
        _draw_curves(axes, x, y, points, looks)
        style(axes, axes_of[x], axes_of[y])
        if y == "median_itl_ms":
            _draw_limits(axes, itl_limits)

    panels = [partial(draw, x=x, y=y) for x, y in _LATENCY_PANELS]
    n_columns, legend = len(panels), looks.legend
    return draw_panels(
        panels, title, width_in=_WIDTH_IN, height_in=2.8, n_columns=n_columns, legend=legend
    )


def _draw_curves(axes: Axes, x: str, y: str, points: Sequence[Row], looks: ProfileLooks) -> None:
    drawable = [point for point in points if is_drawable(point, x, y)]
    for (profile_id,), rows in group_by(drawable, "gpu_profile_id").items():
        rows = sorted(rows, key=lambda row: row["level"])
        across, up = ([row[column] for row in rows] for column in (x, y))
        axes.plot(across, up, markersize=4, linewidth=1.3, **looks.of[profile_id])
        # Labels of many points would cover each other; levels rise along a curve anyway.
        for row in rows if len(drawable) <= _MAX_LABELS else ():
            label_point(axes, row[x], row[y], str(row["level"]))


def _draw_limits(axes: Axes, itl_limits: Mapping[str, float]) -> None:
    lowest, highest = axes.get_ylim()
    for slo_id, itl_ms in itl_limits.items():
        # A limit far from every point would squeeze the curves.
        if lowest <= itl_ms <= highest:
            _draw_limit(axes, itl_ms, f"{slo_id}: {number(itl_ms)} ms")


def _draw_limit(axes: Axes, limit_ms: float, label: str) -> None:
    axes.axhline(limit_ms, color=INK, linestyle=(0, (4, 3)), linewidth=0.8)
    place = axes.get_yaxis_transform()
    axes.text(0.01, limit_ms, label, transform=place, va="bottom", fontsize=7)


def load_figure(
    curves: pd.DataFrame, slo: SLO, looks: ProfileLooks, chosen: Row, title: str
) -> str:
    """Draw an LLM's latencies (rows of `load_curves`) over the load of a replica, a panel a limit.

    Dashed across is the limit. Bars, or bands of what is predicted, are 90% intervals; the ring is
    the load of the `chosen` deployment (`gpu_profile_id`, `outlook`).
    """
    panels = [partial(_draw_load, name, curves, slo, looks, chosen) for name in slo.limits]
    return draw_panels(
        panels, title, width_in=_LOAD_WIDTH_IN, height_in=2.5, n_columns=2, legend=looks.legend
    )


def _draw_load(
    metric: str, curves: pd.DataFrame, slo: SLO, looks: ProfileLooks, chosen: Row, axes: Axes
) -> None:
    limit_ms, percentile = slo.limits[metric]
    drawn = [limit_ms]
    for profile_id, curve in curves.groupby("gpu_profile_id"):
        columns = (TARGETS, *map(list, zip(*BOUNDS.values(), strict=True)))
        lengths = curve[LENGTHS].to_numpy(float)
        parts = [curve[names].to_numpy(float) for names in columns]
        y, low, high = (slo.latencies(part, lengths)[metric] for part in parts)
        x = slo.carried(curve["users"].to_numpy(), parts[0], lengths)
        look = looks.of[profile_id]
        if curve["predictor"].iloc[0] == MEASURED:
            # Where an end is not known the bar stops at what was measured.
            bottom, top = (np.where(np.isnan(end), y, end) for end in (low, high))
            axes.vlines(x, bottom, top, color=look["color"], alpha=0.6, linewidth=1.2)
        else:
            axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)
        axes.plot(x, y, markersize=4, linewidth=1.3, **look)
        # A wide interval would squeeze the curves: what lies beyond a factor of 2 is cut.
        drawn += [value for end in (y, low.clip(min=y / 2), high.clip(max=y * 2)) for value in end]
        if chosen["gpu_profile_id"] == profile_id and chosen["outlook"]:
            is_there = curve["users"].to_numpy() == chosen["outlook"]["level_users"]
            axes.scatter(x[is_there], y[is_there], **RING, edgecolors=look["color"])
    name, unit = METRICS[metric], "ms/token" if metric == "nttft" else "ms"
    label = f"{PERCENTILE_PREFIX[percentile]} {name} ({unit})"
    load = "Users" if slo.users is not None else "Requests a second"
    y_axis = Axis(label, is_log=True, low=np.nanmin(drawn) / 1.3, high=np.nanmax(drawn) * 1.4)
    levels = sorted(set(curves["users"])) if slo.users is not None else []
    is_told = 0 < len(levels) <= _MAX_TICKS
    ticks, names = (levels, [str(level) for level in levels]) if is_told else (None, None)
    style(axes, Axis(f"{load} of a replica", is_log=True, ticks=ticks, names=names), y_axis)
    _draw_limit(axes, limit_ms, f"limit {number(limit_ms)} ms")


def prediction_figure(pairs: Sequence[Row], looks: ProfileLooks, title: str) -> str:
    """Draw held-out predictions (`prediction_pairs`) against measurements, a panel per LLM and
    latency.

    Points on the diagonal are right; a panel's percentage is its mean absolute error relative to
    the measured latency (MAPE), which also counts predictions of 0 or less: they have no place on
    a logarithmic axis.
    """
    llms = [llm_id for (llm_id,) in group_by(pairs, "llm_id")]
    n_columns = min(_LLMS_PER_ROW, len(llms))
    chunks = [llms[start : start + n_columns] for start in range(0, len(llms), n_columns)]
    n_rows = len(chunks) * len(TARGET_NAMES)
    # A few LLMs get larger panels, and many fill the width of the page.
    side = min(1.9, _WIDTH_IN / n_columns)
    with figure_settings(title):
        size = (max(4.5, side * n_columns + 0.6), (side + 0.12) * n_rows + 0.8)
        figure = Figure(figsize=size, layout="constrained")
        grid = figure.subplots(n_rows, n_columns, squeeze=False)
        shared = {name: _shared_ends(pairs, name) for name in TARGET_NAMES}
        rows = [(chunk, name) for chunk in chunks for name in TARGET_NAMES]
        for line, (chunk, name) in zip(grid, rows, strict=True):
            for axes, llm_id in zip(line, chunk, strict=False):
                own = [pair for pair in pairs if pair["llm_id"] == llm_id]
                _draw_pairs(axes, own, name, shared[name], looks)
                axes.tick_params(labelleft=axes is line[0], labelsize=7)
                if name == "nttft":
                    axes.set_title(_broken(llm_id), fontsize=7.5)
            for axes in line[len(chunk) :]:
                axes.set_axis_off()
            line[0].set_ylabel(f"Predicted {TARGET_NAMES[name]}", fontsize=8)
        figure.supxlabel("Measured nTTFT (ms per input token) and ITL (ms)", fontsize=8)
        add_legend(figure, looks.points_legend)
        return svg(figure, title)


def n_not_drawn(pairs: Sequence[Row]) -> int:
    """Return how many pairs miss a panel: a latency is missing, or not above 0."""
    columns = [column for name in TARGET_NAMES for column in (f"true_{name}_ms", f"{name}_ms")]
    return sum(not is_drawable(pair, *columns) for pair in pairs)


def _draw_pairs(
    axes: Axes, pairs: Sequence[Row], name: str, ends: tuple[float, float], looks: ProfileLooks
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
    axis = Axis("", is_log=True, low=ends[0], high=ends[1])
    style(axes, axis, axis, has_few_ticks=True)
    axes.set_box_aspect(1)


def _shared_ends(pairs: Sequence[Row], name: str) -> tuple[float, float]:
    columns = (f"true_{name}_ms", f"{name}_ms")
    drawable = [pair for pair in pairs if is_drawable(pair, *columns)]
    values = [pair[column] for pair in drawable for column in columns]
    return (min(values) / 1.3, max(values) * 1.3) if values else (0.5, 2.0)


def _broken(name: str) -> str:
    """Break a long name once, after the separators nearest its middle."""
    breaks = [found.end() for found in re.finditer(r"[-/_ ]+", name)]
    if len(name) <= _LONGEST_LINE or not breaks:
        return name
    place = min(breaks, key=lambda place: abs(place - len(name) / 2))
    return f"{name[:place]}\n{name[place:]}"
