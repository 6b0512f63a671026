"""Reading the store for the report: all that is said and drawn, and nothing else."""

import json
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

_TABLES = (
    "llm",
    "gpu_profile",
    "trace",
    "workload",
    "recommendation",
    "score",
    "capacity",
    "decision",
    "fleet",
    "provenance",
)
# Other server variants belong to studies, which have pages of their own.
_OF_ONE_SERVER = f"FROM {{}} WHERE variant_id = '{DEFAULT_VARIANT}' ORDER BY ALL"
# An LLM's own measurements are its answer; what predictors weighed for it is not shown.
_CANDIDATES = f"""SELECT c.* FROM candidate AS c WHERE predictor = '{MEASURED}' OR NOT EXISTS (
    FROM recommendation AS r WHERE r.predictor = '{MEASURED}'
    AND (r.source, r.slo_id, r.llm_id) = (c.source, c.slo_id, c.llm_id)) ORDER BY ALL"""
_PREDICTIONS = "FROM prediction WHERE list_contains(?, slo_id) ORDER BY ALL"


def read_tables(database: str | Path) -> dict[str, list[Row]]:
    """Read the store without changing it. Raises InputError if there is no store, or it lacks a
    table.

    SLOs are in the order of their sheet, those of a trace in `trace_slo`, profiles by price,
    other rows by their columns. Of `prediction` only rows of `detailed_slos` are read, of
    `candidate` only the alternatives to answers: they are by far the largest tables.
    """
    with open_store(database) as connection:
        # The store is filled once, from the sheet's first row on.
        slos = _rows(connection, "FROM slo ORDER BY rowid")
        tables = {"slo": [row for row in slos if row["trace_id"] is None]}
        tables["trace_slo"] = [row for row in slos if row["trace_id"] is not None]
        for name in _TABLES:
            tables[name] = _rows(connection, f"FROM {name} ORDER BY ALL")
        for name in ("feasibility", "point"):
            tables[name] = _rows(connection, _OF_ONE_SERVER.format(name))
        for point in tables["point"]:
            point["level"] = _level(point["level"])
        shown = [slo["slo_id"] for slo in detailed_slos(tables)]
        tables["candidate"] = _rows(connection, _CANDIDATES)
        tables["prediction"] = _rows(connection, _PREDICTIONS, shown)
    tables["gpu_profile"].sort(key=lambda row: (row["usd_per_hour"], row["gpu_profile_id"]))
    return tables


def _rows(connection: duckdb.DuckDBPyConnection, query: str, *parameters: Any) -> list[Row]:
    cursor = connection.execute(query, parameters)
    names = [name for name, *_ in cursor.description]
    return [dict(zip(names, map(_known, row), strict=True)) for row in cursor.fetchall()]


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _level(value: float | None) -> float:
    """Return 4 users, not 4.0; a level, the store's key, is never unknown but may be infinite."""
    if value is None:
        return math.inf
    return int(value) if value.is_integer() else value


def detailed_slos(tables: Tables) -> Sequence[Row]:
    """Return the SLOs to show in full: all of a short sheet, the first of a long one."""
    slos = tables["slo"]
    return slos if len(slos) <= MAX_DETAILED_SLOS else slos[:1]


def prices(tables: Tables) -> list[PriceOrigin]:
    """Return whose prices the GPU profiles have, and of when."""
    return price_origins((row["price_source"], row["price_as_of"]) for row in tables["gpu_profile"])


def price_lines(tables: Tables) -> list[str]:
    """Return the same as lines for a person, old prices last."""
    found = prices(tables)
    return [origin_line(found), *old_price_lines(found)] if found else []


def provenance_facts(tables: Tables) -> Row:
    """Return what the store knows of its origin, by key."""
    return {row["key"]: json.loads(row["value"]) for row in tables["provenance"]}
