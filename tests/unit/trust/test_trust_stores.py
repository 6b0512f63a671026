"""A store of somebody else is data: opening it reads nothing but the store."""

from pathlib import Path

import duckdb
import pytest

from sextant.base.errors import InputError
from sextant.points.measured import load_characterization
from sextant.points.store import build_store, open_store
from sextant.report.answers import store_summary
from support import time_limit


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A store whose tables are views of another file on this machine."""
    (tmp_path / "private.csv").write_text("source\nmy-private-words\n")
    path = tmp_path / "store.duckdb"
    with duckdb.connect(str(path)) as store:
        for name in ("point", "slo", "recommendation", "feasibility"):
            store.execute(f"CREATE VIEW {name} AS FROM read_csv('{tmp_path}/private.csv')")
    return path


@pytest.mark.parametrize("read", [load_characterization, store_summary])
def test_a_view_in_a_store_reads_no_file(foreign: Path, read) -> None:
    with duckdb.connect(str(foreign), read_only=True) as plain:  # what it would say otherwise
        assert plain.execute("FROM point").fetchall() == [("my-private-words",)]
    with pytest.raises(InputError, match="it has the view") as caught:
        read(foreign)
    assert "my-private-words" not in str(caught.value)


def test_a_store_cannot_load_what_would_reach_the_network(foreign: Path) -> None:
    for statement in ("INSTALL httpfs", "LOAD httpfs", "ATTACH 'other.duckdb'"):
        with pytest.raises(InputError), open_store(foreign) as store:
            store.execute(statement)
    with pytest.raises(InputError), open_store(foreign) as store:
        store.execute("SET enable_external_access = true")


@pytest.mark.parametrize("read", [load_characterization, store_summary])
@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("CREATE VIEW point AS SELECT sum(range) FROM range(1000000000000)", "view"),
        ("CREATE MACRO median(x) AS (SELECT sum(range) FROM range(10000000000))", "macro 'median'"),
        (
            "CREATE MACRO duckdb_views() AS TABLE SELECT 'none' AS view_name, true AS internal",
            "macro 'duckdb_views'",
        ),
        ("CREATE TABLE point (a INT, b AS (repeat('x', a)))", "computed column of 'point'"),
    ],
)
def test_a_store_that_would_run_a_strangers_sql_is_refused(
    tmp_path: Path, statement: str, found: str, read
) -> None:
    path = tmp_path / "store.duckdb"
    with duckdb.connect(str(path)) as store:
        store.execute(statement)
    with time_limit(20), pytest.raises(InputError, match=f"it has the {found}"):
        read(path)


def test_a_table_that_fills_the_memory_is_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("sextant.points.store._MAX_ROWS", 9)
    path = tmp_path / "store.duckdb"
    with duckdb.connect(str(path)) as store:
        store.execute("CREATE TABLE point AS FROM range(10)")
    with pytest.raises(InputError, match="10 rows in 'point'"), open_store(path):
        pass


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.duckdb"
    build_store(path, {}, {})
    with open_store(path):
        pass
    with duckdb.connect(str(path)) as store:
        store.execute("ALTER TABLE feasibility DROP COLUMN verdict")
    said = (
        "another version of sextant: table feasibility has no column verdict.*Fix: build it again"
    )
    with pytest.raises(InputError, match=said), open_store(path):
        pass
