"""From measured cells to a study's page, its figures and its numbers."""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.files import atomic_path, provenance, write_json
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM
from sextant.store.build import aggregate_points
from sextant.studies.data import Section, read_study_data
from sextant.studies.page import page_facts, render_page, section_key
from sextant.studies.registry import STUDIES, analysis_of

TABLES = ("point", "feasibility", "telemetry")


@dataclass(frozen=True)
class StudyOutputs:
    """Where a study's results go."""

    html: Path
    """The page, one file that refers to no other."""
    json: Path
    """`study, title, summary, numbers, measured`; what is not known is null."""
    figures: Path
    """Folder for the page's figures, an SVG file each; what was in it goes."""
    tables: Mapping[str, Path]
    """Parquet files for the rows of the store's `TABLES` that its cells came to."""


def write_study(
    name: str,
    cells: Sequence[Path],
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    outputs: StudyOutputs,
    *,
    seed: int,
) -> None:
    """Analyse a study's cells; write its tables, its page, its numbers and its figures.

    Args:
        name: of the study, a key of `STUDIES`.
        cells: folders of the cells that were measured for it.
        llms: facts of the LLMs by id.
        profiles: GPU profiles by id.
        outputs: where all of it goes.
        seed: same seed and cells, same bytes.
    """
    tables = outputs.tables
    aggregate_points(cells, *(tables[table] for table in TABLES))
    data = read_study_data(cells, tables, llms, profiles, seed)
    analysis = analysis_of(name)(data)
    facts = page_facts(data, provenance(tables, seed=seed))
    html = render_page(STUDIES[name], analysis, facts)
    report = {
        "study": name,
        "title": STUDIES[name].title,
        "summary": analysis.summary,
        "numbers": jsonable(analysis.numbers),
        "measured": jsonable(facts),
    }
    with atomic_path(outputs.html) as temporary:
        temporary.write_text(html, encoding="utf-8")
    _write_figures(outputs.figures, analysis.sections)
    write_json(outputs.json, report)


def jsonable(value: Any) -> Any:
    """Return what JSON can say: frames as rows, numbers of numpy as numbers, NaN and inf null.

    A `level` of infinity is the word `inf`, as in `run.json`.
    """
    if isinstance(value, pd.DataFrame):
        return [jsonable(row) for row in value.to_dict("records")]
    if isinstance(value, Mapping):
        return {
            str(name): "inf" if name == "level" and item == math.inf else jsonable(item)
            for name, item in value.items()
        }
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, Sequence | np.ndarray | pd.Series):
        return [jsonable(item) for item in value]
    if value is pd.NA or value is pd.NaT:
        return None
    plain = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(plain, float) and not math.isfinite(plain) else plain


def _write_figures(folder: Path, sections: Sequence[Section]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for section in sections:
        if section.figure:
            with atomic_path(folder / f"{section_key(section)}.svg") as temporary:
                temporary.write_text(section.figure, encoding="utf-8")
