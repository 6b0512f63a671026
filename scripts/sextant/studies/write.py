"""From measured cells to a study's page, its figures and its numbers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.files import frame_rows, jsonable, provenance, read_parquet
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.pages.blocks import Block, Document, Facts, Headline, Note, Section
from sextant.pages.page import write_page
from sextant.points.cell_files import read_cell
from sextant.points.metrics import warnings
from sextant.points.run import CELL_KEY, CellRun
from sextant.points.summarize import aggregate_points
from sextant.studies.study import Analysis, StudyData, level_words, place_words

TABLES = ("point", "feasibility", "telemetry")  # what a study's cells are aggregated to
TITLES = {
    "characterize": "Characterization",
    "pareto": "Pareto-optimal throughput",
    "replicas": "Replicas on one device",
    "pods": "Throughput per pod",
    "sensitivity": "Sensitivity",
    "workload_choice": "Choice of workload",
    "burst": "Bursts",
}
"""Of each study's page. The subtitle is what its module says of itself: the question, the paper."""
_OF_RUNS: Mapping[str, tuple[str, Callable[[CellRun], Any]]] = {
    "sources": ("Source", lambda run: run.source),
    "llm_ids": ("LLMs", lambda run: run.llm_id),
    "gpu_profile_ids": ("GPU profiles", lambda run: run.gpu_profile_id),
    "hosts": ("Host", lambda run: run.processor),
    "gpu_drivers": ("GPU driver", lambda run: run.host.gpu_driver if run.host else None),
    "engine_versions": ("Engine version", lambda run: run.engine_version),
    "measured_on": ("Measured on", lambda run: run.started_at and str(run.started_at.date())),
}
"""What pages say of where cells were measured: key, label and a run's own."""


def write_study(
    name: str,
    cells: Sequence[Path],
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    tables: Mapping[str, Path],
    html_out: Path,
    json_out: Path,
    figures_out: Path,
    *,
    seed: int,
) -> None:
    """Analyse the cells (folders) of a study of `TITLES`; write Parquet `tables` by name, its page,
    JSON (null: not known) and figures, in a folder whose former content goes. The same seed and
    cells give the same bytes.
    """
    aggregate_points(cells, *(tables[table] for table in TABLES))
    data = read_study_data(cells, tables, llms, profiles, seed)
    origin = provenance(tables, seed=seed)
    # What only other studies need is not imported.
    study = import_module(f"sextant.studies.{name}")
    document = study_document(name, study.analyse(data), measured_facts(data), origin)
    write_page(
        replace(document, subtitle=" ".join(str(study.__doc__).split())),
        html_out,
        json_out,
        figures_out,
    )


def read_study_data(
    cells: Sequence[Path],
    tables: Mapping[str, Path],
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    seed: int,
) -> StudyData:
    """Read a study's cells, and their `TABLES` in that order; InputError if malformed."""
    found = [read_cell(Path(folder)) for folder in cells]
    places = {cell.key: place for place, cell in enumerate(found)}
    ordered = []
    for name in TABLES:
        rows = read_parquet(tables[name]).to_pandas()
        keys = rows[[*CELL_KEY]].itertuples(index=False, name=None)
        order = pd.Series([places[key] for key in keys], dtype=int).sort_values(kind="stable")
        ordered.append(rows.iloc[order.index].reset_index(drop=True))
    points, feasibility, telemetry = ordered
    return StudyData(points, feasibility, telemetry, found, llms, profiles, seed)


def measured_facts(data: StudyData) -> dict[str, Any]:
    """Return what every study's page says of its measurements."""
    runs = [cell.run for cell in data.cells]
    infeasible = [
        f"{run.llm_id} on {run.gpu_profile_id} ({run.variant_id}): {run.verdict.reason}"
        for run in runs
        if not run.verdict.is_feasible
    ]
    distinct = {
        key: sorted({own for run in runs if (own := of_run(run))})
        for key, (_, of_run) in _OF_RUNS.items()
    }
    return distinct | {
        "n_cells": len(runs),
        "n_infeasible_cells": len(infeasible),
        "infeasible": sorted({*infeasible}),
        "n_points": len(data.points),
        "n_requests": int(data.points["n_ok"].sum() + data.points["n_failed"].sum()),
        "warnings": warnings(frame_rows(data.points)),
    }


def study_document(
    name: str, analysis: Analysis, facts: Mapping[str, Any], origin: Mapping[str, Any]
) -> Document:
    """Return a study's page and numbers; `facts` are of `measured_facts`."""
    data = {
        "study": name,
        "title": TITLES[name],
        "summary": analysis.summary,
        "numbers": jsonable(analysis.numbers),
        "measured": jsonable({**facts, "provenance": origin}),
    }
    cautions = []
    for warning in facts["warnings"]:
        count = f"{warning['n_points']} of {facts['n_points']} points"
        places = "; ".join(doubtful_places(warning))
        cautions.append(Note(f"{warning['text']}: {count} ({places}).", "warning"))
    size = (
        f"{facts['n_cells']} cells, {facts['n_infeasible_cells']} of them infeasible; "
        f"{facts['n_points']} points; {facts['n_requests']} measured requests"
    )
    rows = [(label, ", ".join(facts[key]) or "not known") for key, (label, _) in _OF_RUNS.items()]
    notes = [Note(f"{line}.") for line in facts["infeasible"]]
    measured = Section(
        "What was measured", [*notes, Facts([*rows, ("Size", size)])], key="measured"
    )
    blocks: list[Block] = [Headline(analysis.summary), *cautions, *analysis.sections, measured]
    return Document(TITLES[name], blocks, data, origin=origin)


def doubtful_places(warning: Mapping[str, Any]) -> list[str]:
    """Write where a warning (`points.metrics.warnings`) applies, and at which levels."""
    places = []
    for place in warning["places"]:
        parts = [place_words(place), place["workload_id"], place["scenario_id"]]
        parts += [place["variant_id"]] if place["variant_id"] != "default" else []
        places.append(f"{', '.join(parts)} at {', '.join(map(level_words, place['levels']))}")
    return places
