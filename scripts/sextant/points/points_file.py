"""Reads the table of points of a folder, CSV or Parquet; a mistake is named with row and fix."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import read_parquet
from sextant.base.sheets import SCHEMAS, read_yaml, sheet_cells, typed

SCHEMA = SCHEMAS / "points.schema.yaml"
NAMES = ("points.csv", "points.parquet")
_UNITS = ("ms", "tok_s", "rps", "j_per_token")
_UNIT = re.compile(r"_(ms|m?s|us|ns|seconds?|tokens_s|tok_s|rp[sm]|per_s|m?j_per_token|wh?)$")
_KINDS = {"integer": "Int64", "number": "float64", "string": "str"}


def read_points(path: Path) -> tuple[pd.DataFrame, Sequence[int]]:
    """Return the table with the columns of the file, typed, and the line of each row.

    Lines count as an editor does, the header is line 1; in a Parquet file as if it were a CSV.

    Raises:
        InputError: a column is unknown or in another unit, or a value is not what
            `workflow/schemas/points.schema.yaml` says.
    """
    known = read_yaml(SCHEMA)["properties"]
    texts, lines = _parquet(path, known) if path.suffix == ".parquet" else _csv(path)
    if texts.empty:
        raise InputError("there are no points", file=path, fix="add one row a measurement")
    columns = {name: _column(texts[name], known[name], path, lines) for name in texts}
    return pd.DataFrame(columns), lines


def _csv(path: Path) -> tuple[pd.DataFrame, Sequence[int]]:
    try:
        rows = sheet_cells(path, SCHEMA, delimiter=",")
    except InputError as error:
        raise _in_another_unit(error) or error from None
    return pd.DataFrame(rows, dtype=object), [row.line for row in rows]


def _parquet(path: Path, known: Mapping[str, Any]) -> tuple[pd.DataFrame, Sequence[int]]:
    fix = "write a Parquet file with the columns of workflow/schemas/points.schema.yaml"
    frame = read_parquet(path, fix=fix).to_pandas()
    for name in frame:
        if name not in known:
            fix = f"remove it or correct its name; known: {', '.join(known)}"
            error = InputError("unknown column", file=path, field=name, fix=fix)
            raise _in_another_unit(error) or error
    texts = frame.astype(object).where(frame.notna(), "")
    return texts.map(_as_text), range(2, len(frame) + 2)


def _as_text(value: Any) -> str:
    """Return a value as a CSV would have it: a whole number has no point."""
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if is_whole else str(value)


def _in_another_unit(error: InputError) -> InputError | None:
    """Return what is wrong with an unknown column that has a known one's name, but for its unit."""
    name = error.field or ""
    stem = _UNIT.sub("", name)
    for unit in _UNITS:
        right = f"{stem}_{unit}"
        if error.problem == "unknown column" and right in read_yaml(SCHEMA)["properties"]:
            fix = f"convert its values and call it {right}"
            return InputError(
                "it is in another unit", file=error.file, row=error.row, field=name, fix=fix
            )
    return None


def _column(
    texts: pd.Series, schema: Mapping[str, Any], path: Path, lines: Sequence[int]
) -> pd.Series:
    """Return a column's values; an empty text is a missing value, 4.0 is a whole number."""
    given = texts[texts != ""]
    name, kind = str(texts.name), schema["type"]
    if "enum" in schema:
        given = given.str.lower()
    if kind == "integer":
        given = given.str.replace(r"\.0+$", "", regex=True)
    values = [typed(text, schema, path, lines[at], name) for at, text in given.items()]
    found = pd.Series(values, index=given.index, dtype=_KINDS[kind])
    wrong = ~_allowed(found, schema)
    if wrong.any():
        at = wrong.idxmax()
        problem, fix = f"{texts[at]} is not allowed", schema["description"]
        if "enum" in schema:
            fix += f"; one of {', '.join(schema['enum'])}"
        raise InputError(problem, file=path, row=lines[at], field=name, fix=fix)
    return found.reindex(texts.index)


def _allowed(values: pd.Series, schema: Mapping[str, Any]) -> pd.Series:
    """Tell which values the schema's bounds, words and pattern allow."""
    allowed = pd.Series(True, index=values.index)
    if "minimum" in schema:
        allowed &= values >= schema["minimum"]
    if "exclusiveMinimum" in schema:
        allowed &= values > schema["exclusiveMinimum"]
    if "enum" in schema:
        allowed &= values.isin(schema["enum"])
    if "pattern" in schema:
        allowed &= values.str.fullmatch(schema["pattern"].strip("^$")).astype(bool)
    return allowed
