"""Opens DuckDB: a database in memory, and a store of `build_store` for reading."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from sextant import PROJECT
from sextant.base.errors import InputError

if TYPE_CHECKING:  # its import takes longer than reading a folder of points
    import duckdb

SCHEMA_SQL = PROJECT / "resources" / "sql" / "schema.sql"
_BUILD_AGAIN = (
    "build it again: delete it and run the pipeline, which makes it from the Parquet files and "
    "measures nothing"
)
_WAIT = "end the process that holds the store, or wait until it is done"


def connect(
    path: str | Path = ":memory:", *, read_only: bool = False
) -> "duckdb.DuckDBPyConnection":
    """Open DuckDB in UTC, so that the same files give the same database anywhere.

    A store that is only read may be anybody's: views in it reach no file and no network.
    """
    import duckdb

    access = not read_only
    connection = duckdb.connect(str(path), read_only, {"enable_external_access": access})
    connection.execute("SET TimeZone = 'UTC'")
    return connection


@contextlib.contextmanager
def open_store(path: str | Path) -> "Iterator[duckdb.DuckDBPyConnection]":
    """Open a database of `build_store` for reading.

    Raises:
        InputError: there is none, another process holds it, it is damaged, of another version, or
            holds more than tables (`_require_tables`).
    """
    import duckdb

    if not Path(path).is_file():
        fix = (
            "run the pipeline first (`make demo`; for an archive `make reproduce-llm-pilot`), "
            "or give --database"
        )
        raise InputError("there is no store here", file=path, fix=fix)
    try:
        with connect(path, read_only=True) as store:
            _require_tables(store, path)
            _require_columns(store, path)
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
_COLUMNS = "SELECT table_name, column_name FROM system.main.duckdb_columns() WHERE NOT internal"


def _require_tables(store: "duckdb.DuckDBPyConnection", path: str | Path) -> None:
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


def _require_columns(store: "duckdb.DuckDBPyConnection", path: str | Path) -> None:
    """Refuse a store that was built by another version."""
    with connect() as fresh:
        fresh.execute(SCHEMA_SQL.read_text(encoding="utf-8"))
        wanted = fresh.execute(_COLUMNS).fetchall()
    if missing := set(wanted) - set(store.execute(_COLUMNS).fetchall()):
        table, column = min(missing)
        problem = f"built by another version of sextant: table {table} has no column {column}"
        raise InputError(problem, file=path, fix=_BUILD_AGAIN)
