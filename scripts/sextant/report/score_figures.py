"""How well predictors recommend, as SVG: success against overspend, and S/O by limits."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from sextant.base.rows import Row
from sextant.pages.figure import (
    COLOURS,
    INK,
    Look,
    add_legend,
    draw_panels,
    draw_shaded,
    figure_settings,
    svg,
)
from sextant.pages.wording import number
from sextant.report.score_means import REFERENCE_PREDICTORS, LimitGrid

_FACTS_ALONE: Look = {"marker": "o", "color": COLOURS[0], "linestyle": "none"}
_REFERENCES: Look = {"marker": "^", "color": COLOURS[5], "linestyle": "none"}
_IDEAL: Look = {"marker": "*", "color": COLOURS[1], "linestyle": "none"}
_EQUAL_SCORES = (0.2, 0.4, 0.6, 0.8)
_MOST_OVERSPEND = 2.0
"""What overspends more is drawn at the edge of the figure, with its number."""

# Where a label may be, in points from its mark: beside it if that is free, else farther above
# or below.
_PLACES = [(7 * side, rise) for rise in (0, 11, -11, 22, -22, 33, -33, 44, -44) for side in (1, -1)]

_GRIDS_PER_ROW = 4
_DARKEST = 0.75
"""Opacity of a full score: text has to be readable on it, on light and dark pages."""


def score_figure(scores: Sequence[Row], title: str) -> str:
    """Draw success rate against overspend, a mark per predictor (LLM-Pilot, Fig. 8).

    `scores` are of one SLO; those without a success rate are left out, those without any success
    have no overspend and are listed below. Labels have S/O in parentheses, faint curves join
    places of equal S/O.
    """
    judged = [row for row in scores if row["success_rate"] is not None]
    drawn = [row for row in judged if row["overspend"] is not None]
    failed = ", ".join(row["predictor"] for row in judged if row["overspend"] is None)
    with figure_settings(title):
        figure = Figure(figsize=(6.6, 4.2), layout="constrained")
        axes = figure.subplots()
        most = max([1.0, *(row["overspend"] for row in drawn)])
        right = 100 * min(most, _MOST_OVERSPEND)
        axes.set(xlim=(-0.04 * right, 1.18 * right), ylim=(-4, 112), yticks=range(0, 101, 20))
        axes.spines[["top", "right"]].set_visible(False)
        _draw_equal_scores(axes)
        axes.plot([0], [100], markersize=13, zorder=3, **_IDEAL)
        for row in drawn:
            axes.plot(*([value] for value in _place(row)), markersize=7, zorder=3, **_look(row))
        nowhere = f"\nWithout any success, hence without overspend: {failed}" if failed else ""
        axes.set_xlabel(f"Relative overspend O (%){nowhere}")
        axes.set_ylabel("Success rate S (%)")
        add_legend(figure, _legend(drawn))
        # Labels go where room is, so all else has to have its place first.
        figure.draw_without_rendering()
        _draw_labels(axes, sorted(drawn, key=lambda row: -row["so_score"]))
        return svg(figure, title)


def _look(row: Row) -> Look:
    return _REFERENCES if row["predictor"] in REFERENCE_PREDICTORS else _FACTS_ALONE


def _legend(rows: Sequence[Row]) -> list[tuple[str, Look]]:
    entries = [("no measurement of the new LLM", _FACTS_ALONE)]
    entries += [("measures it on reference profiles", _REFERENCES), ("ideal", _IDEAL)]
    used = [_IDEAL, *map(_look, rows)]
    return [(label, look) for label, look in entries if look in used]


def _place(row: Row) -> tuple[float, float]:
    return 100 * min(row["overspend"], _MOST_OVERSPEND), 100 * row["success_rate"]


def _draw_equal_scores(axes: Axes) -> None:
    for so_score in _EQUAL_SCORES:
        # Eq. 7 of LLM-Pilot solved for S, from where S is 1.
        thrift = np.linspace(so_score / (2 - so_score), 1, 60)
        success = so_score * thrift / (2 * thrift - so_score)
        axes.plot(100 * (1 - thrift), 100 * success, color=INK, alpha=0.25, linewidth=0.7)
        name, x, y = f"S/O {100 * so_score:.0f} %", *_curve_end(so_score)
        axes.text(x, y, name, ha="center", va="center", fontsize=7, alpha=0.7)


def _curve_end(so_score: float) -> tuple[float, float]:
    return 100 * (1 - so_score / (2 - so_score)), 104.0  # just above the place where S is 1


def _draw_labels(axes: Axes, rows: Sequence[Row]) -> None:
    """Write each predictor's name and S/O beside its mark, where there is nothing else."""
    taken = [_box(axes, place, (0, 0), (10, 10)) for place in map(_place, rows)]
    taken += [_box(axes, place, (0, 0), (35, 8)) for place in map(_curve_end, _EQUAL_SCORES)]
    for row in rows:
        beyond = row["overspend"] > _MOST_OVERSPEND
        over = f", O {number(100 * row['overspend'])} %" if beyond else ""
        text = f"{row['predictor']} ({number(100 * row['so_score'])} %{over})"
        # Letters of this size are 5 points wide at most, on average.
        size = (5 * len(text), 9)
        for dx, dy in _PLACES:
            middle = (dx + (size[0] if dx > 0 else -size[0]) / 2, dy)
            box = _box(axes, _place(row), middle, size)
            is_inside = axes.bbox.x0 < box.x0 and box.x1 < axes.figure.bbox.x1
            if is_inside and not any(box.overlaps(other) for other in taken):
                break
        taken.append(box)
        label = axes.annotate(
            text,
            _place(row),
            xytext=(dx, dy),
            textcoords="offset points",
            va="center",
            ha="left" if dx > 0 else "right",
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": INK, "alpha": 0.4, "linewidth": 0.6},
        )
        label.set_in_layout(False)


def _box(
    axes: Axes, place: tuple[float, float], middle: tuple[float, float], size: tuple[float, float]
) -> Bbox:
    """Return a box in pixels; its middle (from `place`) and size are in points."""
    scale = axes.figure.dpi / 72
    x, y = axes.transData.transform(place) + scale * np.array(middle)
    width, height = scale * np.array(size)
    return Bbox.from_bounds(x - width / 2, y - height / 2, width, height)


def limit_grid_figure(grids: Mapping[str, LimitGrid], title: str) -> str:
    """Draw the mean S/O in percent by latency limits, a panel per predictor in the order given."""
    n_columns = min(_GRIDS_PER_ROW, len(grids))

    def draw(axes: Axes, place: int, predictor: str) -> None:
        _draw_grid(axes, grids[predictor])
        axes.set_title(predictor, fontsize=8.5)
        axes.tick_params(labelleft=place % n_columns == 0)

    return draw_panels(
        [partial(draw, place=place, predictor=name) for place, name in enumerate(grids)],
        title,
        width_in=max(3.0, 2.75 * n_columns),
        height_in=2.2,
        n_columns=n_columns,
        labels=("ITL limit (ms)", "nTTFT limit (ms per input token)"),
    )


def _draw_grid(axes: Axes, grid: LimitGrid) -> None:
    for y, nttft_ms in enumerate(grid.nttft_ms):
        for x, itl_ms in enumerate(grid.itl_ms):
            so_score = grid.so_score.get((nttft_ms, itl_ms))
            text = "–" if so_score is None else f"{100 * so_score:.0f}"
            opacity = _DARKEST * (so_score or 0.0)
            draw_shaded(axes, x, y, text, colour=COLOURS[0], opacity=opacity, size=7)
    axes.set_xticks(range(len(grid.itl_ms)), [number(value) for value in grid.itl_ms])
    axes.set_yticks(range(len(grid.nttft_ms)), [number(value) for value in grid.nttft_ms])
    axes.set(xlim=(-0.5, len(grid.itl_ms) - 0.5), ylim=(-0.5, len(grid.nttft_ms) - 0.5))
    axes.tick_params(length=0, labelsize=7)
    axes.spines[:].set_linewidth(0.5)
