"""When a sweep over users has nothing more to tell, and why."""

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from sextant.points.cells.metrics import points_query
from sextant.points.cells.verdict import LevelMedians, Stop

MIN_REQUESTS = 10
"""Fewest served requests whose medians decide. A level with fewer is no reason to stop."""


def tells_nothing(
    levels: Sequence[LevelMedians], nttft_limit_ms: float, itl_limit_ms: float, factor: float
) -> Stop | None:
    """Return why more users than those measured can tell nothing, None as long as they may.

    They can where both medians at the last level, users ascending, exceed their limits (ms per
    input token, ms) by `factor` of 1 or more: more users wait longer, so no larger level can meet
    either limit. A level with fewer than 10 served requests, or without one of the medians, decides
    nothing.
    """
    last = levels[-1] if levels else None
    if last is None or last.n_ok < MIN_REQUESTS or last.nttft_ms is None or last.itl_ms is None:
        return None
    if last.nttft_ms <= factor * nttft_limit_ms or last.itl_ms <= factor * itl_limit_ms:
        return None
    return Stop(last, nttft_limit_ms, itl_limit_ms, factor)


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
        (row,) = database.execute(f"SELECT {names} FROM ({query})").fetchall()
    return LevelMedians(level, *row)
