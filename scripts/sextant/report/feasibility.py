"""Which LLM can be served on which GPU profile: as a table's cells, and as SVG."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.path import Path as Outline

from sextant.base.rows import Row, group_by
from sextant.pages.figure import COLOURS, INK, Look, figure_settings, svg
from sextant.points.verdict import Kind, Outcome
from sextant.report.store_tables import Tables

_MAX_WIDE_PROFILES = 6
"""With more profiles a table of words does not fit the page."""
_MAX_REASONS = 3

FEASIBLE, TOO_SMALL, OTHER = "✓", "✗", "–"

_MARK_OF = {Kind.FITS: FEASIBLE, Kind.DOES_NOT_FIT: TOO_SMALL}
_TICK = Outline([(-0.5, -0.05), (-0.12, -0.45), (0.55, 0.5)])
_MARKS = {FEASIBLE: _TICK, TOO_SMALL: "x", OTHER: "_"}


class Column(NamedTuple):
    """A GPU profile of a matrix; its short name is below the name of its group."""

    gpu_profile_id: str
    group: str
    short: str


class Matrix(NamedTuple):
    """LLMs and GPU profiles of one source, workload and scenario."""

    name: str
    is_compact: bool
    """Whether marks say it, and not words: many profiles, or no batch weight is known."""
    columns: list[Column]
    groups: list[tuple[str, int]]
    """Name and number of neighbouring columns of one GPU type."""
    lines: list[tuple[str, list[Row | None]]]
    """An LLM and its cells, rows of table `feasibility` with a `mark`; None: not tried."""
    legend: list[tuple[str, str, int]]
    """Mark, meaning and number of cells."""


def feasibility_matrices(tables: Tables) -> list[Matrix]:
    """Return a matrix of LLMs and GPU profiles for each workload and scenario tried."""
    groups = group_by(tables["feasibility"], "source", "workload_id", "scenario_id")
    return [_matrix(tables, " · ".join(key), rows) for key, rows in groups.items()]


def _matrix(tables: Tables, name: str, rows: Sequence[Row]) -> Matrix:
    marked = [{**row, "mark": _MARK_OF.get(_kind(row), OTHER)} for row in rows]
    cells = {(row["llm_id"], row["gpu_profile_id"]): row for row in marked}
    llm_ids = sorted({row["llm_id"] for row in [*tables["llm"], *rows]})
    known = any(row["batch_weight_tokens"] is not None for row in rows if row["is_feasible"])
    columns = _columns(tables["gpu_profile"], rows)
    is_compact = len(columns) > _MAX_WIDE_PROFILES or not known
    lines = [(llm, [cells.get((llm, c.gpu_profile_id)) for c in columns]) for llm in llm_ids]
    counts = Counter(column.group for column in columns)
    return Matrix(name, is_compact, columns, [*counts.items()], lines, _legend(marked))


def _kind(row: Row) -> Kind:
    return Outcome(row["verdict"]).kind


def _columns(profiles: Sequence[Row], rows: Sequence[Row]) -> list[Column]:
    """Return the profiles by GPU type, the type with the cheapest profile first."""
    columns = []
    for (gpu_id,), own in group_by(profiles, "gpu_id").items():
        numbers = Counter(row["n_gpus"] for row in own)
        for row in sorted(own, key=lambda row: row["n_gpus"]):
            # The number of GPUs does where it tells the type's profiles apart.
            is_clear = numbers[row["n_gpus"]] == 1
            short = str(row["n_gpus"]) if is_clear else row["gpu_profile_id"]
            columns.append(Column(row["gpu_profile_id"], gpu_id, short))
    listed = {row["gpu_profile_id"] for row in profiles}
    others = sorted({row["gpu_profile_id"] for row in rows} - listed)
    return [*columns, *(Column(name, "not in the sheet", name) for name in others)]


def _legend(rows: Sequence[Row]) -> list[tuple[str, str, int]]:
    reasons = {row["reason"] for row in rows if row["mark"] != FEASIBLE}
    # Of many different reasons only the kind; each cell has its own.
    is_long = len(reasons) > _MAX_REASONS
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        why = _kind(row).value if is_long else row["reason"]
        found[row["mark"], "can be served" if row["is_feasible"] else why] += 1
    order = [FEASIBLE, TOO_SMALL, OTHER]
    ordered = sorted(found.items(), key=lambda item: (order.index(item[0][0]), item[0][1]))
    return [(mark, words, count) for (mark, words), count in ordered]


def feasibility_figure(matrix: Matrix, title: str) -> str:
    """Draw a matrix with ticks, crosses and dashes (LLM-Pilot, Table III)."""
    n_lines, n_columns = len(matrix.lines), len(matrix.columns)
    with figure_settings(title):
        size = (2.4 + 0.42 * n_columns, 1.1 + 0.26 * (n_lines + len(matrix.legend)))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots()
        axes.set(xlim=(-0.5, n_columns - 0.5), ylim=(n_lines - 0.5, -0.5))
        for y, (_, cells) in enumerate(matrix.lines):
            for x, cell in enumerate(cells):
                if cell:
                    _draw_mark(axes, x, y, cell["mark"])
        axes.set_yticks(range(n_lines), [llm_id for llm_id, _ in matrix.lines])
        axes.xaxis.tick_top()
        axes.set_xticks(range(n_columns), [column.short for column in matrix.columns])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        _draw_groups(axes, matrix)
        words = [f"{mark}  {meaning}: {count}" for mark, meaning, count in matrix.legend]
        axes.set_xlabel("\n".join(words), loc="left", fontsize=8)
        return svg(figure, title)


def _draw_mark(axes: Axes, x: int, y: int, mark: str) -> None:
    if mark == FEASIBLE:
        shade: Look = {"facecolor": COLOURS[0], "alpha": 0.25, "linewidth": 0}
        axes.add_patch(Rectangle((x - 0.46, y - 0.44), 0.92, 0.88, **shade))
    look: Look = {"markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.2}
    axes.plot([x], [y], marker=_MARKS[mark], color=INK, **look)


def _draw_groups(axes: Axes, matrix: Matrix) -> None:
    """Write the GPU types above their columns, with a line over each group."""
    start = 0
    for group, width in matrix.groups:
        # Rows are the unit: the heading keeps its distance whatever the number of LLMs.
        axes.plot(
            (start - 0.4, start + width - 0.6), (-1.3, -1.3), INK, clip_on=False, linewidth=0.8
        )
        # A name longer than its columns would run into the next.
        text = group if len(group) <= 7 * width else group.replace("-", "-\n", 1)
        middle = start + (width - 1) / 2
        axes.text(middle, -1.45, text, ha="center", va="bottom", fontsize=8)
        start += width
