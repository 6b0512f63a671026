"""Writes a characterization as a folder of data, to share, or to answer from."""

import csv
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import atomic_folder, atomic_path
from sextant.base.sheets import file_name, load_sheet, write_yaml
from sextant.experiment.sheets import LlmRow
from sextant.facts.gpu import GPUS, gpu_path, profile_row
from sextant.points.characterization import FILE, Characterization, Description
from sextant.points.frame import COLUMNS, IDENTIFIERS, INTERVAL_COLUMNS, LENGTHS, LOAD, SERVING
from sextant.points.verdict import OUTCOMES, Outcome, status_of

_ORDER = [*IDENTIFIERS, *SERVING, *LOAD, *LENGTHS, "measured_on", "run_id"]


def export_folder(
    known: Characterization,
    out: Path,
    *,
    llms: Path,
    licence: str | None = None,
    attribution: str | None = None,
) -> int:
    """Write measured points and what they refer to as a folder; return their number. A
    `characterization.yaml` and an `llms.tsv` that are there stay as they are; without the former,
    licence and attribution have to be given. `llms` is the sheet with the LLMs' configurations,
    which are copied. Raises InputError: the licence is missing, or an LLM is not in the sheet.
    """
    points, tried = known.points, known.feasibility.sort_values(IDENTIFIERS)
    about = None
    if not (out / FILE).is_file():
        if not licence or not attribution:
            fix = "say under which licence the points are, and who measured them"
            problem = f"{out} has no {FILE} yet"
            raise InputError(problem, field="--licence, --attribution", fix=fix)
        about = Description(
            source=known.source,
            licence=licence,
            attribution=attribution,
            statistic="median",
            load="closed_loop" if points["users"].notna().all() else "rate",
            lengths="varying",
            memory_utilization=known.memory_utilization,
            longest_request_tokens=known.longest_request_tokens,
            workload_id=known.workload_id,
            scenario_id=known.scenario_id,
        )
    named = {*points["gpu_profile_id"], *tried["gpu_profile_id"]}
    profiles = [profile_row(profile) for name, profile in known.profiles.items() if name in named]
    with atomic_folder(out, last=FILE) as new:
        if about is not None:
            write_description(new, about)
        if not (out / "llms.tsv").is_file():
            write_table(new / "llms.tsv", _copied_llms(known, new, llms))
        for profile in known.profiles.values():
            gpu = profile.gpu
            if not gpu_path(GPUS, gpu.gpu_id).is_file():
                facts = {key: value for key, value in asdict(gpu).items() if value is not None}
                write_yaml(gpu_path(new / "gpus", gpu.gpu_id), facts)
        write_table(new / "gpu_profiles.tsv", pd.DataFrame(profiles))
        status = tried["verdict"].map(lambda verdict: status_of(Outcome(verdict)))
        rows = tried[IDENTIFIERS].assign(status=status, reason=tried["reason"])
        # Only where the status does not say it.
        more = tried["verdict"].mask(tried["verdict"] == status.map(OUTCOMES))
        rows = rows.assign(verdict=more) if more.notna().any() else rows
        write_table(new / "feasibility.csv", rows)
        # No store has it: `complete` computes it from others.
        write_points(new / "points.csv", points.drop(columns=["mean_nttft_ms"]))
    return len(points)


def _copied_llms(known: Characterization, out: Path, sheet: Path) -> pd.DataFrame:
    configs = {row["llm_id"]: row["config"] for row in load_sheet(sheet, LlmRow, "llm_id")}
    copied = []
    (out / "llms").mkdir()
    for llm_id in sorted(known.points["llm_id"].unique()):
        if llm_id not in configs:
            fix = "add a row for it, or give another sheet (--llms)"
            raise InputError(f"no LLM {llm_id!r}", file=sheet, field="llm_id", fix=fix)
        name = f"llms/{file_name(llm_id)}.json"
        shutil.copyfile(configs[llm_id], out / name)
        copied.append({"llm_id": llm_id, "config": name, "dtype": known.llms[llm_id].dtype})
    return pd.DataFrame(copied)


def write_description(folder: Path, about: Description) -> None:
    """Write `characterization.yaml`, without what is not known."""
    facts = {key: value for key, value in asdict(about).items() if value not in (None, {})}
    write_yaml(folder / FILE, facts)


def write_points(path: Path, points: pd.DataFrame) -> None:
    """Write those columns of points that have a value, intervals last, sorted."""
    columns = [*COLUMNS, *INTERVAL_COLUMNS]
    named = [name for name in columns if name in points and points[name].notna().any()]
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
