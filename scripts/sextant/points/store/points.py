"""From measured cells to the rows of the tables `point`, `feasibility` and `telemetry`."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from sextant.base.errors import InputError
from sextant.base.files import provenance, write_parquet
from sextant.experiment.scenarios import WITH_USERS_SQL
from sextant.facts.llm.facts import DTYPE_PRECISION
from sextant.points.cells.files import MeasuredCell, read_cell
from sextant.points.cells.integrity import require_whole
from sextant.points.cells.intervals import interval_rows
from sextant.points.cells.metrics import REQUEST_COLUMNS, START_SQL, points_query
from sextant.points.cells.run import CELL_KEY, CellRun, LevelRun
from sextant.points.store.connection import connect
from sextant.points.store.energy import (
    ENERGY_PER_OUTPUT_TOKEN_SQL,
    ENERGY_PER_REQUEST_SQL,
    device_query,
    point_query,
)

_CELLS_AT_ONCE = 100
"""Their requests are in memory together: about 100 MiB for 100,000 requests of 64 tokens."""
_TEXT, _FLOAT, _COUNT = pa.string(), pa.float64(), pa.int64()
_KEY_TYPES = dict.fromkeys(CELL_KEY, _TEXT)
_CELL_TYPES = {
    "cell": _COUNT,
    "folder": _TEXT,
    **_KEY_TYPES,
    "scenario_kind": _TEXT,
    "replicas": pa.int32(),
    "engine": _TEXT,
    "precision": _TEXT,
    "measured_on": _TEXT,
}
_OF_POINTS = [name for name in _CELL_TYPES if name not in ("cell", "folder", *CELL_KEY)]
_LEVEL_TYPES = {
    "cell": _COUNT,
    "level": _FLOAT,
    "started_s": _FLOAT,
    "duration_s": _FLOAT,
    "batch_weight_tokens": _COUNT,
    "client_lag_p99_ms": _FLOAT,
    "client_lag_max_ms": _FLOAT,
    "send_lag_p99_ms": _FLOAT,
    "server_mean_itl_ms": _FLOAT,
    "engine_version": _TEXT,
    "is_published_median": pa.bool_(),
    "median_nttft_ms": _FLOAT,
    "median_itl_ms": _FLOAT,
}
_FEASIBILITY_TYPES = {
    **_KEY_TYPES,
    "is_feasible": pa.bool_(),
    "verdict": _TEXT,
    "reason": _TEXT,
    "levels_left_out": _TEXT,
    "memory_utilization": _FLOAT,
    "weight_gib": _FLOAT,
    "kv_gib": _FLOAT,
    "batch_weight_tokens": _COUNT,
    "n_server_starts": pa.int32(),
}
_VIEWS = {
    "requests": f"{', '.join(REQUEST_COLUMNS)}, {START_SQL} AS start_s",
    "telemetry": "f.* EXCLUDE (filename)",
}
"""What is read of a cell's Parquet files."""


def aggregate_points(
    cells: Sequence[Path], point_out: Path, feasibility_out: Path, telemetry_out: Path
) -> None:
    """Summarise cells to one row a point, and say which cells are feasible.

    Args:
        cells: folders of measured cells, each with `run.json`, `tuning.json` and the
            Parquet files of the benchmark contract.
        point_out: one row a cell and level (table `point`).
        feasibility_out: one row a cell (table `feasibility`).
        telemetry_out: one row a cell, level and device (table `telemetry`).

    Raises:
        InputError: cells are damaged; their files have been set aside (see `require_whole`). Or
            there are none.
    """
    if not cells:
        fix = "let `sextant measure` choose cells of the adaptive rows of benchmarks.tsv"
        raise InputError("no cell is measured", fix=fix)
    require_whole(cells)
    measured = [read_cell(folder) for folder in cells]
    runs = [cell.run for cell in measured]
    parts = [
        _point_rows(measured[start : start + _CELLS_AT_ONCE])
        for start in range(0, len(measured), _CELLS_AT_ONCE)
    ]
    points, telemetry = (_in_order(tables) for tables in zip(*parts, strict=True))
    origin = provenance(
        {str(folder): folder / "run.json" for folder in cells},
        hosts=_distinct(run.processor for run in runs),
        engine_versions=_distinct(run.engine_version for run in runs),
        measured_at=_distinct(run.started_at.isoformat() for run in runs if run.started_at),
        # In what cells that were imported differ from those that were here.
        mixed=_distinct(it for run in runs if run.imported for it in run.imported.mixed),
    )
    feasibility = [_feasibility_row(cell) for cell in sorted(measured, key=lambda cell: cell.key)]
    write_parquet(point_out, points, origin)
    write_parquet(telemetry_out, telemetry, origin)
    write_parquet(feasibility_out, _table(feasibility, _FEASIBILITY_TYPES), origin)


def _point_rows(cells: Sequence[MeasuredCell]) -> tuple[pa.Table, pa.Table]:
    """Return the rows of the tables `point` and `telemetry`, in no order."""
    database = connect()
    _register_cells(database, cells)
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
            e.* EXCLUDE (cell, level), {ENERGY_PER_REQUEST_SQL} AS energy_per_request_j,
            {ENERGY_PER_OUTPUT_TOKEN_SQL} AS energy_per_output_token_j,
            l.client_lag_p99_ms, l.client_lag_max_ms, l.send_lag_p99_ms, l.server_mean_itl_ms
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


def _in_order(tables: Sequence[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(tables)
    return connect().from_arrow(rows).order("ALL").to_arrow_table()


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value is not None})


def _register_cells(database: duckdb.DuckDBPyConnection, cells: Sequence[MeasuredCell]) -> None:
    """Create the tables `cells, levels, all_requests, device_telemetry, energy`.

    `cell` is a number.
    """
    rows = [
        {
            "cell": number,
            "folder": str(cell.folder),
            **_key_row(cell),
            "scenario_kind": cell.run.scenario_kind,
            "replicas": cell.run.variant.replicas,
            "engine": cell.run.server and cell.run.server.engine,
            "precision": _precision(cell.run),
            "measured_on": cell.run.started_at and f"{cell.run.started_at:%Y-%m-%d}",
        }
        for number, cell in enumerate(cells)
    ]
    levels = [
        {"cell": number, **_level_row(cell.run, level)}
        for number, cell in enumerate(cells)
        for level in cell.run.levels
        if not level.n_unfinished  # the last one, of a load that was interrupted
    ]
    database.register("cells", _table(rows, _CELL_TYPES))
    database.register("levels", _table(levels, _LEVEL_TYPES))
    for name, columns in _VIEWS.items():
        files = [str(cell.folder / f"{name}.parquet") for cell in cells]
        # Each file's folder tells which cell it belongs to.
        database.execute(
            f"""CREATE TEMP TABLE all_{name} AS SELECT c.cell, {columns}
            FROM read_parquet($files, filename = true, hive_partitioning = false) AS f
            JOIN cells AS c ON f.filename = c.folder || '/{name}.parquet'""",
            {"files": files},
        )
    # Tables: each is read more than once.
    devices = device_query("all_telemetry", "levels")
    database.execute(f"CREATE TEMP TABLE device_telemetry AS {devices}")
    energy = point_query("device_telemetry", "all_telemetry", "levels")
    database.execute(f"CREATE TEMP TABLE energy AS {energy}")


def _key_row(cell: MeasuredCell) -> dict[str, Any]:
    return dict(zip(CELL_KEY, cell.key, strict=True))


def _precision(run: CellRun) -> str | None:
    """Return the precision of the weights; None where it is what the LLM's configuration says."""
    llm = (run.definition or {}).get("llm") or {}
    dtype = run.server and run.server.precision
    return None if llm.get("weight_bits") else DTYPE_PRECISION.get(dtype or "")


def _level_row(run: CellRun, level: LevelRun) -> dict[str, Any]:
    published = level.published_medians
    return {
        "level": level.level,
        "started_s": level.started_s,
        "duration_s": level.duration_s,
        "batch_weight_tokens": run.batch_weight_tokens,
        "client_lag_p99_ms": level.client_lag_ms.p99,
        "client_lag_max_ms": level.client_lag_ms.max,
        "send_lag_p99_ms": level.send_lag_ms.p99,
        "server_mean_itl_ms": level.server_mean_itl_ms,
        "engine_version": level.engine_version or run.engine_version,
        "is_published_median": published is not None,
        "median_nttft_ms": published and published.median_nttft_ms,
        "median_itl_ms": published and published.median_itl_ms,
    }


def _feasibility_row(cell: MeasuredCell) -> dict[str, Any]:
    run, tuning, memory = cell.run, cell.tuning, cell.tuning.memory
    return _key_row(cell) | {
        "is_feasible": run.verdict.is_feasible,
        "verdict": run.verdict.outcome.value,
        "reason": run.verdict.reason,
        "levels_left_out": run.left_out and str(run.left_out),
        "memory_utilization": memory and memory.memory_utilization,
        "weight_gib": memory and memory.weight_gib,
        "kv_gib": memory and memory.kv_gib,
        "batch_weight_tokens": run.batch_weight_tokens,
        # Null where a published characterization does not tell.
        "n_server_starts": None if tuning.probes is None else len(tuning.probes),
    }


def _table(rows: list[dict], types: Mapping[str, pa.DataType]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema(list(types.items())))
