"""Writes a characterization of a store as a folder of data."""

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import atomic_path
from sextant.base.ids import file_name
from sextant.base.sheets import load_sheet, write_yaml
from sextant.experiment.sheets import LlmRow
from sextant.facts.gpu import GPUS, gpu_path, profile_row
from sextant.points.characterization import FILE, Characterization, Description
from sextant.points.frame import COLUMNS, IDENTIFIERS, LENGTHS, LOAD, SERVING
from sextant.points.verdict import Kind, Outcome

_FILLED_IN = ["mean_nttft_ms", "mean_tpot_ms", "median_tpot_ms"]
"""Columns that no store has: what is there follows from others."""
_STATUS = {Kind.FITS: "measured", Kind.DOES_NOT_FIT: "too_small"}


def export_folder(
    known: Characterization,
    out: Path,
    *,
    llms: Path,
    licence: str | None = None,
    attribution: str | None = None,
) -> int:
    """Write the points of a store and what they refer to as a folder; return their number.

    A `characterization.yaml` and an `llms.tsv` that are there stay as they are.

    Args:
        known: what a store has of one source.
        out: the folder, made if it is not there.
        llms: the sheet with the LLMs' configurations, which are copied.
        licence: licence of the data, for a folder without a description.
        attribution: who is to be named, for the same.

    Raises:
        InputError: the licence is missing, or an LLM is not in the sheet.
    """
    if not (out / FILE).is_file():
        if not licence or not attribution:
            fix = "say under which licence the points are, and who measured them"
            problem = f"{out} has no {FILE} yet"
            raise InputError(problem, field="--licence, --attribution", fix=fix)
        write_description(out, _description(known, licence, attribution))
    if not (out / "llms.tsv").is_file():
        write_tables(out, {"llms.tsv": _copied_llms(known, out, llms)})
    _write_gpus(known, out)
    write_tables(out, {"gpu_profiles.tsv": _profiles(known), "feasibility.csv": _tried(known)})
    write_points(out / "points.csv", known.points.drop(columns=_FILLED_IN))
    return len(known.points)


def _description(known: Characterization, licence: str, attribution: str) -> Description:
    return Description(
        source=known.source,
        licence=licence,
        attribution=attribution,
        statistic="median",
        load="closed_loop" if known.points["users"].notna().all() else "rate",
        lengths="varying",
        memory_utilization=known.memory_utilization,
        longest_request_tokens=known.longest_request_tokens,
        workload_id=known.workload_id,
        scenario_id=known.scenario_id,
    )


def _copied_llms(known: Characterization, out: Path, sheet: Path) -> list[dict[str, str]]:
    rows = load_sheet(sheet, LlmRow, "llm_id")
    configs = {row["llm_id"]: Path(row["config"]) for row in rows}
    copied = []
    for llm_id in sorted(known.points["llm_id"].unique()):
        if llm_id not in configs:
            fix = "add a row for it, or give another sheet (--llms)"
            raise InputError(f"no LLM {llm_id!r}", file=sheet, field="llm_id", fix=fix)
        name = f"llms/{file_name(llm_id)}.json"
        with atomic_path(out / name) as temporary:
            shutil.copyfile(configs[llm_id], temporary)
        copied.append({"llm_id": llm_id, "config": name, "dtype": known.llms[llm_id].dtype})
    return copied


def _write_gpus(known: Characterization, out: Path) -> None:
    """Write the facts of those GPUs that do not ship."""
    for profile in known.profiles.values():
        gpu = profile.gpu
        if gpu_path(GPUS, gpu.gpu_id).is_file():
            continue
        facts = {key: value for key, value in asdict(gpu).items() if value is not None}
        write_yaml(gpu_path(out / "gpus", gpu.gpu_id), facts)


def _profiles(known: Characterization) -> list[dict[str, Any]]:
    named = {*known.points["gpu_profile_id"], *known.feasibility["gpu_profile_id"]}
    return [profile_row(profile) for name, profile in known.profiles.items() if name in named]


def _tried(known: Characterization) -> list[Mapping[str, Any]]:
    tried = known.feasibility.sort_values(["llm_id", "gpu_profile_id"])
    rows = tried[["llm_id", "gpu_profile_id", "verdict", "reason"]].to_dict("records")
    return [
        {
            "llm_id": row["llm_id"],
            "gpu_profile_id": row["gpu_profile_id"],
            "status": _STATUS.get(Outcome(row["verdict"]).kind, "omitted"),
            "reason": row["reason"],
        }
        for row in rows
    ]


_ORDER = [*IDENTIFIERS, *SERVING, *LOAD, *LENGTHS, "measured_on", "run_id"]


def write_description(folder: Path, about: Description) -> None:
    """Write `characterization.yaml`, without what is not known."""
    facts = {key: value for key, value in asdict(about).items() if value not in (None, {})}
    write_yaml(folder / FILE, facts)


def write_tables(folder: Path, tables: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write rows by the name of their file; a file has the keys of its rows."""
    for name, rows in tables.items():
        write_table(folder / name, pd.DataFrame(rows))


def write_points(path: Path, points: pd.DataFrame) -> None:
    """Write those columns of points that have a value, sorted."""
    named = [name for name in COLUMNS if name in points and points[name].notna().any()]
    order = [name for name in _ORDER if name in named]
    write_table(path, points[named].sort_values(order, kind="stable", na_position="first"))


def write_table(path: Path, rows: pd.DataFrame) -> None:
    """Write a table, its numbers in the fewest digits that give them back; `.tsv` has tabs."""
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        quoting = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(rows.columns)
        for row in rows.itertuples(index=False):
            texts = [_text(value) for value in row]
            # Without quotes the line would be a comment.
            (quoting if texts[0].startswith("#") else writer).writerow(texts)


def _text(value: Any) -> str:
    if pd.isna(value):
        return ""
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(float(value))
    return str(value)
