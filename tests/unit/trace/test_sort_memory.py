"""A trace that is not in order is sorted in little memory, however long it is."""

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sextant.trace import output

N_ROWS = 2_000_000


@pytest.fixture
def database(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "_MEMORY", "24MB")
    with duckdb.connect() as connection:
        output._bound(connection, str(tmp_path))
        arrivals = f"SELECT hash(i) / 1e10 AS arrival_s FROM range({N_ROWS}) AS rows(i)"
        connection.execute(f"CREATE VIEW trace AS {arrivals}")
        yield connection


def test_the_ends_of_long_traces_are_found_without_holding_all_values(database):
    low_s, high_s = output._ends_s(database, "trace", N_ROWS)
    whole = "SELECT quantile_disc(arrival_s, [0.01, 0.99]) FROM trace"
    with pytest.raises(duckdb.OutOfMemoryException):
        database.execute(whole).fetchall()
    database.execute("SET memory_limit = '1GB'")
    assert database.execute(whole).fetchall() == [([low_s, high_s],)]


@pytest.mark.parametrize(("n_ids", "n_rows"), [(0, 100_000), (10, 100_000), (5_000, 399)])
def test_rows_with_many_block_ids_are_held_few_at_a_time(tmp_path, n_ids, n_rows):
    ids = pa.array([[*range(n_ids)]] * 50, pa.list_(pa.int64()))
    names = ("arrival_s", "input_tokens", "output_tokens")
    columns = {name: pa.array([1.0] * 50) for name in names}
    pq.write_table(pa.table(columns | {"hash_ids": ids}), tmp_path / "t.parquet")
    assert output._batch_rows(tmp_path / "t.parquet") == n_rows
