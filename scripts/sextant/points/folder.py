"""Reads a characterization's folder: its description, LLMs, GPU profiles, points and verdicts.

An LLM whose configuration cannot be sized is left out with its points, and so are points that no
memory could hold: the `Characterization` says which. Anything else that is wrong is an InputError.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base import sheets
from sextant.base.errors import InputError
from sextant.base.resources import resource
from sextant.base.whole_files import settle
from sextant.experiment import sheets as row_types
from sextant.facts.answer_times import requests_decoding
from sextant.facts.engine import Memory, memory_of
from sextant.facts.gpu import GPUS, GPUProfile, gpu_path, load_gpu, profile_from_row
from sextant.facts.llm import LLM, load_llm, served
from sextant.pages.words import plural
from sextant.points import frame
from sextant.points.characterization import Characterization
from sextant.points.folder_sheets import (
    Description,
    DescriptionFile,
    FeasibilityRow,
    FolderLlmRow,
    FolderProfileRow,
    check_latencies,
    read_points,
)
from sextant.points.frame import IDENTIFIERS, LOAD
from sextant.points.verdict import OUTCOMES, ProbeOutcome, Verdict, status_of

FILE = "characterization.yaml"
SHIPPED = resource("characterizations")


@cache
def shipped_sources() -> dict[str, Path]:
    """Return the folder of each characterization that ships, by its source."""
    folders = sorted(path.parent for path in SHIPPED.glob(f"*/{FILE}"))
    return {load_description(folder).source: folder for folder in folders}


def load_description(folder: Path) -> Description:
    """Read a folder's `characterization.yaml`; InputError if it is missing or malformed."""
    facts = sheets.read_yaml(folder / FILE)
    sheets.check_fields(DescriptionFile, facts, folder / FILE)
    return Description(**facts)


def load_folder(folder: str | Path) -> Characterization:
    """Read a folder, without LLMs that cannot be sized; InputError: file, row, field, fix."""
    folder = Path(folder)
    settle(folder)
    about = load_description(folder)
    llms, not_sized = _llms(folder, about)
    profiles = _profiles(folder)

    points = _points(folder, about, [*llms, *not_sized], profiles)
    n_points = points["llm_id"].value_counts()
    left_out = [
        f"{about.source}: {llm_id} is left out with {n_points.get(llm_id, 0)} points: {error}"
        for llm_id, error in not_sized.items()
    ]
    points = points[points["llm_id"].isin(list(llms))]

    impossible = _impossible(points, llms, profiles)
    left_out += [
        f"{about.source}: {plural(n, 'point')} of {llm_id} on {profile_id} "
        f"{'are' if n > 1 else 'is'} left out as wrong: more requests would decode than the "
        "GPUs' memory holds, even with a KV cache of 4 bits a number"
        for (llm_id, profile_id), n in points[impossible].groupby(IDENTIFIERS).size().items()
    ]
    points = points[~impossible].reset_index(drop=True)

    setting = {name: getattr(about, name) for name in ("source", "workload_id", "scenario_id")}
    features = None
    if about.llm_features and about.gpu_features:
        llm_rows = sheets.load_sheet(folder / about.llm_features, row_types.LlmFeatureRow, "llm_id")
        gpu_rows = sheets.load_sheet(folder / about.gpu_features, row_types.GpuFeatureRow, "gpu_id")
        features = frame.features_of_sheets(llm_rows, gpu_rows, profiles)

    return Characterization(
        **setting,
        points=points.assign(**setting, variant_id=row_types.DEFAULT_VARIANT),
        llms=llms,
        profiles=profiles,
        features=features,
        feasibility=_feasibility(folder, about, points, not_sized).assign(**setting),
        descriptions=(about,),
        left_out=tuple(left_out),
    )


def _llms(folder: Path, about: Description) -> tuple[dict[str, LLM], dict[str, InputError]]:
    """Return the facts of each LLM, and why others cannot be sized; InputError: none can."""
    llms = {}
    not_sized = {}
    for row in sheets.load_sheet(folder / "llms.tsv", FolderLlmRow, "llm_id"):
        config = folder / row["config"]
        if not config.is_file():
            fix = "save the LLM's config.json there, or correct the path"
            problem = f"{row['llm_id']} has no configuration: there is no file {config}"
            raise row.error(problem, "config", fix)
        try:
            llms[row["llm_id"]] = load_llm(config, row.get("dtype", about.dtype))
        except InputError as error:
            if error.field is None:  # the file itself is damaged
                raise
            not_sized[row["llm_id"]] = error
    if not llms:
        raise next(iter(not_sized.values()))
    return dict(sorted(llms.items())), not_sized


def _profiles(folder: Path) -> dict[str, GPUProfile]:
    profiles = {}
    for row in sheets.load_sheet(folder / "gpu_profiles.tsv", FolderProfileRow, "gpu_profile_id"):
        is_in_folder = gpu_path(folder / "gpus", row["gpu_id"]).is_file()
        try:
            gpu = load_gpu(folder / "gpus" if is_in_folder else GPUS, row["gpu_id"])
        except InputError as error:
            if is_in_folder or gpu_path(GPUS, row["gpu_id"]).is_file():
                raise
            fix = f"write its facts as gpus/{row['gpu_id']}.yaml in the folder, or use one of "
            fix += ", ".join(sorted(path.stem for path in GPUS.glob("*.yaml")))
            raise row.error(error.problem, "gpu_id", fix) from None
        profiles[row["gpu_profile_id"]] = profile_from_row(row, gpu)
    return dict(sorted(profiles.items()))


def _points(
    folder: Path, about: Description, llms: Collection[str], profiles: Mapping[str, GPUProfile]
) -> pd.DataFrame:
    """Read points.csv; InputError: another id than the sheets', no load, or impossible values."""
    path = folder / "points.csv"
    if not path.is_file():
        fix = "write the points there, one row per measurement"
        raise InputError("no points.csv", file=folder, fix=fix)
    points = read_points(path)

    try:
        _refuse_other_ids(points, "llm_id", llms, folder / "llms.tsv")
        _refuse_other_ids(points, "gpu_profile_id", profiles, folder / "gpu_profiles.tsv")
        has_no_load = points.reindex(columns=LOAD).isna().all(axis=1)
        problem = "neither users nor a request rate"
        _refuse_rows(has_no_load, ", ".join(LOAD), problem, "fill in one of them")

        published, other = ("mean", "median") if about.statistic == "mean" else ("median", "mean")
        problem = f"{other} without {published}, but the statistic of {FILE} is {about.statistic}"
        for latency in frame.LATENCIES:
            values = points.reindex(columns=[f"{published}_{latency}", f"{other}_{latency}"])
            wrong = values.iloc[:, 0].isna() & values.iloc[:, 1].notna()
            fix = f"move the values to {published}_{latency}, or correct the statistic"
            _refuse_rows(wrong, f"{other}_{latency}", problem, fix)
        check_latencies(points)
        points = frame.complete(points, about.defaults)

        # Copies of attention may be counted besides `tensor_parallel` (vLLM) or within it (SGLang):
        # each kind of parallelism is checked by itself.
        profile_ids = points["gpu_profile_id"]
        n_gpus = profile_ids.map({name: profile.n_gpus for name, profile in profiles.items()})
        fix = "correct it, or name the profile that has all devices of one replica"
        for name in ("tensor_parallel", "data_parallel", "expert_parallel"):
            texts = points[name].astype(str) + " is more than the " + n_gpus.astype(str)
            wrong = (points[name] > n_gpus).fillna(False)
            _refuse_rows(wrong, name, "{}", fix, texts + " GPUs of " + profile_ids)
    except InputError as error:
        raise error.at(file=path) from None
    return points.reset_index(drop=True)


def _refuse_other_ids(points: pd.DataFrame, name: str, ids: Collection[str], sheet: Path) -> None:
    """Refuse a point whose id is not in its sheet."""
    problem = f"{{!r}} is not in {sheet.name}"
    fix = f"add a row for it to {sheet}, or correct the name"
    _refuse_rows(~points[name].isin(list(ids)), name, problem, fix, points[name])


def _impossible(
    points: pd.DataFrame, llms: Mapping[str, LLM], profiles: Mapping[str, GPUProfile]
) -> pd.Series:
    """Return which points cannot be right: by Little's law more requests decode than fit into
    the memory, however it is used."""
    ttft_ms, itl_ms = (
        points[f"mean_{name}_ms"].fillna(points[f"median_{name}_ms"]) for name in ("ttft", "itl")
    )
    later = (points["output_tokens"] - 1).clip(lower=0)
    decoding = requests_decoding(points["users"].astype(float), ttft_ms, itl_ms * later)

    @cache
    def memory(llm_id: str, profile_id: str, precision: str) -> Memory:
        llm = served(llms[llm_id], precision or None, "fp8")
        return memory_of(llm, profiles[profile_id].devices, utilization=1.0)

    tokens = points["input_tokens"] + points["output_tokens"] / 2
    served_as = points[[*IDENTIFIERS, "precision"]].fillna("").itertuples(index=False, name=None)
    most = []
    for length, key in zip(tokens, served_as, strict=True):
        held = memory(*key)
        # Without room for a cache the facts of the weights are wrong, and say nothing.
        has_room = held.kv_bytes > 0
        most.append(held.kv_bytes / (held.request_bytes(length) / 2) if has_room else np.inf)
    return decoding > np.array(most)


def _refuse_rows(
    wrong: pd.Series, field_name: str, problem: str, fix: str, values: pd.Series | None = None
) -> None:
    """Refuse the first wrong row, if there is one; `{}` in the problem is its value."""
    if wrong.any():
        line = wrong.idxmax()
        problem = problem if values is None else problem.format(values[line])
        raise InputError(problem, row=line, field=field_name, fix=fix)


def _feasibility(
    folder: Path, about: Description, points: pd.DataFrame, not_sized: Collection[str]
) -> pd.DataFrame:
    """Return the verdict of each pair; without `feasibility.csv`, pairs with points were served."""
    path = folder / "feasibility.csv"
    pairs = points[IDENTIFIERS].drop_duplicates()
    if not path.is_file():
        return feasibility_table(pairs.assign(status="measured").to_dict("records"), about.source)
    rows = sheets.load_sheet(path, FeasibilityRow, delimiter=",")
    with_points = set(pairs.itertuples(index=False, name=None))
    for row in rows:
        status = row["status"]
        pair = (row["llm_id"], row["gpu_profile_id"])
        if status != "measured" and pair in with_points:
            problem = f"{' on '.join(pair)} is {status}, but has points"
            raise row.error(problem, "status", "write `measured`, or remove the points")
        if (verdict := row.get("verdict")) and status_of(ProbeOutcome(verdict)) != status:
            fix = f"write `{status_of(ProbeOutcome(verdict))}`, or remove the verdict"
            raise row.error(f"{status} contradicts the verdict {verdict}", "status", fix)
    return feasibility_table([row for row in rows if row["llm_id"] not in not_sized], about.source)


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
