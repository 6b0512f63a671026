"""From measured cells to a study's page, its figures and its numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sextant.base.files import provenance
from sextant.base.rows import jsonable
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM
from sextant.pages.write import render_sections, write_page
from sextant.store.points import aggregate_points
from sextant.studies.measured_section import caution_words, measured_facts, measured_section
from sextant.studies.registry import STUDIES, analysis_of
from sextant.studies.study_data import read_study_data

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
    tables, study = outputs.tables, STUDIES[name]
    aggregate_points(cells, *(tables[table] for table in TABLES))
    data = read_study_data(cells, tables, llms, profiles, seed)
    analysis = analysis_of(name)(data)
    facts = measured_facts(data)
    origin = provenance(tables, seed=seed)
    html = render_sections(
        study.title,
        study.question,
        [*analysis.sections, measured_section(facts)],
        origin,
        lead=analysis.summary,
        cautions=caution_words(facts),
    )
    report = {
        "study": name,
        "title": study.title,
        "summary": analysis.summary,
        "numbers": jsonable(analysis.numbers),
        "measured": jsonable({**facts, "provenance": origin}),
    }
    figures = {section.key: svg for section in analysis.sections for svg, _ in section.figures}
    write_page(outputs.html, html, outputs.json, report, outputs.figures, figures)
