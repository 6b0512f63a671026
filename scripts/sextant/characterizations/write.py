"""Writes a characterization as a folder of data, which `folder` reads."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from sextant.base.files import atomic_path
from sextant.characterizations.description import FILE, Description
from sextant.characterizations.points import COLUMNS, IDENTIFIERS, LENGTHS, LOAD, SERVING

_ORDER = [*IDENTIFIERS, *SERVING, *LOAD, *LENGTHS, "measured_on", "run_id"]


def write_folder(
    folder: Path,
    about: Description,
    points: pd.DataFrame,
    tables: Mapping[str, Sequence[Mapping[str, Any]]],
) -> None:
    """Write description, points and tables; other files of the folder stay.

    Args:
        folder: where to; made if it is not there.
        about: what `characterization.yaml` is to say.
        points: some of `COLUMNS`; those without a value are left out.
        tables: rows by file name, e.g. `llms.tsv`; each file has the keys of its rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    facts = {key: value for key, value in asdict(about).items() if value not in (None, {})}
    with atomic_path(folder / FILE) as temporary:
        text = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=100)
        temporary.write_text(text, encoding="utf-8")
    write_points(folder / "points.csv", points)
    for name, table in tables.items():
        write_table(folder / name, pd.DataFrame(table))


def tables_of(points: pd.DataFrame, configs: str) -> dict[str, list[dict[str, Any]]]:
    """Return `llms.tsv` and `gpu_profiles.tsv` for points whose profiles are `<n>x<gpu_id>`.

    Args:
        points: `llm_id, gpu_profile_id`.
        configs: folder of the LLMs' `<llm_id>.json`, relative to that of the points.
    """
    llms = [
        {"llm_id": name, "config": f"{configs}/{name}.json"}
        for name in sorted(points["llm_id"].unique())
    ]
    named = (name.split("x", 1) for name in points["gpu_profile_id"].unique())
    profiles = [
        {"gpu_profile_id": f"{n}x{gpu_id}", "gpu_id": gpu_id, "n_gpus": n}
        for gpu_id, n in sorted((gpu_id, int(count)) for count, gpu_id in named)
    ]
    return {"llms.tsv": llms, "gpu_profiles.tsv": profiles}


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
        writer.writerow(rows.columns)
        writer.writerows([_text(value) for value in row] for row in rows.itertuples(index=False))


def _text(value: Any) -> str:
    if pd.isna(value):
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(float(value))
    return str(value)
