"""A study as one page that refers to no other file, and what it rests on."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.pages.plain import plain
from sextant.pages.render import render
from sextant.pages.words import number
from sextant.report.tables import warnings
from sextant.studies.data import Analysis, Cell, Section, StudyData
from sextant.studies.measures import level_words
from sextant.studies.registry import Study

_TEMPLATE = Path(__file__).with_name("study.html.j2")
_SLUG = re.compile(r"[^a-z0-9]+")


def render_page(study: Study, analysis: Analysis, facts: Mapping[str, Any]) -> str:
    """Return a study's page; all text is escaped, only the figures' SVG is taken as it is."""
    filters = {
        "paragraphs": _paragraphs,
        "cells": _cells,
        "is_number": _is_number,
        "key": section_key,
        "level": level_words,
    }
    return render(_TEMPLATE, filters, study=study, analysis=analysis, facts=facts)


def section_key(section: Section) -> str:
    """Return a section's name for links and files."""
    return _SLUG.sub("-", section.title.lower()).strip("-")


def page_facts(data: StudyData, origin: Mapping[str, Any]) -> dict[str, Any]:
    """Return what every study's page says of its measurements.

    Keys: `sources, llm_ids, gpu_profile_ids, hosts, gpu_drivers, engine_versions, measured_on`
    (days), `n_cells, n_infeasible_cells, n_points, n_requests, warnings, provenance`.
    """
    runs = [cell.run for cell in data.cells]
    n_requests = data.points["n_ok"].sum() + data.points["n_failed"].sum()
    return {
        "sources": _distinct(run["source"] for run in runs),
        "llm_ids": _distinct(run["llm_id"] for run in runs),
        "gpu_profile_ids": _distinct(run["gpu_profile_id"] for run in runs),
        "hosts": _distinct((run["host"] or {}).get("processor") for run in runs),
        "gpu_drivers": _distinct((run["host"] or {}).get("gpu_driver") for run in runs),
        "engine_versions": _distinct((run["server"] or {}).get("version") for run in runs),
        "measured_on": _distinct((run.get("started_at") or "")[:10] or None for run in runs),
        "n_cells": len(runs),
        "n_infeasible_cells": sum(not run["is_feasible"] for run in runs),
        "infeasible": _infeasible(data.cells),
        "n_points": len(data.points),
        "n_requests": int(n_requests),
        "warnings": warnings(plain(data.points)),
        "provenance": origin,
    }


def _infeasible(cells: Sequence[Cell]) -> list[str]:
    """Return in words which LLM does not fit where, and why."""
    return _distinct(
        f"{cell.run['llm_id']} on {cell.run['gpu_profile_id']} ({cell.run['variant_id']}): "
        f"{cell.run['reason']}"
        for cell in cells
        if not cell.run["is_feasible"]
    )


def _distinct(values) -> list[str]:
    return sorted({value for value in values if value is not None})


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in text.split("\n\n") if part.strip()]


def _cells(table: pd.DataFrame) -> list[list[tuple[str, bool]]]:
    """Return a table's cells as text, and whether each is a number."""
    columns = [table[name] for name in table.columns]
    return [[_cell(column.iloc[row]) for column in columns] for row in range(len(table))]


def _is_number(table: pd.DataFrame) -> list[bool]:
    """Tell of each column whether it has numbers, which stand right."""
    return [
        any(is_number for _, is_number in column) for column in zip(*_cells(table), strict=True)
    ]


def _cell(value: Any) -> tuple[str, bool]:
    if isinstance(value, str):
        return value, False
    if pd.isna(value):
        return "–", True
    if isinstance(value, bool) or str(getattr(value, "dtype", "")) == "bool":
        return ("yes" if value else "no"), False
    is_whole = float(value).is_integer() and abs(value) < 1e15
    return number(int(value) if is_whole else float(value)), True
