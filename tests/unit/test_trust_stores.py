"""A store of somebody else is data: opening it reads nothing but the store."""

from pathlib import Path

import duckdb
import pytest

from sextant.base.errors import InputError
from sextant.characterizations.characterization import load_characterization
from sextant.report import summary_text
from sextant.store.build import open_store


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A store whose tables are views of another file on this machine."""
    (tmp_path / "private.csv").write_text("source\nmy-private-words\n")
    path = tmp_path / "store.duckdb"
    with duckdb.connect(str(path)) as store:
        for name in ("point", "slo", "recommendation", "feasibility"):
            store.execute(f"CREATE VIEW {name} AS FROM read_csv('{tmp_path}/private.csv')")
    return path


@pytest.mark.parametrize("read", [load_characterization, summary_text])
def test_a_view_in_a_store_reads_no_file(foreign: Path, read) -> None:
    with duckdb.connect(str(foreign), read_only=True) as plain:  # what it would say otherwise
        assert plain.execute("FROM point").fetchall() == [("my-private-words",)]
    with pytest.raises(InputError, match="the store cannot be read") as caught:
        read(foreign)
    assert "my-private-words" not in str(caught.value)


def test_a_store_cannot_load_what_would_reach_the_network(foreign: Path) -> None:
    for statement in ("INSTALL httpfs", "LOAD httpfs", "ATTACH 'other.duckdb'"):
        with pytest.raises(InputError), open_store(foreign) as store:
            store.execute(statement)
    with pytest.raises(InputError), open_store(foreign) as store:
        store.execute("SET enable_external_access = true")
