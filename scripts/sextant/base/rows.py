"""Rows of a table as dicts: grouped, taken from a frame, as JSON has them; lean imports."""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # commands that need no frames start without pandas
    import pandas as pd

Row = dict[str, Any]
"""A row by column; what is not known is None."""


def group_by(rows: Iterable[Row], *columns: str) -> dict[tuple, list[Row]]:
    """Return the rows by their values in `columns`, groups in the order of first appearance."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def frame_rows(frame: "pd.DataFrame") -> list[Row]:
    """Return a frame's rows with None for what is missing; infinity stays."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{name: _native(value) for name, value in row.items()} for row in rows]


def column_lists(frame: "pd.DataFrame") -> dict[str, list[Any]]:
    """Return a frame's columns as lists with None for what is missing."""
    return {name: jsonable(frame[name]) for name in frame}


def jsonable(value: Any) -> Any:
    """Return what JSON can say: frames as rows, numpy's numbers as numbers, NaN and inf null.

    A `level` of infinity is the word `inf`, as in `run.json`.
    """
    pandas = sys.modules.get("pandas")
    if pandas and isinstance(value, pandas.DataFrame):
        return [jsonable(row) for row in value.to_dict("records")]
    if isinstance(value, Mapping):
        return {
            str(name): "inf" if name == "level" and item == math.inf else jsonable(item)
            for name, item in value.items()
        }
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, Sequence | np.ndarray) or (pandas and isinstance(value, pandas.Series)):
        return [jsonable(item) for item in value]
    if pandas and (value is pandas.NA or value is pandas.NaT):
        return None
    native = _native(value)
    return None if isinstance(native, float) and not math.isfinite(native) else native


def import_without(module: str, *hidden: str) -> Any:
    """Return a module, imported as if these, which it does without, were not installed.

    What is imported already is not hidden.
    """
    absent = [name for name in hidden if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: not installed
    try:
        return import_module(module)
    finally:
        for name in absent:
            del sys.modules[name]


def _native(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
