"""What the stop rule looks at of a level that was measured."""

import duckdb
import pyarrow as pa

from sextant.cells.metrics import points_query
from sextant.cells.verdict import LevelMedians


def level_medians(level: float, requests: pa.Table) -> LevelMedians:
    """Return what the stop rule looks at, of a closed loop's rows."""
    with duckdb.connect() as database:
        database.execute("SET enable_progress_bar = false")
        database.register("rows", requests)
        query = points_query(
            "(SELECT 0 AS cell, sent_s AS start_s, * FROM rows)",
            f"(SELECT 0 AS cell, '{level}'::DOUBLE AS level, 1.0 AS duration_s)",
        )
        names = "n_ok, median_nttft_ms, median_itl_ms"
        return LevelMedians(level, *database.execute(f"SELECT {names} FROM ({query})").fetchone())
