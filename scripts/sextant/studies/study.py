"""The frame of every study: what an analysis gets (`StudyData`) and returns (`Analysis`), the
blocks of its page, common measures of points, and the files of a study (`write_study`)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.base.files import frame_rows, jsonable, provenance, read_parquet
from sextant.base.resources import resource
from sextant.base.sheets import read_yaml
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.pages.blocks import Block, Chart, Document, Facts, Headline, Note, Section, Table
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.page import write_page
from sextant.points.cell_files import MeasuredCell, read_cell
from sextant.points.metrics import N_BLOCKS, POINT_LABELS, warnings
from sextant.points.run import CELL_KEY, CellRun
from sextant.points.summarize import aggregate_points

LEVEL_KEY = [*CELL_KEY, "level"]
SETTING = ["llm_id", "gpu_profile_id", "workload_id", "scenario_id"]
USES = {
    "utilization": "Utilization",
    "memory_utilization": "Memory utilization",
    "sm_active": "SM active",
    "sm_occupancy": "SM occupancy",
}
"""Fractions that devices report."""
STATISTICS = ("mean", "max")


@dataclass(frozen=True)
class StudyData:
    """All that was measured for a study. Tables of the store hold only its cells' rows."""

    points: pd.DataFrame
    feasibility: pd.DataFrame
    telemetry: pd.DataFrame
    cells: Sequence[MeasuredCell]
    llms: Mapping[str, LLM]
    profiles: Mapping[str, GPUProfile]
    seed: int = 0  # of the random numbers of an analysis

    def requests_of(self, point: pd.Series, columns: Sequence[str]) -> pd.DataFrame:
        """Return the ok requests of a point."""
        (cell,) = (cell for cell in self.cells if cell.run.ids == tuple(point[[*CELL_KEY]]))
        rows = cell.requests(["level", "status", *columns])
        return rows[(rows["level"] == point["level"]) & (rows["status"] == "ok")]

    def points_of(self, *kinds: str) -> pd.DataFrame:
        """Return the points of these kinds of scenario."""
        return self.points[self.points["scenario_kind"].isin(kinds)]


@dataclass(frozen=True)
class Analysis:
    """What a study found."""

    summary: str  # the findings in a few sentences, computed from the data
    numbers: Mapping[str, Any]  # for `study.json`; frames become rows, NaN and inf null
    sections: Sequence[Section] = ()


LABELS: Mapping[str, str] = (
    POINT_LABELS
    | read_yaml(resource("column_labels.yaml"))
    | {f"{what}_{name}": f"{label}, {what}" for name, label in USES.items() for what in STATISTICS}
)
"""The label of each column, with its unit; a column without one shows its own name in words."""


def part(
    title: str,
    text: str,
    figure: str | Sequence[Panel] = (),
    table: Table | None = None,
    **layout: Any,
) -> Section:
    """Return a section; `figure` is SVG, or panels that `panels_figure` draws with `layout`."""
    if figure and not isinstance(figure, str):
        figure = panels_figure(figure, title, **({"has_points": True} | layout))

    name = Section(title, ()).anchor
    charts: list[Block] = [Chart(str(figure), name=name)] if figure else []
    notes = [Note(paragraph) for paragraph in text.split("\n\n") if paragraph]
    return Section(title, [*notes, *charts, *([table] if table else [])])


def table_of(frame: pd.DataFrame, columns: str, **labels: str) -> Table:
    """Return the table of a frame's columns (spaces between); `labels` go before `LABELS`."""
    labels_by_column = {name: name.replace("_", " ").capitalize() for name in columns.split()}
    labels_by_column |= {
        name: label for name, label in {**LABELS, **labels}.items() if name in labels_by_column
    }
    return Table.of_frame(frame, labels_by_column)


def level_words(level: float | str) -> str:
    """Write a level as a sheet does: 8, 0.5, inf."""
    return f"{float(level):g}"


def level_axis(label: str, levels: Sequence[float] | pd.Series, *, is_log: bool = True) -> Axis:
    """Return an axis with a tick at each level that was measured."""
    ticks = sorted({*levels})
    return Axis(label, is_log=is_log, ticks=ticks, names=[level_words(level) for level in ticks])


def curves_of(
    rows: pd.DataFrame, by: str, x: str, y: str, *, has_levels: bool = False
) -> list[Curve]:
    """Return a curve of `y` over `x` for each group of the columns `by` (spaces between).

    A curve is named by the first column and the other columns that vary. Other columns of `rows`
    add bars (`<y>_low`, `<y>_high`), rings (`is_knee`) and hollow points (not `fits`);
    `has_levels` writes the level at each point.
    """
    first, *others = columns = by.split()
    named = [first, *(n for n in others if (rows.groupby(first)[n].nunique() > 1).any())]
    curves = []
    for _, group in rows.groupby(columns, sort=False):
        curve = Curve(
            ", ".join(str(group[name].iloc[0]) for name in named),
            group[x],
            group[y],
            group.get(f"{y}_low"),
            group.get(f"{y}_high"),
            labels=[*map(level_words, group["level"])] if has_levels else (),
            ringed=np.flatnonzero(group.get("is_knee", ())).tolist(),
            hollow=np.flatnonzero(~group.get("fits", pd.Series(dtype=bool))).tolist(),
        )
        curves.append(curve)

    return curves


def panels_of(
    rows: pd.DataFrame,
    by: str,
    curves_by: str,
    x: str,
    y: str,
    axes: tuple[Axis, Axis] | None = None,
) -> list[Panel]:
    """Return a panel for each group of `by` with its curves, by default on log axes."""
    x_axis, y_axis = axes or (Axis(LABELS[x], is_log=True), Axis(LABELS[y], is_log=True))
    return [
        Panel(
            ", ".join(key), x_axis, y_axis, curves_of(group, curves_by, x, y, has_levels=not axes)
        )
        for key, group in rows.groupby(by.split(), sort=False)
    ]


def place_words(row: Mapping[str, str]) -> str:
    """Write which LLM on which GPU profile a row is of."""
    return f"{row['llm_id']} on {row['gpu_profile_id']}"


def device_section(
    title: str, text: str, rows: pd.DataFrame, columns: str, axis: Axis, x: str
) -> Section:
    """Return what devices reported over a column `x`, as panels and a table."""
    reported = [name for name in columns.split() if rows[name].notna().any()]
    if absent := [LABELS[name] for name in columns.split() if name not in reported]:
        text += f"\n\nNot reported by the devices: {'; '.join(absent)}."

    panels = []
    for name in reported:
        is_share = name.partition("_")[2] in USES
        y = Axis("Fraction" if is_share else "", low=0, high=1.05 if is_share else None)
        rows_with_value = rows[rows[name].notna()]
        lines = curves_of(rows_with_value, "llm_id gpu_profile_id workload_id", x, name)
        panels.append(Panel(LABELS[name], axis, y, lines))

    table = table_of(rows, f"llm_id gpu_profile_id {x} {' '.join(reported)}")

    return part(title, text, panels, table if reported else None)


class Finding(NamedTuple):
    """A claim of a paper, and what was seen here."""

    claim: str
    here: str
    holds: bool | None  # None: it was not measured, or the figures show neither


def findings_table(findings: Sequence[Finding], claim: str) -> Table:
    """Return one row per finding; `claim` is the label of its first column."""
    words = {None: "not known", True: "yes", False: "no"}
    rows = [(finding.claim, finding.here, words[finding.holds]) for finding in findings]
    return Table((claim, "Here", "Holds"), rows, words=(0, 1, 2))


def findings_words(findings: Sequence[Finding], whose: str) -> str:
    """Count the claims that hold; `whose` is e.g. `the paper's {} findings`."""
    holds = [finding.holds for finding in findings]
    return (
        f"of {whose.format(len(holds))} {holds.count(True)} hold here, "
        f"{holds.count(False)} do not, {holds.count(None)} cannot be judged."
    )


def mean_blocks(values: Sequence[float] | np.ndarray, n_blocks: int = N_BLOCKS) -> np.ndarray:
    """Return the means of `n_blocks` runs of successive values, fewer if there are fewer."""
    parts = np.array_split(np.asarray(values, float), max(1, min(n_blocks, len(values))))
    return np.array([part.mean() for part in parts if len(part)])


def with_measures(
    points: pd.DataFrame,
    data: StudyData,
    measures: Sequence[Callable[[MeasuredCell], pd.DataFrame]],
) -> pd.DataFrame:
    """Return points with the columns of each measure and of telemetry, by cell and level."""
    for measure in measures:
        parts = [
            measure(cell).assign(**dict(zip(CELL_KEY, cell.run.ids, strict=True)))
            for cell in data.cells
        ]
        # Infeasible cells have no rows, which would decide the types of columns.
        measured = pd.concat([part for part in parts if len(part)] or parts[:1])
        points = points.merge(measured.astype({"level": float}), on=LEVEL_KEY, how="left")

    statistics = {f"{what}_{name}": what for name in USES for what in STATISTICS}
    telemetry = data.telemetry.astype(dict.fromkeys(statistics, float)).groupby(LEVEL_KEY)
    return points.merge(telemetry.agg(statistics).reset_index(), on=LEVEL_KEY, how="left")


def request_times(cell: MeasuredCell) -> pd.DataFrame:
    """Return by level mean processing and latency of ok requests, and the largest request."""
    lengths = ["requested_input_tokens", "requested_output_tokens"]
    rows = cell.requests(["level", "scheduled_s", "sent_s", "last_token_s", *lengths, "status"])
    ended_s = rows["last_token_s"].where(rows["status"] == "ok")
    rows["request_tokens"] = rows[lengths].sum(axis=1)
    rows["mean_processing_ms"] = (ended_s - rows["sent_s"]) * 1e3
    rows["mean_latency_ms"] = (ended_s - rows["scheduled_s"]) * 1e3
    statistics = {"mean_processing_ms": "mean", "mean_latency_ms": "mean", "request_tokens": "max"}
    return rows.groupby("level").agg(statistics).reset_index()


def fits_memory(points: pd.DataFrame) -> pd.Series:
    """Return, per point, whether the requests of its level fit the batch weights as a whole."""
    weight_tokens = points["batch_weight_tokens"] * points["replicas"]
    # The weight of a server that ran already is unknown; NaN compares as no limit.
    return ~(points["level"] * points["request_tokens"] > weight_tokens)


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
"""Title of each study's page. The subtitle is the docstring of its module: question and paper."""
_OF_RUNS: Mapping[str, tuple[str, Callable[[CellRun], Any]]] = {
    "sources": ("Source", lambda run: run.source),
    "llm_ids": ("LLMs", lambda run: run.key.llm_id),
    "gpu_profile_ids": ("GPU profiles", lambda run: run.key.gpu_profile_id),
    "hosts": ("Host", lambda run: run.origin.host and run.origin.host.processor),
    "gpu_drivers": ("GPU driver", lambda run: run.origin.host and run.origin.host.gpu_driver),
    "engine_versions": ("Engine version", lambda run: run.engine_version),
    "measured_on": ("Measured on", lambda run: run.measured_on),
}
"""Facts of the runs that a page lists: by key, the label, and the value of one run."""


def write_study(
    name: str,
    cells: Sequence[Path],
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    outputs: Mapping[str, Path],
    seed: int,
) -> None:
    """Analyse the cells (folders) of a study of `TITLES`, and write its files.

    `outputs` has their paths by name: the Parquet `TABLES`, the page (`html`), `json` (null: not
    known), and `figures`, a folder whose former content is deleted. The same seed and cells give
    the same bytes.
    """
    tables = {table: outputs[table] for table in TABLES}
    aggregate_points(cells, *tables.values())
    data = read_study_data(cells, tables, llms, profiles, seed)
    origin = provenance(tables, seed=seed)
    # Only this study's module is imported: some import much.
    study = import_module(f"sextant.studies.{name}")
    document = study_document(name, study.analyse(data), measured_facts(data), origin)
    subtitle = " ".join(str(study.__doc__).split())
    files = ("html", "json", "figures")
    write_page(replace(document, subtitle=subtitle), *(outputs[name] for name in files))


def read_study_data(
    cells: Sequence[Path],
    tables: Mapping[str, Path],
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    seed: int,
) -> StudyData:
    """Read a study's cells, and their `TABLES` in that order; InputError if malformed."""
    measured_cells = [read_cell(Path(folder)) for folder in cells]
    places = {cell.run.ids: number for number, cell in enumerate(measured_cells)}
    ordered = []
    for name in TABLES:
        rows = read_parquet(tables[name]).to_pandas()
        keys = rows[[*CELL_KEY]].itertuples(index=False, name=None)
        order = pd.Series([places[key] for key in keys], dtype=int).sort_values(kind="stable")
        ordered.append(rows.iloc[order.index].reset_index(drop=True))

    points, feasibility, telemetry = ordered

    return StudyData(points, feasibility, telemetry, measured_cells, llms, profiles, seed)


def measured_facts(data: StudyData) -> dict[str, Any]:
    """Return what every study's page says of its measurements."""
    runs = [cell.run for cell in data.cells]
    infeasible = [
        f"{run.key.llm_id} on {run.key.gpu_profile_id} ({run.key.variant_id}): {run.verdict.reason}"
        for run in runs
        if not run.verdict.is_feasible
    ]
    distinct = {
        key: sorted({fact for run in runs if (fact := of_run(run))})
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
    run_facts = Facts([*rows, ("Size", size)])
    measured = Section("What was measured", [*notes, run_facts], key="measured")
    blocks: list[Block] = [Headline(analysis.summary), *cautions, *analysis.sections, measured]

    return Document(TITLES[name], blocks, data, origin=origin)


def doubtful_places(warning: Mapping[str, Any]) -> list[str]:
    """Write where a warning (`points.metrics.warnings`) applies, and at which levels."""
    places = []
    for affected in warning["places"]:
        parts = [place_words(affected), affected["workload_id"], affected["scenario_id"]]
        parts += [affected["variant_id"]] if affected["variant_id"] != "default" else []
        places.append(f"{', '.join(parts)} at {', '.join(map(level_words, affected['levels']))}")
    return places
