"""From the files of the benchmark stage to points, and from all files to one database."""

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from sextant.base.errors import InputError
from sextant.base.files import (
    MAKE_TRACE_AGAIN,
    MAKE_WORKLOAD_AGAIN,
    atomic_path,
    provenance,
    read_json,
    read_parquet,
    read_provenance,
    write_parquet,
)
from sextant.cells.integrity import require_whole
from sextant.cells.metrics import REQUEST_COLUMNS, START_SQL, points_query
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM
from sextant.store.energy import (
    ENERGY_PER_OUTPUT_TOKEN_SQL,
    ENERGY_PER_REQUEST_SQL,
    device_query,
    point_query,
)

SCHEMA_SQL = Path(__file__).parents[3] / "resources" / "sql" / "schema.sql"
_CELLS_AT_ONCE = 100
"""Their requests are in memory together: about 100 MiB for 100,000 requests of 64 tokens."""
_KEY = ("source", "llm_id", "gpu_profile_id", "workload_id", "scenario_id", "variant_id")
_BUILD_AGAIN = (
    "build it again: delete it and run the pipeline, which makes it from the Parquet files and "
    "measures nothing"
)
_WAIT = "end the process that holds the store, or wait until it is done"
_MEMORY = ("memory_utilization", "weight_gib", "kv_gib")


def connect(path: str | Path = ":memory:", *, read_only: bool = False):
    """Open DuckDB in UTC, so that the same files give the same database anywhere.

    A store that is only read may be anybody's: views in it reach no file and no network.
    """
    config = {"enable_external_access": not read_only}
    connection = duckdb.connect(str(path), read_only=read_only, config=config)
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@contextlib.contextmanager
def open_store(path: str | Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database of `build_store` for reading.

    Raises:
        InputError: there is none, another process holds it, it is damaged, of another version, or
            holds more than tables (`_require_tables`).
    """
    if not Path(path).is_file():
        fix = (
            "run the pipeline first (`make demo`; for an archive `make reproduce-llm-pilot`), "
            "or give --database"
        )
        raise InputError("there is no store here", file=path, fix=fix)
    try:
        with connect(path, read_only=True) as store:
            _require_tables(store, path)
            yield store
    except duckdb.Error as error:
        problem = f"the store cannot be read ({' '.join(str(error).split())[:300]})"
        fix = _WAIT if "set lock on file" in str(error) else _BUILD_AGAIN
        raise InputError(problem, file=path, fix=fix) from None


# Nothing but system functions: a macro of the store may have the name of any other.
_CATALOG = (
    ("view", "SELECT view_name, internal FROM system.main.duckdb_views()"),
    ("macro", "SELECT function_name, internal FROM system.main.duckdb_functions()"),
)
_TABLES = "SELECT table_name, estimated_size, sql FROM system.main.duckdb_tables()"
_MAX_ROWS = 10_000_000


def _require_tables(store: duckdb.DuckDBPyConnection, path: str | Path) -> None:
    """Refuse a store whose reading could run a stranger's SQL or never end."""
    found = [
        f"the {kind} {name!r}"
        for kind, query in _CATALOG
        for name, is_internal in store.execute(query).fetchall()
        if not is_internal
    ]
    for name, n_rows, sql in store.execute(_TABLES).fetchall():
        found += [f"the computed column of {name!r}"] * (" GENERATED ALWAYS AS" in sql.upper())
        found += [f"{n_rows:,} rows in {name!r}"] * (n_rows > _MAX_ROWS)
    if found:
        problem = f"not a store of this project: it has {found[0]}"
        raise InputError(problem, file=path, fix="build the store again from the Parquet files")


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
        InputError: cells are damaged; their files have been set aside (see `require_whole`).
    """
    require_whole(cells)
    runs = [read_json(folder / "run.json") for folder in cells]
    tunings = [read_json(folder / "tuning.json") for folder in cells]
    parts = [
        _point_rows(cells[start : start + _CELLS_AT_ONCE], runs[start : start + _CELLS_AT_ONCE])
        for start in range(0, len(cells), _CELLS_AT_ONCE)
    ]
    points, telemetry = (_in_order(tables) for tables in zip(*parts, strict=True))
    origin = provenance(
        {str(folder): folder / "run.json" for folder in cells},
        hosts=_distinct((run["host"] or {}).get("processor") for run in runs),
        engine_versions=_distinct((run["server"] or {}).get("version") for run in runs),
        measured_at=_distinct(run["started_at"] for run in runs),
        # In what cells that were imported differ from those that were here.
        mixed=_distinct(it for run in runs for it in run.get("imported", {}).get("mixed", ())),
    )
    write_parquet(point_out, points, origin)
    write_parquet(telemetry_out, telemetry, origin)
    write_parquet(feasibility_out, _feasibility(runs, tunings), origin)


def _point_rows(cells: Sequence[Path], runs: Sequence[Mapping]) -> tuple[pa.Table, pa.Table]:
    """Return the rows of the tables `point` and `telemetry`, in no order."""
    database = connect()
    _register_cells(database, cells, runs)
    points = database.sql(
        f"""SELECT c.* EXCLUDE (cell, folder), p.level,
            CASE WHEN c.scenario_kind = 'closed_loop' THEN p.level::INTEGER END AS users,
            p.* EXCLUDE (cell, level) REPLACE (
                -- Of a published median the requests are unknown, not none.
                CASE WHEN NOT l.is_published_median THEN p.n_ok END AS n_ok,
                CASE WHEN NOT l.is_published_median THEN p.n_failed END AS n_failed,
                coalesce(l.median_nttft_ms, p.median_nttft_ms) AS median_nttft_ms,
                coalesce(l.median_itl_ms, p.median_itl_ms) AS median_itl_ms),
            l.is_published_median, l.batch_weight_tokens,
            e.* EXCLUDE (cell, level), {ENERGY_PER_REQUEST_SQL} AS energy_per_request_j,
            {ENERGY_PER_OUTPUT_TOKEN_SQL} AS energy_per_output_token_j,
            l.client_lag_p99_ms, l.client_lag_max_ms, l.send_lag_p99_ms, l.server_mean_itl_ms
        FROM ({points_query("all_requests", "levels")}) AS p
        JOIN cells AS c USING (cell) JOIN levels AS l USING (cell, level)
        LEFT JOIN energy AS e USING (cell, level)"""
    ).to_arrow_table()
    telemetry = database.sql(
        """SELECT c.* EXCLUDE (cell, folder, scenario_kind, replicas), t.* EXCLUDE (cell)
        FROM device_telemetry AS t JOIN cells AS c USING (cell)"""
    ).to_arrow_table()
    return points, telemetry


def _in_order(tables: Sequence[pa.Table]) -> pa.Table:
    rows = pa.concat_tables(tables)
    return connect().from_arrow(rows).order("ALL").to_arrow_table()


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value is not None})


def _register_cells(
    database: duckdb.DuckDBPyConnection, cells: Sequence[Path], runs: Sequence[Mapping]
) -> None:
    """Create the tables `cells, levels, all_requests, device_telemetry, energy`.

    `cell` is a number.
    """
    database.register(
        "cells",
        _table(
            [
                {
                    "cell": number,
                    "folder": str(folder),
                    **{name: run[name] for name in _KEY},
                    "scenario_kind": run["scenario"]["kind"],
                    "replicas": run["variant"]["replicas"],
                }
                for number, (folder, run) in enumerate(zip(cells, runs, strict=True))
            ],
            {
                "cell": pa.int64(),
                "folder": pa.string(),
                **dict.fromkeys(_KEY, pa.string()),
                "scenario_kind": pa.string(),
                "replicas": pa.int32(),
            },
        ),
    )
    database.register(
        "levels",
        _table(
            [
                {
                    "cell": number,
                    "level": float(level["level"]),
                    "started_s": level["started_s"],
                    "duration_s": level["duration_s"],
                    "batch_weight_tokens": run["batch_weight_tokens"],
                    "client_lag_p99_ms": level["client_lag_ms"]["p99"],
                    "client_lag_max_ms": level["client_lag_ms"]["max"],
                    "send_lag_p99_ms": level["send_lag_ms"]["p99"],
                    "server_mean_itl_ms": level["server_mean_itl_ms"],
                    "is_published_median": "published_medians" in level,
                    **level.get("published_medians", {}),
                }
                for number, run in enumerate(runs)
                for level in run["levels"]
            ],
            {
                "cell": pa.int64(),
                "level": pa.float64(),
                "started_s": pa.float64(),
                "duration_s": pa.float64(),
                "batch_weight_tokens": pa.int64(),
                "client_lag_p99_ms": pa.float64(),
                "client_lag_max_ms": pa.float64(),
                "send_lag_p99_ms": pa.float64(),
                "server_mean_itl_ms": pa.float64(),
                "is_published_median": pa.bool_(),
                "median_nttft_ms": pa.float64(),
                "median_itl_ms": pa.float64(),
            },
        ),
    )
    for view, name, columns in (
        (
            "all_requests",
            "requests.parquet",
            f"{', '.join(REQUEST_COLUMNS)}, {START_SQL} AS start_s",
        ),
        ("all_telemetry", "telemetry.parquet", "f.* EXCLUDE (filename)"),
    ):
        files = [str(folder / name) for folder in cells]
        # Each file's folder tells which cell it belongs to.
        database.execute(
            f"""CREATE TEMP TABLE {view} AS SELECT c.cell, {columns}
            FROM read_parquet($files, filename = true, hive_partitioning = false) AS f
            JOIN cells AS c ON f.filename = c.folder || '/{name}'""",
            {"files": files},
        )
    # Tables: each is read more than once.
    devices = device_query("all_telemetry", "levels")
    database.execute(f"CREATE TEMP TABLE device_telemetry AS {devices}")
    energy = point_query("device_telemetry", "all_telemetry", "levels")
    database.execute(f"CREATE TEMP TABLE energy AS {energy}")


def _feasibility(runs: Sequence[Mapping], tunings: Sequence[Mapping]) -> pa.Table:
    rows = [
        {
            **{name: run[name] for name in _KEY},
            "is_feasible": run["is_feasible"],
            "reason": run["reason"],
            "levels_left_out": _left_out(run),
            **{name: tuning["memory"][name] for name in _MEMORY},
            "batch_weight_tokens": tuning["batch_weight_tokens"],
            # Null where a published characterization does not tell.
            "n_server_starts": None if tuning["probes"] is None else len(tuning["probes"]),
        }
        for run, tuning in zip(runs, tunings, strict=True)
    ]
    types = {
        **dict.fromkeys(_KEY, pa.string()),
        "is_feasible": pa.bool_(),
        "reason": pa.string(),
        "levels_left_out": pa.string(),
        **dict.fromkeys(_MEMORY, pa.float64()),
        "batch_weight_tokens": pa.int64(),
        "n_server_starts": pa.int32(),
    }
    return _table(sorted(rows, key=lambda row: [row[name] for name in _KEY]), types)


def _left_out(run: Mapping) -> str | None:
    """Return which levels were not measured although the cell is feasible, and why."""
    entries = run.get("left_out")
    levels = ", ".join(f"{float(entry['level']):g}" for entry in entries or ())
    return f"{levels}: {entries[0]['reason']}" if entries else None


def _table(rows: list[dict], types: Mapping[str, pa.DataType]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=pa.schema(list(types.items())))


def llm_rows(llms: Mapping[str, LLM]) -> list[dict]:
    """Return the rows of table `llm`."""
    return [
        {
            "llm_id": llm_id,
            **asdict(llm),
            "attention": llm.attention,
            "weight_bytes": llm.weight_bytes,
            "kv_bytes_per_token": llm.kv_bytes_per_token,
        }
        for llm_id, llm in llms.items()
    ]


def gpu_rows(profiles: Mapping[str, GPUProfile]) -> list[dict]:
    """Return the rows of table `gpu`, one a device type."""
    return list({p.gpu.gpu_id: asdict(p.gpu) for p in profiles.values()}.values())


def gpu_profile_rows(profiles: Mapping[str, GPUProfile]) -> list[dict]:
    """Return the rows of table `gpu_profile`."""
    return [
        {
            "gpu_profile_id": p.gpu_profile_id,
            "gpu_id": p.gpu.gpu_id,
            "n_gpus": p.n_gpus,
            "usd_per_hour": p.usd_per_hour,
        }
        for p in profiles.values()
    ]


def trace_rows(reports: Mapping[str, Path]) -> list[dict]:
    """Return the rows of table `trace` from the reports of ingest, by trace."""
    return [
        {"trace_id": name, **_read_facts(path, MAKE_TRACE_AGAIN)} for name, path in reports.items()
    ]


def workload_rows(workloads: Mapping[str, Mapping], validations: Mapping[str, Path]) -> list[dict]:
    """Return the rows of table `workload` from its sheet and each workload's validation."""
    rows = []
    for workload_id, row in workloads.items():
        validation = _read_facts(validations[workload_id], MAKE_WORKLOAD_AGAIN)
        distances = {f"ks_{name}": value for name, value in validation.get("ks", {}).items()}
        rows.append({**row, **validation, **distances})
    return rows


def _read_facts(path: Path, fix: str) -> dict[str, Any]:
    facts = read_json(path, fix=fix)
    if not isinstance(facts, dict):
        raise InputError("is no JSON object", file=path, fix=fix)
    return facts


def build_store(
    path: Path, rows: Mapping[str, Sequence[Mapping]], files: Mapping[str, Sequence[Path]]
) -> None:
    """Build the database from rows and Parquet files, by table; replaces `path` atomically.

    Columns are matched by name: what the table lacks is left out, what the rows lack is null.

    Raises:
        InputError: a file has rows that break the table's key, e.g. the same point twice.
    """
    with atomic_path(path) as temporary, connect(temporary) as database:
        database.execute(SCHEMA_SQL.read_text(encoding="utf-8"))
        for table, table_rows in rows.items():
            _insert_rows(database, table, table_rows)
        for table, table_files in files.items():
            for file in table_files:
                _insert_file(database, table, file)
        measured = {
            name: value
            for file in files.get("point", ())
            for name, value in read_provenance(file).items()
            if name in ("hosts", "engine_versions", "measured_at", "mixed")
        }
        inputs = {
            f"{table}/{Path(file).parent.name}": file
            for table, table_files in files.items()
            for file in table_files
        }
        facts = provenance(inputs, **measured)
        _insert_rows(
            database,
            "provenance",
            [{"key": key, "value": json.dumps(value)} for key, value in facts.items()],
        )


def _columns(database: duckdb.DuckDBPyConnection, table: str) -> list[str]:
    found = database.execute(f"SELECT column_name FROM (DESCRIBE {table})").fetchall()
    return [name for (name,) in found]


def _insert_rows(database: duckdb.DuckDBPyConnection, table: str, rows: Sequence[Mapping]) -> None:
    columns = _columns(database, table)
    marks = ", ".join("?" * len(columns))
    values = [[row.get(column) for column in columns] for row in rows]
    if values:
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)


def _insert_file(database: duckdb.DuckDBPyConnection, table: str, file: Path) -> None:
    rows, known = read_parquet(file), _columns(database, table)
    shared = ", ".join(name for name in rows.column_names if name in known)
    try:
        database.execute(f"INSERT INTO {table} BY NAME SELECT {shared} FROM rows")
    except duckdb.ConstraintException as error:
        problem = f"rows of table {table} stand twice ({str(error).splitlines()[0]})"
        raise InputError(problem, file=file, fix="remove one of the two results") from None
