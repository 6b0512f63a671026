"""Reading the store for the report: all that is said and drawn, and nothing else."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from sextant.base.files import Row
from sextant.experiment.sheets import DEFAULT_VARIANT
from sextant.facts.gpu import PriceOrigin, old_price_lines, origin_line, price_origins
from sextant.points.store import open_store
from sextant.predict import MEASURED

Tables = Mapping[str, Sequence[Row]]
"""Rows by table. A row is a dict by column; what is not known is None, also where the store
has NaN."""

MAX_DETAILED_SLOS = 6
"""With more SLOs only the first of the sheet is shown in full, and a summary of all."""
_TABLES = ("llm", "gpu_profile", "trace", "workload", "score", "capacity", "fleet", "provenance")
# An LLM's own measurements are its answer; predictors were only judged on it.
_IS_ANSWER = f"""(predictor = '{MEASURED}' OR NOT EXISTS (
    FROM recommendation AS r WHERE r.predictor = '{MEASURED}'
    AND (r.source, r.slo_id, r.llm_id) = (t.source, t.slo_id, t.llm_id)))"""
# Other server variants belong to studies, which have pages of their own.
_IS_DEFAULT = f"variant_id = '{DEFAULT_VARIANT}'"
_QUERIES = {
    **{name: f"FROM {name}" for name in _TABLES},
    "feasibility": f"FROM feasibility WHERE {_IS_DEFAULT}",
    "point": f"FROM point WHERE {_IS_DEFAULT}",
    "deciding": f"""SELECT p.* FROM point AS p SEMI JOIN decision USING
        (source, workload_id, scenario_id) WHERE {_IS_DEFAULT}""",
    "answer": f"FROM recommendation AS t WHERE {_IS_ANSWER}",
    "held_out": f"FROM recommendation AS t WHERE NOT {_IS_ANSWER}",
    "candidate": f"FROM candidate AS t WHERE {_IS_ANSWER}",
}


def read_tables(database: str | Path) -> dict[str, list[Row]]:
    """Read the store without changing it. Raises InputError if there is no store, or it lacks a
    table.

    SLOs are in the order of their sheet, those of a trace in `trace_slo`, profiles by price,
    other rows by their columns. Recommendations are in two tables: `answer` (of points where an LLM
    was measured, else of each predictor) and `held_out` (of predictors for measured LLMs that they
    were not shown). `deciding` has the points that they rest on, `candidate` only the alternatives
    to answers, `prediction` only rows of `detailed_slos`.
    """
    with open_store(database) as connection:
        # The store is filled once, from the sheet's first row on.
        slos = _rows(connection, "FROM slo ORDER BY rowid")
        tables = {"slo": [row for row in slos if row["trace_id"] is None]}
        tables["trace_slo"] = [row for row in slos if row["trace_id"] is not None]
        for name, query in _QUERIES.items():
            tables[name] = _rows(connection, f"{query} ORDER BY ALL")
        shown = [slo["slo_id"] for slo in detailed_slos(tables)]
        query = "FROM prediction WHERE list_contains(?, slo_id) ORDER BY ALL"
        tables["prediction"] = _rows(connection, query, shown)
    for point in (*tables["point"], *tables["deciding"]):
        # 4 users, not 4.0; a level, the store's key, is never unknown but may be infinite.
        level = math.inf if point["level"] is None else point["level"]
        point["level"] = int(level) if level.is_integer() else level
    tables["gpu_profile"].sort(key=lambda row: (row["usd_per_hour"], row["gpu_profile_id"]))
    return tables


def _rows(connection: duckdb.DuckDBPyConnection, query: str, *parameters: Any) -> list[Row]:
    cursor = connection.execute(query, parameters)
    names = [name for name, *_ in cursor.description]
    return [
        {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in zip(names, row, strict=True)
        }
        for row in cursor.fetchall()
    ]


def detailed_slos(tables: Tables) -> Sequence[Row]:
    """Return the SLOs to show in full: all of a short sheet, the first of a long one."""
    slos = tables["slo"]
    return slos if len(slos) <= MAX_DETAILED_SLOS else slos[:1]


def sources(tables: Tables) -> list[str]:
    """Return the characterizations in the store, `measured` if there is none yet."""
    found = {row["source"] for name in ("point", "score") for row in tables[name]}
    return sorted(found) or [MEASURED]


def prices(tables: Tables) -> list[PriceOrigin]:
    """Return whose prices the GPU profiles have, and of when."""
    return price_origins((row["price_source"], row["price_as_of"]) for row in tables["gpu_profile"])


def price_lines(tables: Tables) -> list[str]:
    """Return the same as lines for a person, old prices last."""
    found = prices(tables)
    return [origin_line(found), *old_price_lines(found)] if found else []
