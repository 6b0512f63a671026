"""What a study's analysis gets and gives, the blocks of its page, what runs are judged by; and from
measured cells to a study's page, its figures and its numbers."""

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
    seed: int = 0  # of whatever an analysis draws

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
    notes = [Note(each) for each in text.split("\n\n") if each]
    return Section(title, [*notes, *charts, *([table] if table else [])])


def table_of(frame: pd.DataFrame, columns: str, **labels: str) -> Table:
    """Return the table of a frame's columns (spaces between); `labels` go before `LABELS`."""
    found = {name: name.replace("_", " ").capitalize() for name in columns.split()}
    found |= {name: label for name, label in {**LABELS, **labels}.items() if name in found}
    return Table.of_frame(frame, found)


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
    """Return a curve of `y` over `x` for each group of the columns `by` (spaces between), named by
    the first column and those that vary; with bars (`<y>_low`, `<y>_high`), rings (`is_knee`),
    hollow points (not `fits`), and levels if it `has_levels`."""
    first, *others = columns = by.split()
    named = [first, *(n for n in others if (rows.groupby(first)[n].nunique() > 1).any())]
    curves = []
    for _, own in rows.groupby(columns, sort=False):
        curve = Curve(
            ", ".join(str(own[name].iloc[0]) for name in named),
            own[x],
            own[y],
            own.get(f"{y}_low"),
            own.get(f"{y}_high"),
            labels=[*map(level_words, own["level"])] if has_levels else (),
            ringed=np.flatnonzero(own.get("is_knee", ())).tolist(),
            hollow=np.flatnonzero(~own.get("fits", pd.Series(dtype=bool))).tolist(),
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
        Panel(", ".join(key), x_axis, y_axis, curves_of(own, curves_by, x, y, has_levels=not axes))
        for key, own in rows.groupby(by.split(), sort=False)
    ]


def place_words(row: Mapping[str, str]) -> str:
    """Write which LLM on which GPU profile a row is of."""
    return f"{row['llm_id']} on {row['gpu_profile_id']}"


def device_section(
    title: str, text: str, rows: pd.DataFrame, columns: str, axis: Axis, x: str
) -> Section:
    """Return what devices reported over a column `x`, as panels and a table."""
    known = [name for name in columns.split() if rows[name].notna().any()]
    if absent := [LABELS[name] for name in columns.split() if name not in known]:
        text += f"\n\nNot reported by the devices: {'; '.join(absent)}."
    panels = []
    for name in known:
        is_share = name.partition("_")[2] in USES
        y = Axis("Fraction" if is_share else "", low=0, high=1.05 if is_share else None)
        own = rows[rows[name].notna()]
        lines = curves_of(own, "llm_id gpu_profile_id workload_id", x, name)
        panels.append(Panel(LABELS[name], axis, y, lines))
    table = table_of(rows, f"llm_id gpu_profile_id {x} {' '.join(known)}")
    return part(title, text, panels, table if known else None)


class Finding(NamedTuple):
    """A claim of a paper, and what was seen here."""

    claim: str
    here: str
    holds: bool | None  # None where what could tell was not measured, or shows neither


def findings_table(found: Sequence[Finding], claim: str) -> Table:
    """Return one row per finding; `claim` is the label of its first column."""
    words = {None: "not known", True: "yes", False: "no"}
    rows = [(each.claim, each.here, words[each.holds]) for each in found]
    return Table((claim, "Here", "Holds"), rows, words=(0, 1, 2))


def findings_words(found: Sequence[Finding], whose: str) -> str:
    """Count the claims that hold; `whose` is e.g. `the paper's {} findings`."""
    held = [each.holds for each in found]
    return (
        f"of {whose.format(len(found))} {held.count(True)} hold here, {held.count(False)} do not, "
        f"{held.count(None)} cannot be judged."
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
    """Return points with what each measure, and telemetry, give by cell and level."""
    for measure in measures:
        parts = [
            measure(cell).assign(**dict(zip(CELL_KEY, cell.run.ids, strict=True)))
            for cell in data.cells
        ]
        # Infeasible cells have no rows, which would decide the types of columns.
        found = pd.concat([part for part in parts if len(part)] or parts[:1])
        points = points.merge(found.astype({"level": float}), on=LEVEL_KEY, how="left")
    statistics = {f"{what}_{name}": what for name in USES for what in STATISTICS}
    known = data.telemetry.astype(dict.fromkeys(statistics, float)).groupby(LEVEL_KEY)
    return points.merge(known.agg(statistics).reset_index(), on=LEVEL_KEY, how="left")


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
    # Of servers that ran already the weight is unknown, and compares as no limit.
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
"""Of each study's page. The subtitle is what its module says of itself: the question, the paper."""
_OF_RUNS: Mapping[str, tuple[str, Callable[[CellRun], Any]]] = {
    "sources": ("Source", lambda run: run.source),
    "llm_ids": ("LLMs", lambda run: run.key.llm_id),
    "gpu_profile_ids": ("GPU profiles", lambda run: run.key.gpu_profile_id),
    "hosts": ("Host", lambda run: run.origin.host and run.origin.host.processor),
    "gpu_drivers": ("GPU driver", lambda run: run.origin.host and run.origin.host.gpu_driver),
    "engine_versions": ("Engine version", lambda run: run.engine_version),
    "measured_on": ("Measured on", lambda run: run.measured_on),
}
"""What pages say of where cells were measured: key, label and a run's own."""


def write_study(
    name: str,
    cells: Sequence[Path],
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    outputs: Mapping[str, Path],
    seed: int,
) -> None:
    """Analyse the cells (folders) of a study of `TITLES`; write by name of `outputs` the Parquet
    `TABLES`, its page (`html`), `json` (null: not known) and `figures`, a folder whose former
    content goes. The same seed and cells give the same bytes."""
    tables = {table: outputs[table] for table in TABLES}
    aggregate_points(cells, *tables.values())
    data = read_study_data(cells, tables, llms, profiles, seed)
    origin = provenance(tables, seed=seed)
    # What only other studies need is not imported.
    study = import_module(f"sextant.studies.{name}")
    document = study_document(name, study.analyse(data), measured_facts(data), origin)
    subtitle, files = " ".join(str(study.__doc__).split()), ("html", "json", "figures")
    write_page(replace(document, subtitle=subtitle), *(outputs[name] for name in files))


def read_study_data(
    cells: Sequence[Path],
    tables: Mapping[str, Path],
    llms: Mapping[str, LLM],
    profiles: Mapping[str, GPUProfile],
    seed: int,
) -> StudyData:
    """Read a study's cells, and their `TABLES` in that order; InputError if malformed."""
    found = [read_cell(Path(folder)) for folder in cells]
    places = {cell.run.ids: place for place, cell in enumerate(found)}
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
        f"{run.key.llm_id} on {run.key.gpu_profile_id} ({run.key.variant_id}): {run.verdict.reason}"
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
    known = Facts([*rows, ("Size", size)])
    measured = Section("What was measured", [*notes, known], key="measured")
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
