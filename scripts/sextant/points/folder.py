"""Reads a characterization from a folder of data; docs/adding.md has its layout."""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from sextant import PROJECT
from sextant.base.errors import InputError
from sextant.base.sheets import check, load_sheet, read_yaml
from sextant.experiment.sheets import DEFAULT_VARIANT, GpuFeatureRow, LlmFeatureRow
from sextant.facts.gpu import GPUS, GPUProfile, gpu_path, load_gpu, profile_from_row
from sextant.facts.llm import LLM, load_llm
from sextant.points.characterization import (
    FILE,
    Characterization,
    Description,
    DescriptionFile,
    FeasibilityRow,
    FolderLlmRow,
    FolderProfileRow,
    check_latencies,
    read_points,
)
from sextant.points.features import features_of_sheets
from sextant.points.frame import IDENTIFIERS, LATENCIES, LOAD, complete
from sextant.points.verdict import OUTCOMES, Outcome, Verdict, status_of

SHIPPED = PROJECT / "resources" / "characterizations"
DEFAULT_SOURCES = ("archive:inferencex", "archive:llm-pilot")
"""What answers rest on where nothing else is named."""


def load_folder(folder: str | Path) -> Characterization:
    """Read a characterization from its folder.

    LLMs that cannot be sized, e.g. of an unknown family, are left out with their points.

    Raises InputError: a file is missing or malformed; names file, row, field and fix.
    """
    folder = Path(folder)
    about = load_description(folder)
    (llms, unknown), profiles = _llms(folder, about), _profiles(folder)
    points = _points(folder, about, [*llms, *unknown], profiles)
    n_of, is_known = points["llm_id"].value_counts(), points["llm_id"].isin(list(llms))
    points = points[is_known].reset_index(drop=True)
    setting = {name: getattr(about, name) for name in ("source", "workload_id", "scenario_id")}
    features = None
    if about.llm_features and about.gpu_features:
        llm_rows = load_sheet(folder / about.llm_features, LlmFeatureRow, "llm_id")
        gpu_rows = load_sheet(folder / about.gpu_features, GpuFeatureRow, "gpu_id")
        features = features_of_sheets(llm_rows, gpu_rows, profiles)
    return Characterization(
        **setting,
        points=points.assign(**setting, variant_id=DEFAULT_VARIANT),
        llms=llms,
        profiles=profiles,
        predictors=[],
        features=features,
        feasibility=_feasibility(folder, about, points, unknown).assign(**setting),
        longest_request_tokens=None,
        descriptions=(about,),
        left_out=tuple(
            f"{about.source}: {llm_id} is left out with {n_of.get(llm_id, 0)} points: {error}"
            for llm_id, error in unknown.items()
        ),
    )


def _llms(folder: Path, about: Description) -> tuple[dict[str, LLM], dict[str, InputError]]:
    """Return the LLMs, and for each of the others why it cannot be sized."""
    llms, unknown = {}, {}
    for row in load_sheet(folder / "llms.tsv", FolderLlmRow, "llm_id"):
        config = folder / row["config"]
        if not config.is_file():
            file, fix = folder / "llms.tsv", "save the LLM's config.json there, or correct the path"
            problem = f"{row['llm_id']} has no configuration: there is no file {config}"
            raise InputError(problem, file=file, row=row.line, field="config", fix=fix)
        try:
            llms[row["llm_id"]] = load_llm(config, row.get("dtype", about.dtype))
        except InputError as error:
            if error.field is None:  # the file itself is damaged
                raise
            unknown[row["llm_id"]] = error
    if not llms:
        raise next(iter(unknown.values()))
    return dict(sorted(llms.items())), unknown


def _profiles(folder: Path) -> dict[str, GPUProfile]:
    profiles = {}
    for row in load_sheet(folder / "gpu_profiles.tsv", FolderProfileRow, "gpu_profile_id"):
        own = gpu_path(folder / "gpus", row["gpu_id"]).is_file()
        try:
            gpu = load_gpu(folder / "gpus" if own else GPUS, row["gpu_id"])
        except InputError as error:
            if own or gpu_path(GPUS, row["gpu_id"]).is_file():
                raise
            fix = f"write its facts as gpus/{row['gpu_id']}.yaml in the folder, or use one of "
            fix += ", ".join(sorted(path.stem for path in GPUS.glob("*.yaml")))
            file, field = folder / "gpu_profiles.tsv", "gpu_id"
            raise InputError(error.problem, file=file, row=row.line, field=field, fix=fix) from None
        profiles[row["gpu_profile_id"]] = profile_from_row(row, gpu)
    return dict(sorted(profiles.items()))


def _points(
    folder: Path, about: Description, llms: Collection[str], profiles: Mapping[str, GPUProfile]
) -> pd.DataFrame:
    """Return the points, complete, after the checks that no schema can express."""
    path = folder / "points.csv"
    if not path.is_file():
        fix = "write the points there, one row per measurement"
        raise InputError("no points.csv", file=folder, fix=fix)
    points = read_points(path)
    try:
        _check_names(points["llm_id"], llms, folder / "llms.tsv")
        _check_names(points["gpu_profile_id"], profiles, folder / "gpu_profiles.tsv")
        without = points.reindex(columns=LOAD).isna().all(axis=1)
        if without.any():
            problem, fix = "neither users nor a request rate", "fill in one of them"
            field = "users, request_rate_rps"
            raise InputError(problem, row=without.idxmax(), field=field, fix=fix)
        _check_averages(points, about.statistic)
        check_latencies(points)
        points = complete(points, about.defaults)
        _check_layout(points, profiles)
    except InputError as error:
        raise error.at(file=path) from None
    return points.reset_index(drop=True)


def _check_names(names: pd.Series, known: Collection[str], sheet: Path) -> None:
    unknown = names[~names.isin(list(known))]
    if len(unknown):
        problem = f"{unknown.iloc[0]!r} is not in {sheet.name}"
        fix = f"add a row for it to {sheet}, or correct the name"
        raise InputError(problem, row=unknown.index[0], field=names.name, fix=fix)


def _check_averages(points: pd.DataFrame, statistic: str) -> None:
    """Refuse a point that has only the kind of average that its source does not publish."""
    own, other = ("mean", "median") if statistic == "mean" else ("median", "mean")
    problem = f"{other} without {own}, but the statistic of {FILE} is {statistic}"
    for latency in LATENCIES:
        values = points.reindex(columns=[f"{own}_{latency}", f"{other}_{latency}"])
        wrong = values.iloc[:, 0].isna() & values.iloc[:, 1].notna()
        if wrong.any():
            fix = f"move the values to {own}_{latency}, or correct the statistic"
            raise InputError(problem, row=wrong.idxmax(), field=f"{other}_{latency}", fix=fix)


def _check_layout(points: pd.DataFrame, profiles: Mapping[str, GPUProfile]) -> None:
    """Refuse a layout that needs more devices than its profile has.

    Copies of attention may be counted besides `tensor_parallel` (vLLM) or within it (SGLang).
    """
    names = points["gpu_profile_id"]
    n_gpus = names.map({name: each.n_gpus for name, each in profiles.items()})
    fix = "correct it, or name the profile that has all devices of one replica"
    for field in ("tensor_parallel", "data_parallel", "expert_parallel"):
        wrong = (points[field] > n_gpus).fillna(False)
        if wrong.any():
            line = wrong.idxmax()
            problem = f"{points.loc[line, field]} is more than the {n_gpus[line]} GPUs of "
            raise InputError(problem + names[line], row=line, field=field, fix=fix)


def _feasibility(
    folder: Path, about: Description, points: pd.DataFrame, unknown: Collection[str]
) -> pd.DataFrame:
    """Return the verdict of each pair; without `feasibility.csv`, pairs with points were served."""
    path = folder / "feasibility.csv"
    pairs = points[IDENTIFIERS].drop_duplicates()
    if not path.is_file():
        return feasibility_table(pairs.assign(status="measured").to_dict("records"), about.source)
    rows = load_sheet(path, FeasibilityRow, delimiter=",")
    served = set(pairs.itertuples(index=False, name=None))
    for row in rows:
        pair, status = (row["llm_id"], row["gpu_profile_id"]), row["status"]
        if status != "measured" and pair in served:
            problem = f"{' on '.join(pair)} is {status}, but has points"
            fix = "write `measured`, or remove the points"
            raise InputError(problem, file=path, row=row.line, field="status", fix=fix)
        if (verdict := row.get("verdict")) and status_of(Outcome(verdict)) != status:
            fix = f"write `{status_of(Outcome(verdict))}`, or remove the verdict"
            problem = f"{status} contradicts the verdict {verdict}"
            raise InputError(problem, file=path, row=row.line, field="status", fix=fix)
    known = [row for row in rows if row["llm_id"] not in unknown]
    return feasibility_table(known, about.source)


def load_description(folder: Path) -> Description:
    """Read the description of a folder's points.

    Raises InputError: there is none, or a key is unknown, missing, there twice or has a wrong
    value.
    """
    path = folder / FILE
    facts = read_yaml(path)
    check(DescriptionFile, facts, path)
    return Description(**facts)


def feasibility_table(rows: Iterable[Mapping[str, Any]], source: str) -> pd.DataFrame:
    """Return rows of table `feasibility` for rows of `feasibility.csv`."""
    tried = pd.DataFrame(rows, columns=[*IDENTIFIERS, "status", "reason", "verdict"])
    reasons = {name: Verdict(outcome, source=source).reason for name, outcome in OUTCOMES.items()}
    status = tried["status"]
    return tried[IDENTIFIERS].assign(
        reason=tried["reason"].astype("str").fillna(status.map(reasons)),
        is_feasible=status == "measured",
        verdict=tried["verdict"].astype("object").fillna(status.map(OUTCOMES)),
        memory_utilization=float("nan"),
    )


@cache
def shipped_sources() -> dict[str, Path]:
    """Return the folder of each characterization that ships, by its source."""
    folders = sorted(path.parent for path in SHIPPED.glob(f"*/{FILE}"))
    return {load_description(folder).source: folder for folder in folders}
