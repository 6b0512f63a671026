"""Use cases side by side: what the requests of several workloads look like."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sextant.base.errors import InputError
from sextant.base.files import provenance
from sextant.base.ids import id_of
from sextant.pages.charts import cumulative_curve, panels_figure
from sextant.pages.sections import Section
from sextant.pages.wording import number
from sextant.pages.write import check_outputs, render_sections, write_page
from sextant.report.trace.lengths import SIDES, distribution, distribution_panel, quantile_table
from sextant.workload.draw import open_workload
from sextant.workload.published import load_use_case, use_case_names
from sextant.workload.request_model import RequestModel


def compare_use_cases(models: Mapping[str, RequestModel]) -> dict[str, dict[str, Any]]:
    """Return per use case and side (`input`, `output`) the mean, quantiles and distribution.

    Raises InputError if a model lacks one of the lengths.
    """
    for name, model in models.items():
        for column in SIDES.values():
            if column not in model.parameters:
                problem, fix = f"the workload '{name}' lacks it", "give a model of both lengths"
                raise InputError(problem, field=column, fix=fix)
    return {
        name: {side: _side(model, column) for side, column in SIDES.items()}
        for name, model in models.items()
    }


def _side(model: RequestModel, column: str) -> dict[str, Any]:
    lengths = model.frame[column].to_numpy(float)
    values, place = np.unique(lengths, return_inverse=True)
    return distribution(values, np.bincount(place, model.weights))


def write_use_case_report(
    names_or_paths: Sequence[str | Path], html_out: str | Path, json_out: str | Path
) -> None:
    """Write a page of use cases side by side, and as JSON what `compare_use_cases` returns.

    Given are shipped use cases (`use_case_names()`), request models and workload folders; the last
    part of a path is its name. Raises InputError if one is neither or lacks a length, two are of
    one name, or an output would replace an input or the other output.
    """
    models, files, notes = {}, {}, []
    for given in names_or_paths:
        if str(given) in use_case_names():
            case = load_use_case(str(given))
            models[case.name] = case.model
            notes.append(
                f"{case.name}: {case.description} Lengths after {'; '.join(case.sources)}."
            )
        else:
            path = Path(given)
            name = id_of(path.name if path.is_dir() else path.stem)
            if name in models:
                fix = "give folders or files with names of their own"
                raise InputError(f"there are two workloads '{name}'", file=path, fix=fix)
            models[name] = open_workload(path)
            files[name] = path / "requests.parquet" if path.is_dir() else path
    check_outputs(html_out, json_out, files.values())
    found, origin = compare_use_cases(models), provenance(files)
    section = show_use_cases(found)
    section.notes += notes
    title, subtitle = "Use cases side by side", "Input and output lengths"
    html = render_sections(title, subtitle, [section], origin)
    write_page(html_out, html, json_out, {"use_cases": found, "provenance": origin})


def show_use_cases(found: Mapping[str, Mapping[str, Any]]) -> Section:
    """Return the section of what `compare_use_cases` found."""
    section = Section("Use cases", _takeaway(found))
    panels = []
    for side in SIDES:
        curves = [cumulative_curve(name, case[side]["cdf"]) for name, case in found.items()]
        panels.append(distribution_panel(side, curves, is_log=True))
    svg = panels_figure(panels, "Lengths of the use cases", is_step=True, height_in=2.8)
    section.figures.append((svg, "Cumulative distributions of the lengths of each use case."))
    sides = {f"{name}, {side}": case[side] for name, case in found.items() for side in SIDES}
    section.tables.append(quantile_table(sides))
    return section


def _takeaway(found: Mapping[str, Mapping[str, Any]]) -> str:
    def median(name: str, side: str) -> float:
        return found[name][side]["quantiles"]["median"]

    def extreme(side: str) -> str:
        ranked = sorted(found, key=lambda name: median(name, side))
        low, high = (f"{number(median(name, side))} ({name})" for name in (ranked[0], ranked[-1]))
        return f"from {low} to {high} tokens"

    if len(found) == 1:
        (name,) = found
        medians = tuple(number(median(name, side)) for side in SIDES)
        return f"{name}: the median request has {medians[0]} tokens in and {medians[1]} out."
    return (
        f"Across the {len(found)} workloads the median input goes {extreme('input')}, "
        f"the median output {extreme('output')}."
    )
