"""The store: one DuckDB database of all results, built from the files of all stages."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sextant.base import files as base_files
from sextant.base.errors import InputError
from sextant.base.files import MAKE_WORKLOAD_AGAIN, read_object
from sextant.base.resources import resource
from sextant.base.whole_files import atomic_path
from sextant.facts.gpu import GPUProfile, profile_row
from sextant.facts.llm import LLM

if TYPE_CHECKING:  # its import takes longer than reading a folder of points
    import duckdb

SCHEMA_SQL = resource("sql/schema.sql")
_BUILD_AGAIN = (
    "build it again: delete it and run the pipeline, which makes it from the Parquet files and "
    "measures nothing"
)


def connect(
    path: str | Path = ":memory:", *, read_only: bool = False
) -> "duckdb.DuckDBPyConnection":
    """Open DuckDB in UTC; a read-only store has no access to files and the network."""
    import duckdb

    access = not read_only
    connection = duckdb.connect(str(path), read_only, {"enable_external_access": access})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _is_duckdb(path: Path) -> bool:
    """Return whether a file begins as those of DuckDB do; an empty one is a damaged store."""
    with path.open("rb") as file:
        head = file.read(12)
    return not head or head[8:] == b"DUCK"


@contextlib.contextmanager
def open_store(path: str | Path) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Open a store for reading; InputError: none, held, damaged, or no store of this version."""
    import duckdb

    if Path(path).is_dir():
        fix = "give the file of a store, e.g. results/sextant.duckdb"
        raise InputError("a folder is no store", file=path, field="--database", fix=fix)
    if not Path(path).is_file():
        fix = "run the pipeline first (`make demo`; for an archive `make reproduce-llm-pilot`), "
        raise InputError("there is no store here", file=path, fix=fix + "or give --database")
    if not _is_duckdb(Path(path)):
        fix = "give the store of a pipeline, e.g. results/sextant.duckdb, or a folder of what "
        fix += "`sextant load` has written; points of other tools are a --source"
        raise InputError("it is no store", file=path, field="--database", fix=fix)
    try:
        with connect(path, read_only=True) as store:
            _require_tables(store, path)
            with connect() as fresh:
                fresh.execute(SCHEMA_SQL.read_text(encoding="utf-8"))
                wanted = fresh.execute(_COLUMNS).fetchall()
            if missing := set(wanted) - set(store.execute(_COLUMNS).fetchall()):
                lacking = "table {} has no column {}".format(*min(missing))
                problem = f"built by another version of sextant: {lacking}"
                raise InputError(problem, file=path, fix=_BUILD_AGAIN)
            yield store
    except duckdb.Error as error:
        problem = f"the store cannot be read ({' '.join(str(error).split())[:300]})"
        is_held = "set lock on file" in str(error)
        wait = "end the process that holds the store, or wait until it is done"
        fix = wait if is_held else _BUILD_AGAIN
        raise InputError(problem, file=path, fix=fix) from None


# System functions by their full names: a macro of the store may have the name of any function.
_CATALOG = (
    ("view", "SELECT view_name, internal FROM system.main.duckdb_views()"),
    ("macro", "SELECT function_name, internal FROM system.main.duckdb_functions()"),
)
_TABLES = "SELECT table_name, estimated_size, sql FROM system.main.duckdb_tables()"
_COLUMNS = "SELECT table_name, column_name FROM system.main.duckdb_columns() WHERE NOT internal"
_MAX_ROWS = 10_000_000


def _require_tables(store: "duckdb.DuckDBPyConnection", path: str | Path) -> None:
    """Refuse a store that could run a stranger's SQL when it is read, or that is too large."""
    problems = []
    for kind, query in _CATALOG:
        names = [name for name, is_internal in store.execute(query).fetchall() if not is_internal]
        problems += [f"the {kind} {name!r}" for name in names]
    for name, n_rows, sql in store.execute(_TABLES).fetchall():
        problems += [f"the computed column of {name!r}"] * (" GENERATED ALWAYS AS" in sql.upper())
        problems += [f"{n_rows:,} rows in {name!r}"] * (n_rows > _MAX_ROWS)
    if problems:
        problem = f"not a store of this project: it has {problems[0]}"
        raise InputError(problem, file=path, fix="build the store again from the Parquet files")


def store_fact_rows(
    llms: Mapping[str, LLM], profiles: Mapping[str, GPUProfile]
) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of the tables `llm`, `gpu` and `gpu_profile`."""
    computed = ("attention", "weight_bytes", "kv_bytes_per_token")
    gpus = {profile.gpu.gpu_id: asdict(profile.gpu) for profile in profiles.values()}
    return {
        "llm": [
            {"llm_id": llm_id, **asdict(llm), **{name: getattr(llm, name) for name in computed}}
            for llm_id, llm in llms.items()
        ],
        "gpu": list(gpus.values()),
        "gpu_profile": [profile_row(profile) for profile in profiles.values()],
    }


def workload_rows(
    workloads: Mapping[str, Mapping[str, Any]], validations: Mapping[str, Path]
) -> list[dict[str, Any]]:
    """Return the rows of table `workload` from its sheet and each workload's validation."""
    rows = []
    for workload_id, row in workloads.items():
        validation = read_object(validations[workload_id], fix=MAKE_WORKLOAD_AGAIN)
        distances = {f"ks_{name}": value for name, value in validation.get("ks", {}).items()}
        rows.append({**row, **validation, **distances})
    return rows


def build_store(
    path: Path, rows: Mapping[str, Sequence[Mapping[str, Any]]], files: Mapping[str, Sequence[Path]]
) -> None:
    """Build the database of rows and Parquet files by table.

    InputError: a key is there twice, or the disk is full.
    """
    import duckdb

    with atomic_path(path) as temporary, connect(temporary) as database:
        database.execute(SCHEMA_SQL.read_text(encoding="utf-8"))
        for table, table_rows in rows.items():
            _insert_rows(database, table, table_rows)
        inputs = {}
        for table, table_files in files.items():
            columns = database.table(table).columns
            for file in table_files:
                rows_of_file = base_files.read_parquet(file)
                shared = ", ".join(name for name in rows_of_file.column_names if name in columns)
                try:
                    database.execute(
                        f"INSERT INTO {table} BY NAME SELECT {shared} FROM rows_of_file"
                    )
                except duckdb.ConstraintException as error:
                    cause = str(error).splitlines()[0]
                    problem = f"rows of table {table} have the same key ({cause})"
                    fix = "remove one of the two results"
                    raise InputError(problem, file=file, fix=fix) from None
                inputs[f"{table}/{Path(file).parent.name}"] = file
        measured = {
            name: value
            for file in files.get("point", ())
            for name, value in base_files.read_provenance(file).items()
            if name in ("hosts", "engine_versions", "measured_at")
        }
        facts = base_files.provenance(inputs, **measured)
        origin = [{"key": key, "value": json.dumps(value)} for key, value in facts.items()]
        _insert_rows(database, "provenance", origin)
        database.execute("CHECKPOINT")  # closing does it, too, and does not say if it fails


def _insert_rows(
    database: "duckdb.DuckDBPyConnection", table: str, rows: Sequence[Mapping[str, Any]]
) -> None:
    columns = database.table(table).columns
    values = [[row.get(column) for column in columns] for row in rows]
    if values:
        marks = ", ".join("?" * len(columns))
        database.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
