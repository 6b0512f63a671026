"""Writes a characterization as a folder of data, which `folder` reads."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.files import atomic_path
from sextant.base.sheets import write_yaml
from sextant.points.characterizations.description import FILE, Description
from sextant.points.characterizations.points import COLUMNS, IDENTIFIERS, LENGTHS, LOAD, SERVING

_ORDER = [*IDENTIFIERS, *SERVING, *LOAD, *LENGTHS, "measured_on", "run_id"]


def write_description(folder: Path, about: Description) -> None:
    """Write `characterization.yaml`, without what is not known."""
    facts = {key: value for key, value in asdict(about).items() if value not in (None, {})}
    write_yaml(folder / FILE, facts)


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write rows by the name of their file; a file has the keys of its rows."""
    for name, rows in tables.items():
        write_table(folder / name, pd.DataFrame(rows))


def write_points(path: Path, points: pd.DataFrame) -> None:
    """Write those columns of points that have a value, sorted."""
    named = [name for name in COLUMNS if name in points and points[name].notna().any()]
    order = [name for name in _ORDER if name in named]
    write_table(path, points[named].sort_values(order, kind="stable", na_position="first"))


def write_table(path: Path, rows: pd.DataFrame) -> None:
    """Write a table, its numbers in the fewest digits that give them back; `.tsv` has tabs."""
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        quoting = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(rows.columns)
        for row in rows.itertuples(index=False):
            texts = [_text(value) for value in row]
            # Without quotes the line would be a comment.
            (quoting if texts[0].startswith("#") else writer).writerow(texts)


def _text(value: Any) -> str:
    if pd.isna(value):
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(float(value))
    return str(value)
