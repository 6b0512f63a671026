"""Writes the folder of a characterization: from a store or cells, or from published points."""

import csv
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from sextant.base.errors import InputError
from sextant.base.sheets import file_name, load_sheet, write_yaml
from sextant.base.whole_files import atomic_folder, atomic_path
from sextant.experiment.sheets import LlmRow
from sextant.facts.gpu import GPUS, gpu_path, priced, profile_of_id, profile_row
from sextant.points import frame
from sextant.points.characterization import Characterization
from sextant.points.folder import FILE
from sextant.points.folder_sheets import Description
from sextant.points.frame import COLUMNS, IDENTIFIERS, LOAD
from sextant.points.verdict import OUTCOMES, ProbeOutcome, status_of

_ORDER = [*IDENTIFIERS, *frame.SERVING, *LOAD, *frame.LENGTHS, "measured_on", "run_id"]


def export_folder(
    measured: Characterization,
    out: Path,
    *,
    llms: Path,
    licence: str | None = None,
    attribution: str | None = None,
) -> int:
    """Write measured points and what they refer to as a folder; return the number of points.

    An existing `characterization.yaml` or `llms.tsv` in the folder stays; without the former,
    licence and attribution are needed. `llms` is the sheet of the LLMs, whose configurations are
    copied.
    """
    points = measured.points
    feasibility = measured.feasibility.sort_values(IDENTIFIERS)
    status = feasibility["verdict"].map(lambda verdict: status_of(ProbeOutcome(verdict)))
    verdict_rows = feasibility[IDENTIFIERS].assign(status=status, reason=feasibility["reason"])
    # Verdicts are written only where the status says less.
    verdicts = feasibility["verdict"].mask(feasibility["verdict"] == status.map(OUTCOMES))
    if verdicts.notna().any():
        verdict_rows = verdict_rows.assign(verdict=verdicts)

    about = None
    if not (out / FILE).is_file():
        if not licence or not attribution:
            fix = "say under which licence the points are, and who measured them"
            problem = f"{out} has no {FILE} yet"
            raise InputError(problem, field="--licence, --attribution", fix=fix)
        about = measured.description(licence, attribution)

    with atomic_folder(out, last=FILE) as new:
        if about is not None:
            write_description(new, about)
        if not (out / "llms.tsv").is_file():
            write_table(new / "llms.tsv", pd.DataFrame(_copied_llms(measured, new, llms)))
        for gpu in (profile.gpu for profile in measured.profiles.values()):
            if not gpu_path(GPUS, gpu.gpu_id).is_file():  # its facts do not ship
                facts = {key: value for key, value in asdict(gpu).items() if value is not None}
                write_yaml(gpu_path(new / "gpus", gpu.gpu_id), facts)
        used = {*points["gpu_profile_id"], *feasibility["gpu_profile_id"]}
        profiles = [profile for name, profile in measured.profiles.items() if name in used]
        write_table(new / "gpu_profiles.tsv", pd.DataFrame(map(profile_row, profiles)))
        write_table(new / "feasibility.csv", verdict_rows)
        # No store has means of nTTFT: `complete` computes them from other columns.
        write_points(new / "points.csv", points.drop(columns=["mean_nttft_ms"]))
    return len(points)


def _copied_llms(measured: Characterization, out: Path, sheet: Path) -> Iterator[dict[str, str]]:
    """Copy the configurations of the measured LLMs; yield the rows of `llms.tsv`."""
    configs = {row["llm_id"]: row["config"] for row in load_sheet(sheet, LlmRow, "llm_id")}
    (out / "llms").mkdir()
    for llm_id in sorted(measured.points["llm_id"].unique()):
        if llm_id not in configs:
            fix = "add a row for it, or give another sheet (--llms)"
            raise InputError(f"no LLM {llm_id!r}", file=sheet, field="llm_id", fix=fix)
        name = f"llms/{file_name(llm_id)}.json"
        shutil.copyfile(configs[llm_id], out / name)
        yield {"llm_id": llm_id, "config": name, "dtype": measured.llms[llm_id].dtype}


def write_description(folder: Path, about: Description) -> None:
    """Write `characterization.yaml`, without unknown values."""
    facts = {key: value for key, value in asdict(about).items() if value not in (None, {})}
    write_yaml(folder / FILE, facts)


def write_points(path: Path, points: pd.DataFrame) -> None:
    """Write the columns of points that have a value, intervals last; rows are sorted."""
    columns = [*COLUMNS, *frame.INTERVAL_COLUMNS]
    named = [name for name in columns if name in points and points[name].notna().any()]
    order = [name for name in _ORDER if name in named]
    write_table(path, points[named].sort_values(order, kind="stable", na_position="first"))


def write_table(path: Path, rows: pd.DataFrame) -> None:
    """Write a table; numbers have the fewest digits that are read as the same number.

    A `.tsv` is separated by tabs, any other file by commas.
    """
    delimiter = "\t" if path.suffix == ".tsv" else ","
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter, lineterminator="\n")
        quoting = csv.writer(file, delimiter=delimiter, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(rows.columns)
        for row in rows.itertuples(index=False):
            texts = []
            for value in row:
                if pd.isna(value):
                    texts.append("")
                elif isinstance(value, float) and not value.is_integer():
                    texts.append(repr(float(value)))
                else:
                    texts.append(str(int(value) if isinstance(value, float) else value))
            # Without quotes the line would be a comment.
            (quoting if texts[0].startswith("#") else writer).writerow(texts)


def write_published(
    out: Path,
    about: Description,
    points: pd.DataFrame,
    configs: str,
    n_read: int,
    notes: Sequence[str] = (),
) -> str:
    """Write the folder of a characterization, and return a line of counts, with `notes`.

    Column `model` of `points` is the LLM's name on Hugging Face; `/` becomes `__` in its id. An LLM
    without `<llm_id>.json` in `configs` (relative to `out`) is left out. Other files in the folder
    stay. `n_read` measurements were read. InputError: no LLM is left, or a GPU profile is unknown.
    """
    folder = (out / configs).resolve()  # `out` need not be there yet
    points = points.assign(llm_id=points["model"].str.replace("/", "__", regex=False))
    is_known = points["llm_id"].map(lambda name: (folder / f"{name}.json").is_file()).astype(bool)
    if not is_known.any():
        fix = f"save it as {points['llm_id'].iloc[0]}.json there, or name the LLM (--llm) or "
        fix += "another folder"
        problem = f"no config.json of {points['model'].iloc[0]}"
        raise InputError(problem, file=folder, field="--configs", fix=fix)
    n_unknown = points.loc[~is_known, "model"].value_counts().sort_index()
    points = points[is_known]

    llm_ids = sorted(points["llm_id"].unique())
    llms = [{"llm_id": name, "config": f"{configs}/{name}.json"} for name in llm_ids]
    profiles = [profile_of_id(name) for name in points["gpu_profile_id"].unique()]
    profiles.sort(key=lambda profile: (profile.gpu.gpu_id, profile.n_gpus))
    # The publishers state no prices.
    rows = [profile_row(priced(profile, "aws") or profile) for profile in profiles]

    with atomic_folder(out, last=FILE) as new:
        write_description(new, about)
        write_table(new / "llms.tsv", pd.DataFrame(llms))
        write_table(new / "gpu_profiles.tsv", pd.DataFrame(rows))
        write_points(new / "points.csv", points)
    left_out = [f"{n} left out of {name}, without a config.json" for name, n in n_unknown.items()]
    return "; ".join([f"{len(points):,} points of {n_read:,} measurements", *notes, *left_out])
