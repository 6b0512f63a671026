"""From measured cells to a study's page, its figures and its numbers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from sextant.base.files import provenance
from sextant.base.rows import Row, frame_rows, jsonable
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.pages.sections import Section, Table
from sextant.pages.write import render_sections, write_page
from sextant.points.summarize import aggregate_points
from sextant.points.trust import warnings
from sextant.studies.labels import level_words, place_words
from sextant.studies.study_data import TABLES, Analysis, StudyData, read_study_data


class Study(NamedTuple):
    """What a study's page is headed by."""

    title: str
    question: str
    """With the paper that asked it."""


STUDIES = {
    "characterize": Study(
        "Characterization",
        "How do latency and throughput change with the number of users, per LLM and GPU profile, "
        "and what does not fit? (LLM-Pilot, SC 2024, section III)",
    ),
    "pareto": Study(
        "Pareto-optimal throughput",
        "Up to which batch size does throughput still grow, and does one device hold it? "
        "(Recasens et al., EuroMLSys 2024, section 4.1)",
    ),
    "replicas": Study(
        "Replicas on one device",
        "What do several servers that share one device gain over one? "
        "(Recasens et al., EuroMLSys 2024, section 4.2)",
    ),
    "pods": Study(
        "Throughput per pod",
        "Does throughput per replica depend on anything but the users per replica? "
        "(LLM-Pilot, SC 2024, Table I)",
    ),
    "sensitivity": Study(
        "Sensitivity",
        "Which of CPU cores, host memory, batch weight and users moves latency? "
        "(LLM-Pilot, SC 2024, section III-D)",
    ),
    "workload_choice": Study(
        "Choice of workload",
        "What does a larger KV cache bring to which use case, latency-critical or best-effort? "
        "(Papaioannou and Doudali)",
    ),
    "burst": Study(
        "Bursts",
        "How do failures and latency follow burstiness and lengths that change? "
        "(BurstGPT, section V)",
    ),
}


def analysis_of(name: str) -> Callable[[StudyData], Analysis]:
    """Return the analysis of a study; what only other studies need is not imported."""
    return import_module(f"sextant.studies.{name}").analyse


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

    `name` is a key of `STUDIES`, `llms` and `profiles` are facts by id; same seed and cells, same
    bytes.
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


_LABELS = {
    "sources": "Source",
    "llm_ids": "LLMs",
    "gpu_profile_ids": "GPU profiles",
    "hosts": "Host",
    "gpu_drivers": "GPU driver",
    "engine_versions": "Engine version",
    "measured_on": "Measured on",
}


def measured_facts(data: StudyData) -> dict[str, Any]:
    """Return what every study's page says of its measurements.

    Keys: `sources, llm_ids, gpu_profile_ids, hosts, gpu_drivers, engine_versions, measured_on`
    (days), `n_cells, n_infeasible_cells, infeasible` (in words), `n_points, n_requests, warnings`.
    """
    runs = [cell.run for cell in data.cells]
    infeasible = [run for run in runs if not run.verdict.is_feasible]
    n_requests = data.points["n_ok"].sum() + data.points["n_failed"].sum()
    return {
        "sources": _distinct(run.source for run in runs),
        "llm_ids": _distinct(run.llm_id for run in runs),
        "gpu_profile_ids": _distinct(run.gpu_profile_id for run in runs),
        "hosts": _distinct(run.processor for run in runs),
        "gpu_drivers": _distinct(run.host.gpu_driver for run in runs if run.host),
        "engine_versions": _distinct(run.engine_version for run in runs),
        "measured_on": _distinct(f"{run.started_at:%Y-%m-%d}" for run in runs if run.started_at),
        "n_cells": len(runs),
        "n_infeasible_cells": len(infeasible),
        "infeasible": _distinct(
            f"{run.llm_id} on {run.gpu_profile_id} ({run.variant_id}): {run.verdict.reason}"
            for run in infeasible
        ),
        "n_points": len(data.points),
        "n_requests": int(n_requests),
        "warnings": warnings(frame_rows(data.points)),
    }


def measured_section(facts: Mapping[str, Any]) -> Section:
    """Return the section of what `measured_facts` found."""
    rows = [(label, ", ".join(facts[name]) or "not known") for name, label in _LABELS.items()]
    size = (
        f"{facts['n_cells']} cells, {facts['n_infeasible_cells']} of them infeasible; "
        f"{facts['n_points']} points; {facts['n_requests']} measured requests"
    )
    table = Table(("", ""), [*rows, ("Size", size)], text_columns=(0, 1))
    notes = [f"{line}." for line in facts["infeasible"]]
    return Section("What was measured", notes=notes, tables=[table], key="measured")


def caution_words(facts: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each kind of doubt about points, with the places concerned."""
    return [
        f"{warning['text']}: {warning['n_points']} of {facts['n_points']} points "
        f"({'; '.join(map(_doubtful_place, warning['places']))})."
        for warning in facts["warnings"]
    ]


def _doubtful_place(place: Row) -> str:
    parts = [place_words(place), place["workload_id"], place["scenario_id"]]
    parts += [place["variant_id"]] if place["variant_id"] != "default" else []
    return f"{', '.join(parts)} at {', '.join(map(level_words, place['levels']))}"


def _distinct(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value is not None})
