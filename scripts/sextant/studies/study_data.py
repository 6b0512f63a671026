"""What an analysis gets, a study's cells and their rows of the store, and what it gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.files import read_parquet
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.pages.sections import Section
from sextant.points.cell_files import MeasuredCell, read_cell
from sextant.points.run import CELL_KEY

TABLES = ("point", "feasibility", "telemetry")


@dataclass(frozen=True)
class StudyData:
    """All that was measured for a study. Tables of the store hold only its cells' rows."""

    points: pd.DataFrame
    feasibility: pd.DataFrame
    telemetry: pd.DataFrame
    cells: Sequence[MeasuredCell]
    llms: Mapping[str, LLM]
    profiles: Mapping[str, GPUProfile]
    seed: int = 0
    """Of whatever an analysis draws."""


@dataclass(frozen=True)
class Analysis:
    """What a study found."""

    summary: str
    """The findings in a few sentences, computed from the data."""
    numbers: Mapping[str, Any]
    """The same as data, for `study.json`; frames become lists of rows, NaN and inf null."""
    sections: Sequence[Section] = ()


def read_study_data(
    cells: Sequence[Path],
    tables: Mapping[str, Path],
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    seed: int,
) -> StudyData:
    """Read the cells of a study, in the order to show them, and the `TABLES` (Parquet) that were
    aggregated from them.

    Raises InputError if a cell's `run.json` or `tuning.json` is malformed.
    """
    found = [read_cell(Path(folder)) for folder in cells]
    points, feasibility, telemetry = (
        _as_cells(read_parquet(tables[name]).to_pandas(), found) for name in TABLES
    )
    return StudyData(points, feasibility, telemetry, found, llms, profiles, seed)


def _as_cells(rows: pd.DataFrame, cells: Sequence[MeasuredCell]) -> pd.DataFrame:
    """Return rows in the order of their cells, which is that of the sheets, else as they were."""
    places = {cell.key: place for place, cell in enumerate(cells)}
    keys = rows[[*CELL_KEY]].itertuples(index=False, name=None)
    order = pd.Series([places[key] for key in keys], dtype=int)
    return rows.iloc[order.sort_values(kind="stable").index].reset_index(drop=True)
