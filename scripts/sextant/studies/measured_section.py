"""What a study's page says of its measurements: what was measured where, and what is doubtful."""

from collections.abc import Iterable, Mapping
from typing import Any

from sextant.base.rows import Row, frame_rows
from sextant.pages.sections import Section, Table
from sextant.store.doubts import warnings
from sextant.studies.labels import level_words, place_words
from sextant.studies.study_data import StudyData

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
