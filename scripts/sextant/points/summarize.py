"""From measured cells to the rows of the tables `point`, `feasibility` and `telemetry`."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pyarrow as pa

from sextant.base.errors import InputError
from sextant.base.files import provenance, write_parquet
from sextant.experiment.scenarios import START_SQL, WITH_USERS_SQL, Burst
from sextant.facts.llm import DTYPE_PRECISION
from sextant.points.cell_files import MeasuredCell, read_cell, require_whole
from sextant.points.frame import GRAPHS, graphs_of
from sextant.points.metrics import REQUEST_COLUMNS, interval_rows, points_query
from sextant.points.run import CELL_KEY
from sextant.points.store import connect

ENERGY_SQL = Path(__file__).with_name("energy.sql")  # creates `device_telemetry` and `energy`
_CELLS_AT_ONCE = 100  # 100 MiB for 100,000 requests of 64 tokens
_TEXT = pa.string()
_FLOAT = pa.float64()
_COUNT = pa.int64()
_Columns = dict[str, tuple[pa.DataType, Callable[..., Any]]]  # type, and value of an item


def _precision(cell: MeasuredCell) -> str | None:
    """Return the weights' precision, None where it is what the LLM's configuration says."""
    is_quantized = ((cell.run.origin.definition or {}).get("llm") or {}).get("weight_bits")
    dtype = cell.run.server and cell.run.server.precision
    return None if is_quantized else DTYPE_PRECISION.get(dtype or "")


def _has_graphs(cell: MeasuredCell) -> bool | None:
    settings = (cell.run.origin.definition or {}).get("engine") or {}
    return graphs_of(settings.get("extra_arguments", ()))


_KEY: _Columns = {
    "source": (_TEXT, attrgetter("run.source")),
    **{name: (_TEXT, attrgetter(f"run.key.{name}")) for name in CELL_KEY if name != "source"},
}
_OF_POINTS: _Columns = {
    "scenario_kind": (_TEXT, attrgetter("run.scenario_kind")),
    "replicas": (pa.int32(), attrgetter("run.variant.replicas")),
    "engine": (_TEXT, lambda cell: cell.run.server and cell.run.server.engine),
    "precision": (_TEXT, _precision),
    GRAPHS: (pa.bool_(), _has_graphs),
    "measured_on": (_TEXT, attrgetter("run.measured_on")),
}
"""Columns that all points of a cell share."""
_CELLS: _Columns = {"folder": (_TEXT, lambda cell: str(cell.folder))} | _KEY | _OF_POINTS
_LEVELS: _Columns = {
    "level": (_FLOAT, lambda level, _: level.level),
    "started_s": (_FLOAT, lambda level, _: level.started_s),
    "duration_s": (_FLOAT, lambda level, _: level.duration_s),
    "batch_weight_tokens": (_COUNT, lambda _, run: run.batch_weight_tokens),
    "client_lag_p99_ms": (_FLOAT, lambda level, _: level.client.client_lag_ms.p99),
    "client_lag_max_ms": (_FLOAT, lambda level, _: level.client.client_lag_ms.max),
    "send_lag_p99_ms": (_FLOAT, lambda level, _: level.client.send_lag_ms.p99),
    "server_mean_itl_ms": (_FLOAT, lambda level, _: level.server_report.server_mean_itl_ms),
    "server_accepted_length": (_FLOAT, lambda level, _: level.server_report.server_accepted_length),
    "n_other_processes": (_COUNT, lambda level, _: level.server_report.n_other_processes),
    "engine_version": (
        _TEXT,
        lambda level, run: level.conditions.engine_version or run.engine_version,
    ),
    "is_published_median": (pa.bool_(), lambda level, _: level.published_medians is not None),
    "median_nttft_ms": (
        _FLOAT,
        lambda it, _: getattr(it.published_medians, "median_nttft_ms", None),
    ),
    "median_itl_ms": (_FLOAT, lambda it, _: getattr(it.published_medians, "median_itl_ms", None)),
}
_FEASIBILITY: _Columns = _KEY | {
    "is_feasible": (pa.bool_(), attrgetter("run.verdict.is_feasible")),
    "verdict": (_TEXT, attrgetter("run.verdict.outcome.value")),
    "reason": (_TEXT, attrgetter("run.verdict.reason")),
    "levels_left_out": (_TEXT, lambda cell: cell.run.left_out and str(cell.run.left_out)),
    **{
        name: (_FLOAT, lambda cell, name=name: getattr(cell.tuning.memory, name, None))
        for name in ("memory_utilization", "weight_gib", "kv_gib")
    },
    "batch_weight_tokens": (_COUNT, attrgetter("run.batch_weight_tokens")),
    # Null where a published characterization does not say.
    "n_server_starts": (
        pa.int32(),
        lambda cell: None if cell.tuning.probes is None else len(cell.tuning.probes),
    ),
}


def _table(columns: _Columns, items: Iterable[tuple[int, tuple[Any, ...]]]) -> pa.Table:
    """Return one row per item, with its number as `cell`."""
    types = {name: kind for name, (kind, _) in columns.items()}
    rows = [
        {"cell": number} | {name: value_of(*item) for name, (_, value_of) in columns.items()}
        for number, item in items
    ]
    return pa.Table.from_pylist(rows, schema=pa.schema({"cell": _COUNT} | types))


_VIEWS = {
    "requests": f"{', '.join(REQUEST_COLUMNS)}, {START_SQL} AS start_s",
    "telemetry": "f.* EXCLUDE (filename)",
}
"""Columns that are read from a cell's Parquet files."""


def aggregate_points(
    cells: Sequence[Path],
    point_out: Path,
    feasibility_out: Path,
    telemetry_out: Path,
    *,
    levels: Sequence[Sequence[float]] | None = None,
) -> None:
    """Write the tables `point`, `feasibility` and `telemetry` of cells.

    They have one row per cell and level, per cell, and per cell, level and device. `levels` are
    those of each cell that are asked for, by default all that were measured. InputError: there is
    no cell, or a cell is damaged (`require_whole`).
    """
    if not cells:
        fix = "let `sextant measure` choose cells of the adaptive rows of benchmarks.tsv"
        raise InputError("no cell is measured", fix=fix)
    require_whole(cells)
    measured = [read_cell(folder) for folder in cells]
    if levels is not None:
        measured = [_at_levels(*both) for both in zip(measured, levels, strict=True)]
    runs = [cell.run for cell in measured]
    facts: dict[str, set[str | None]] = {
        "hosts": {run.origin.host.processor for run in runs if run.origin.host},
        "engine_versions": {run.engine_version for run in runs},
        "measured_at": {run.origin.started_at.isoformat() for run in runs if run.origin.started_at},
    }
    origin = provenance(
        {str(folder): folder / "run.json" for folder in cells},
        **{name: sorted(filter(None, values)) for name, values in facts.items()},
    )
    files = (point_out, feasibility_out, telemetry_out)
    for file, table in zip(files, summarize_cells(measured), strict=True):
        write_parquet(file, table, origin)


def _at_levels(cell: MeasuredCell, asked_levels: Sequence[float]) -> MeasuredCell:
    """Return a cell with the levels that are asked for; a burst's phases belong together."""
    if cell.run.scenario_kind == Burst.kind:
        return cell
    levels = tuple(level for level in cell.run.levels if level.level in asked_levels)
    return replace(cell, run=replace(cell.run, levels=levels))


def summarize_cells(cells: Sequence[MeasuredCell]) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return the rows of the tables `point`, `feasibility` and `telemetry`, sorted."""
    parts = [
        _point_rows(cells[start : start + _CELLS_AT_ONCE])
        for start in range(0, len(cells), _CELLS_AT_ONCE)
    ]
    points, telemetry = (
        connect().from_arrow(pa.concat_tables(tables)).order("ALL").to_arrow_table()
        for tables in zip(*parts, strict=True)
    )
    ordered = sorted(cells, key=lambda cell: cell.run.ids)
    feasibility = _table(_FEASIBILITY, ((n, (cell,)) for n, cell in enumerate(ordered)))
    return points, feasibility.drop_columns("cell"), telemetry


def _point_rows(cells: Sequence[MeasuredCell]) -> tuple[pa.Table, pa.Table]:
    """Return the rows of the tables `point` and `telemetry`, in no order."""
    database = connect()
    levels = [
        (number, (level, cell.run))
        for number, cell in enumerate(cells)
        for level in cell.run.levels
        if not level.n_unfinished  # the last one, of a load that was interrupted
    ]
    database.register("cells", _table(_CELLS, ((n, (cell,)) for n, cell in enumerate(cells))))
    database.register("levels", _table(_LEVELS, levels))
    for name, columns in _VIEWS.items():
        files = [str(cell.folder / f"{name}.parquet") for cell in cells]
        # The folder of a file shows which cell it belongs to.
        database.execute(
            f"""CREATE TEMP TABLE all_{name} AS SELECT c.cell, {columns}
            FROM read_parquet($files, filename = true, hive_partitioning = false) AS f
            JOIN cells AS c ON f.filename = c.folder || '/{name}.parquet'""",
            {"files": files},
        )
    database.execute(ENERGY_SQL.read_text(encoding="utf-8"))
    database.register("intervals", interval_rows(database, "all_requests"))
    points = database.sql(
        f"""SELECT c.* EXCLUDE (cell, folder), p.level,
            CASE WHEN c.{WITH_USERS_SQL} THEN p.level::INTEGER END AS users,
            p.* EXCLUDE (cell, level) REPLACE (
                -- Of a published median the requests are unknown, not none.
                CASE WHEN NOT l.is_published_median THEN p.n_ok END AS n_ok,
                CASE WHEN NOT l.is_published_median THEN p.n_failed END AS n_failed,
                coalesce(l.median_nttft_ms, p.median_nttft_ms) AS median_nttft_ms,
                coalesce(l.median_itl_ms, p.median_itl_ms) AS median_itl_ms),
            i.* EXCLUDE (cell, level),
            l.engine_version, l.is_published_median, l.batch_weight_tokens,
            e.* EXCLUDE (cell, level), energy_j / nullif(n_ok, 0) AS energy_per_request_j,
            energy_j / nullif(n_ok * mean_output_tokens, 0) AS energy_per_output_token_j,
            l.client_lag_p99_ms, l.client_lag_max_ms, l.send_lag_p99_ms, l.server_mean_itl_ms,
            l.server_accepted_length, l.n_other_processes
        FROM ({points_query("all_requests", "levels")}) AS p
        JOIN cells AS c USING (cell) JOIN levels AS l USING (cell, level)
        LEFT JOIN intervals AS i USING (cell, level)
        LEFT JOIN energy AS e USING (cell, level)"""
    ).to_arrow_table()
    telemetry = database.sql(
        f"""SELECT c.* EXCLUDE (cell, folder, {", ".join(_OF_POINTS)}), t.* EXCLUDE (cell)
        FROM device_telemetry AS t JOIN cells AS c USING (cell)"""
    ).to_arrow_table()
    return points, telemetry
