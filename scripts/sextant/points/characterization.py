"""A characterization: all points of one source, with their facts; what its files may hold."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import pandas as pd
from pydantic import Field, NonNegativeFloat, PositiveInt

from sextant.base import sheets
from sextant.base.errors import InputError
from sextant.base.files import jsonable
from sextant.base.resources import resource
from sextant.experiment import sheets as row_types
from sextant.facts.gpu import GPUS, GPUProfile, Price, gpu_path, load_gpu, profile_from_row
from sextant.facts.llm import LLM, load_llm, memory_of, served
from sextant.facts.slo import ENDS, PERCENTILE_PREFIX, end_column
from sextant.pages.words import plural
from sextant.points import frame
from sextant.points.frame import IDENTIFIERS, LOAD, Features
from sextant.points.verdict import OUTCOMES, ProbeOutcome, Verdict, status_of

FILE = "characterization.yaml"
SHIPPED = resource("characterizations")
DEFAULT_SOURCES = ("archive:inferencex", "archive:llm-pilot")
"""What answers rest on where nothing else is named."""
MOST_POINTS = 50_000  # of one folder: laws are fitted to all of them
_STATISTICS = {"mean": "mean"} | {
    prefix: "median" if prefix == "median" else f"{number}th percentile"
    for number, prefix in PERCENTILE_PREFIX.items()
}
_Tokens = Annotated[float, Field(gt=0, le=1e8)]
_Count = Annotated[int, Field(ge=0, le=10**12)]
_Precision = Literal["fp32", "fp16", "bf16", "fp8", "nvfp4", "mxfp4", "int4", "int8"]
_LATENCIES = {
    "ttft": "time to the first token",
    "nttft": "time to the first token per input token",
    "itl": "gap between consecutive output tokens",
    "tpot": "time per output token after the first, a mean of each request",
    "e2e": "time of the whole request",
}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How servers were set up: columns of points.csv, or `defaults` where these are empty."""

    engine: str | None = None  #: what served, e.g. vllm, sglang, trtllm, tgis
    engine_version: str | None = None  #: its version, e.g. 0.19.0
    precision: _Precision | None = None  #: how weights were served; empty: as the config.json says
    kv_precision: Literal["fp32", "fp16", "bf16", "fp8", "nvfp4", "int8"] | None = None
    """how the KV cache was kept; empty: as the config.json says"""
    tensor_parallel: PositiveInt | None = None
    """devices that a layer is split over; empty: all of the profile"""
    data_parallel: PositiveInt | None = None  #: copies of the attention layers, 1 or more
    expert_parallel: PositiveInt | None = None
    """devices that the experts are shared out over, 1 if each is split instead"""
    input_tokens: _Tokens | None = None
    """mean input length of the requests, above 0, up to 100,000,000"""
    output_tokens: _Tokens | None = None
    """mean output length of the requests, above 0, up to 100,000,000"""
    wait_steps: Annotated[float, Field(ge=0, le=10_000)] | None = None
    """mean steps that a prompt waits by the server's settings, up to 10,000; empty: the engine's"""
    measured_on: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}([T ].*)?$")] | None = None
    """date of the measurement, YYYY-MM-DD, with or without a time"""


@dataclass(frozen=True, kw_only=True)
class DescriptionFile:
    """characterization.yaml: what the points of a characterization are, and whose."""

    source: sheets.SelectableId
    """name of the characterization: 1 to 100 visible characters, no comma, not *"""
    licence: Annotated[str, Field(min_length=1)]
    """SPDX identifier of the data's licence, e.g. CC-BY-4.0"""
    attribution: Annotated[str, Field(min_length=1)]  #: who is to be named, and how
    statistic: Literal["median", "mean", "unknown"]
    """what numbers without a percentile are; unknown: they stand in the columns of medians"""
    load: Literal["closed_loop", "rate"]
    """how load was put on the servers: closed_loop (users) or rate (requests per second)"""
    lengths: Literal["fixed", "varying"]
    """fixed: all requests of a point have its lengths; varying: these are means"""
    defaults: Setup | None = None  #: values of points.csv where its column is missing or empty
    dtype: row_types.Dtype | None = None
    """data type that unquantized weights were served in; without it that of each LLM's config"""
    memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """fraction of the memory that a server may use, above 0 to 1; without it 0.9, vLLM's default"""
    longest_request_tokens: PositiveInt | None = None
    """tokens of the longest request, input and output; default: the points' largest means"""
    workload_id: sheets.SelectableId = "as-published"  #: name of the workload that was replayed
    scenario_id: sheets.SelectableId = "as-published"  #: name of how load was put on the servers
    llm_features: str | None = None
    """sheet of the LLMs' features that came with it, relative to this folder"""
    gpu_features: str | None = None
    """sheet of the GPUs' features that came with it, relative to this folder"""
    note: str | None = None
    """what a reader of an answer has to know of the servers; a sentence or two"""


@dataclass(frozen=True, kw_only=True)
class FolderLlmRow(row_types.LlmRow):
    """llms.tsv of a characterization: each row is one LLM; paths are relative to the folder."""

    dtype: row_types.Dtype | None = None
    """data type of its unquantized weights; empty: that of the yaml or the config.json"""


@dataclass(frozen=True, kw_only=True)
class FolderProfileRow(row_types.GpuProfileRow):
    """gpu_profiles.tsv of a characterization; facts may stand in its folder gpus."""

    usd_per_hour: Price | None = None  # type: ignore[assignment]
    """price of the whole profile in USD per hour, 0.0001 to 1,000,000; empty if unknown"""


@dataclass(frozen=True, kw_only=True)
class FeasibilityRow(row_types.CellRow):
    """feasibility.csv of a characterization: each row says whether a GPU profile serves an LLM."""

    reason: str | None = None
    """the reason as a sentence, and who says so; made of the status if it is empty"""
    verdict: Annotated[str, Field(pattern=f"^({'|'.join(ProbeOutcome)})$")] | None = None
    """the verdict of `sextant`, where it says more than the status, e.g. heads_cannot_be_split"""


@dataclass(frozen=True, kw_only=True)
class _Point(Setup):
    """points.csv: each row is one measurement of an LLM on a GPU profile; repeats stay as rows."""

    llm_id: str  #: an LLM of llms.tsv
    gpu_profile_id: str  #: a profile of gpu_profiles.tsv: all devices of one replica
    users: Annotated[int, Field(ge=1, le=10**8)] | None = None
    """concurrent users of a closed loop, 1 to 100,000,000; empty for a rate"""
    request_rate_rps: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """requests per second, above 0, up to 1,000,000; in a closed loop a result"""
    throughput_tok_s: NonNegativeFloat | None = None
    """output tokens of all requests per second, not below 0"""
    energy_j_per_token: NonNegativeFloat | None = None
    """energy of all devices per output token in J, not below 0"""
    n_ok: _Count | None = None  #: requests that succeeded
    n_failed: _Count | None = None  #: requests that failed
    run_id: str | None = None  #: what the publisher calls the run or the row


_TEXTS = {
    f"{prefix}_{name}_ms": f"{text}, {statistic}, in ms"
    for prefix, statistic in _STATISTICS.items()
    for name, text in _LATENCIES.items()
}
_TEXTS |= {
    end_column(column, end): f"{text}: {which} end of its 90% interval"
    for column, text in _TEXTS.items()
    for end, which in zip(ENDS, ("lower", "upper"), strict=True)
    if not column.startswith("mean_")
}
PointRow = make_dataclass(
    "PointRow",
    [
        (column, Annotated[float, Field(ge=0, le=1e9, description=f"{text}, 0 to 1e9")], None)
        for column, text in _TEXTS.items()
    ],
    bases=(_Point,),
    namespace={"__doc__": _Point.__doc__},
    frozen=True,
    kw_only=True,
)
_TYPES = sheets.field_types(PointRow)


def read_points(path: Path) -> pd.DataFrame:
    """Return the typed table of points by line; InputError: a wrong column or value, too many."""
    with path.open("rb") as file:
        lines = (line for line in file if line.strip() and not line.startswith(b"#"))
        if sum(1 for _ in islice(lines, MOST_POINTS + 2)) > MOST_POINTS + 1:
            fix = "keep one row for repeats of a measurement, or split the folder"
            raise InputError(f"more than {MOST_POINTS:,} points", file=path, fix=fix)
    rows = sheets.sheet_cells(path, PointRow, delimiter=",")
    texts = pd.DataFrame(rows, [row.line for row in rows], dtype=object)
    if texts.empty:
        raise InputError("there are no points", file=path, fix="add one row per measurement")
    columns = {}
    for name in texts:
        given, kind = texts.loc[texts[name] != "", name], _TYPES[name]
        if name.endswith("precision"):
            given = given.str.lower()
        if kind is int:
            given = given.str.replace(r"\.0+$", "", regex=True)
        values = sheets.load_column(given.tolist(), PointRow, name, path, given.index.tolist())
        dtype = {int: "Int64", float: "float64", str: "str"}[kind]
        columns[name] = pd.Series(values, given.index, dtype=dtype).reindex(texts.index)
    return pd.DataFrame(columns)


def check_latencies(points: pd.DataFrame) -> None:
    """Refuse a higher percentile below a lower one, and E2E below TTFT; the index is the line."""
    for latency in _LATENCIES:
        names = [f"{prefix}_{latency}_ms" for prefix in PERCENTILE_PREFIX.values()]
        values = points.reindex(columns=names).astype(float)
        least = values.ffill(axis=1).cummax(axis=1).shift(axis=1)
        fix = "correct the row: a higher percentile is never smaller"
        _refuse_below(values, least, "a lower percentile", fix)
    for statistic in _STATISTICS:
        names = [f"{statistic}_{name}_ms" for name in ("e2e", "ttft")]
        values = points.reindex(columns=names).astype(float)
        least = values[names[1:]].set_axis(names[:1], axis=1)
        fix = "correct the row: a request ends after its first token"
        _refuse_below(values[names[:1]], least, "the TTFT", fix)


def _refuse_below(values: pd.DataFrame, least: pd.DataFrame, of: str, fix: str) -> None:
    wrong = values < least * (1 - 1e-6)
    if wrong.any(axis=None):
        line = wrong.any(axis=1).idxmax()
        name = wrong.loc[line].idxmax()
        problem = f"{values.loc[line, name]:g} is below the {least.loc[line, name]:g} of {of}"
        raise InputError(f"{problem} in this row", row=line, field=name, fix=fix)


@dataclass(frozen=True, kw_only=True)
class Description(DescriptionFile):
    """What a folder says of its points; `defaults` by column."""

    defaults: Mapping[str, Any] = field(default_factory=dict)  # type: ignore[assignment]


@dataclass(frozen=True)
class Characterization:
    """The points of one source, workload and scenario, ready for the predictors."""

    source: str
    workload_id: str
    scenario_id: str
    points: pd.DataFrame
    llms: dict[str, LLM]
    profiles: dict[str, GPUProfile]
    feasibility: pd.DataFrame
    features: Features | None
    """What predictors learn from, where it came with the source; else computed from facts."""
    longest_request_tokens: int | None = None  # of an archive the workload is not known in full
    predictors: Sequence[str] = ()  # those that the store has scores of
    descriptions: tuple[Description, ...] = ()  # what folders say of their points; none for a store
    left_out: tuple[str, ...] = ()  # what is not among the points, and why, a sentence each

    @property
    def has_fixed_lengths(self) -> bool:
        """Whether each point has requests of its own lengths, not one workload's for all."""
        return any(each.lengths == "fixed" for each in self.descriptions)

    @property
    def memory_utilization(self) -> float:
        """Fraction of the memory that servers may use; vLLM's default (0.9) if all ran already."""
        known = [each.memory_utilization for each in self.descriptions if each.memory_utilization]
        known += self.feasibility["memory_utilization"].dropna().tolist()
        return max(known, default=0.9)


_T = TypeVar("_T", LLM, GPUProfile)


def combined(parts: Sequence[Characterization]) -> Characterization:
    """Return several characterizations as one, with a column `source`; the first price of a profile
    counts. InputError: a source twice, or other facts of the same LLM or profile."""
    if len(parts) == 1:
        return parts[0]
    names = [part.source for part in parts]
    if len(set(names)) < len(names):
        fix = "leave one out, or change `source` in its characterization.yaml"
        raise InputError(f"two sources are called {max(names, key=names.count)}", fix=fix)
    longest = [part.longest_request_tokens for part in parts]
    features = [part.features for part in parts if part.features]
    priced: dict[str, GPUProfile] = {}
    for name, profile in (each for part in parts for each in part.profiles.items()):
        if name not in priced or math.isnan(priced[name].usd_per_hour):
            priced[name] = replace(profile, gpu_model=None)
    # Profiles have to agree but for their prices. Zero, because one nan is not equal to another.
    bare: dict[str, Any] = dict.fromkeys(("price_source", "price_as_of", "gpu_model"))
    unpriced = {
        part.source: {
            name: replace(profile, **bare, usd_per_hour=0.0)
            for name, profile in part.profiles.items()
        }
        for part in parts
    }
    return Characterization(
        source=" + ".join(names),
        workload_id=" + ".join(part.workload_id for part in parts),
        scenario_id=" + ".join(part.scenario_id for part in parts),
        points=pd.concat([part.points for part in parts], ignore_index=True),
        llms=_agreed({part.source: part.llms for part in parts}),
        profiles={name: priced[name] for name in _agreed(unpriced)},
        features=Features(*map(pd.concat, zip(*features, strict=True))) if features else None,
        feasibility=pd.concat([part.feasibility for part in parts], ignore_index=True),
        longest_request_tokens=None if None in longest else max(filter(None, longest)),
        descriptions=tuple(each for part in parts for each in part.descriptions),
        left_out=tuple(each for part in parts for each in part.left_out),
    )


def _agreed(facts: Mapping[str, Mapping[str, _T]]) -> dict[str, _T]:
    """Return the facts of all sources by id; InputError if two sources have other facts."""
    first: dict[str, tuple[str, _T]] = {}
    for source, of_source in facts.items():
        for name, value in of_source.items():
            other, known = first.setdefault(name, (source, value))
            if known != value:
                problem = f"{other} and {source} have other facts of {name!r}"
                fix = "rename it in one of them, or give one source alone"
                raise InputError(problem, field="--source", fix=fix)
    return {name: value for name, (_, value) in sorted(first.items())}


def characterization_summary(known: Characterization, place: str) -> dict[str, Any]:
    """Return what `--json` and `as_text` say; ranges are `[least, most]`, None: unknown."""
    points, ends = known.points, ["min", "max"]
    gpus = {known.profiles[name].gpu.gpu_id for name in points["gpu_profile_id"].unique()}
    named = {"llms": "llm_id", "engines": "engine", "precisions": "precision"}
    ranges = ("users", "request_rate_rps", "input_tokens", "output_tokens", "measured_on")
    return {
        "source": known.source,
        "place": place,
        "licences": [each.licence for each in known.descriptions],
        "n_points": len(points),
        **{key: sorted(points[name].dropna().unique()) for key, name in named.items()},
        "gpus": sorted(gpus),
        **{
            name: None if points[name].isna().all() else jsonable([*points[name].agg(ends)])
            for name in ranges
        },
    }


def characterization_text(row: dict[str, Any]) -> str:
    """Return a summary as lines for a person."""

    def span(name: str, unit: str) -> list[str]:
        ends = [f"{value:,.4g}" for value in row[name] or ()]
        return [f"{' to '.join(dict.fromkeys(ends))} {unit}"] if ends else []

    loads = span("users", "users") or span("request_rate_rps", "requests per second")
    lengths = span("input_tokens", "input tokens") + span("output_tokens", "output tokens")
    days = " to ".join(dict.fromkeys(row["measured_on"] or ["a time that is not known"]))
    how = ", ".join(row["precisions"]) or "precisions as the LLMs' configurations say"
    return f"""{row["source"]} ({row["place"]})
  {row["n_points"]:,} points: {len(row["llms"])} LLMs on {", ".join(row["gpus"])}
  {", ".join(row["engines"]) or "engine not known"}; {how}
  {"; ".join(loads + lengths)}
  measured at {days}; {", ".join(row["licences"]) or "your own"}
  LLMs: {", ".join(row["llms"])}"""


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
    about = load_description(folder)
    (llms, unknown), profiles = _llms(folder, about), _profiles(folder)
    points = _points(folder, about, [*llms, *unknown], profiles)
    n_of = points["llm_id"].value_counts()
    left_out = [
        f"{about.source}: {llm_id} is left out with {n_of.get(llm_id, 0)} points: {error}"
        for llm_id, error in unknown.items()
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
        feasibility=_feasibility(folder, about, points, unknown).assign(**setting),
        descriptions=(about,),
        left_out=tuple(left_out),
    )


def _llms(folder: Path, about: Description) -> tuple[dict[str, LLM], dict[str, InputError]]:
    llms, unknown = {}, {}
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
            unknown[row["llm_id"]] = error
    if not llms:
        raise next(iter(unknown.values()))
    return dict(sorted(llms.items())), unknown


def _profiles(folder: Path) -> dict[str, GPUProfile]:
    profiles = {}
    for row in sheets.load_sheet(folder / "gpu_profiles.tsv", FolderProfileRow, "gpu_profile_id"):
        own = gpu_path(folder / "gpus", row["gpu_id"]).is_file()
        try:
            gpu = load_gpu(folder / "gpus" if own else GPUS, row["gpu_id"])
        except InputError as error:
            if own or gpu_path(GPUS, row["gpu_id"]).is_file():
                raise
            fix = f"write its facts as gpus/{row['gpu_id']}.yaml in the folder, or use one of "
            fix += ", ".join(sorted(path.stem for path in GPUS.glob("*.yaml")))
            raise row.error(error.problem, "gpu_id", fix) from None
        profiles[row["gpu_profile_id"]] = profile_from_row(row, gpu)
    return dict(sorted(profiles.items()))


def _points(
    folder: Path, about: Description, llms: Collection[str], profiles: Mapping[str, GPUProfile]
) -> pd.DataFrame:
    path = folder / "points.csv"
    if not path.is_file():
        fix = "write the points there, one row per measurement"
        raise InputError("no points.csv", file=folder, fix=fix)
    points = read_points(path)
    try:
        for name, known, sheet in (
            ("llm_id", llms, folder / "llms.tsv"),
            ("gpu_profile_id", profiles, folder / "gpu_profiles.tsv"),
        ):
            problem = f"{{!r}} is not in {sheet.name}"
            fix = f"add a row for it to {sheet}, or correct the name"
            _refuse_rows(~points[name].isin(list(known)), name, problem, fix, points[name])
        without = points.reindex(columns=LOAD).isna().all(axis=1)
        problem, fix = "neither users nor a request rate", "fill in one of them"
        _refuse_rows(without, ", ".join(LOAD), problem, fix)
        # A point that has only the kind of average that its source does not publish.
        own, other = ("mean", "median") if about.statistic == "mean" else ("median", "mean")
        problem = f"{other} without {own}, but the statistic of {FILE} is {about.statistic}"
        for latency in frame.LATENCIES:
            values = points.reindex(columns=[f"{own}_{latency}", f"{other}_{latency}"])
            wrong = values.iloc[:, 0].isna() & values.iloc[:, 1].notna()
            fix = f"move the values to {own}_{latency}, or correct the statistic"
            _refuse_rows(wrong, f"{other}_{latency}", problem, fix)
        check_latencies(points)
        points = frame.complete(points, about.defaults)
        # Copies of attention may be counted besides `tensor_parallel` (vLLM) or within it (SGLang).
        names = points["gpu_profile_id"]
        n_gpus = names.map({name: each.n_gpus for name, each in profiles.items()})
        fix = "correct it, or name the profile that has all devices of one replica"
        for name in ("tensor_parallel", "data_parallel", "expert_parallel"):
            texts = points[name].astype(str) + " is more than the " + n_gpus.astype(str)
            wrong = (points[name] > n_gpus).fillna(False)
            _refuse_rows(wrong, name, "{}", fix, texts + " GPUs of " + names)
    except InputError as error:
        raise error.at(file=path) from None
    return points.reset_index(drop=True)


def _impossible(
    points: pd.DataFrame, llms: Mapping[str, LLM], profiles: Mapping[str, GPUProfile]
) -> pd.Series:
    """Tell which points cannot be: more decode, by Little's law, than any memory plan holds."""
    statistic = [
        points[f"mean_{name}_ms"].fillna(points[f"median_{name}_ms"]) for name in ("ttft", "itl")
    ]
    (ttft_ms, itl_ms), later = statistic, (points["output_tokens"] - 1).clip(lower=0)
    decoding = points["users"].astype(float) * itl_ms * later / (ttft_ms + itl_ms * later)
    tokens = points["input_tokens"] + points["output_tokens"] / 2
    served_as = [*IDENTIFIERS, "precision"]
    most = pd.Series(np.inf, points.index)
    for (llm_id, profile_id, precision), rows in points.groupby(served_as, dropna=False):
        llm = served(llms[llm_id], None if pd.isna(precision) else precision, "fp8")
        memory = memory_of(llm, profiles[profile_id].devices, utilization=1.0)
        if memory.kv_bytes > 0:  # else the facts of its weights are wrong, and say nothing
            half = [memory.request_bytes(length) / 2 for length in tokens[rows.index]]
            most[rows.index] = memory.kv_bytes / np.array(half)
    return decoding > most


def _refuse_rows(
    wrong: pd.Series, field_name: str, problem: str, fix: str, values: pd.Series | None = None
) -> None:
    """Refuse the first wrong row, if there is one; `{}` in the problem is its value."""
    if wrong.any():
        line = wrong.idxmax()
        problem = problem if values is None else problem.format(values[line])
        raise InputError(problem, row=line, field=field_name, fix=fix)


def _feasibility(
    folder: Path, about: Description, points: pd.DataFrame, unknown: Collection[str]
) -> pd.DataFrame:
    """Return the verdict of each pair; without `feasibility.csv`, pairs with points were served."""
    path = folder / "feasibility.csv"
    pairs = points[IDENTIFIERS].drop_duplicates()
    if not path.is_file():
        return feasibility_table(pairs.assign(status="measured").to_dict("records"), about.source)
    rows = sheets.load_sheet(path, FeasibilityRow, delimiter=",")
    served = set(pairs.itertuples(index=False, name=None))
    for row in rows:
        pair, status = (row["llm_id"], row["gpu_profile_id"]), row["status"]
        if status != "measured" and pair in served:
            problem = f"{' on '.join(pair)} is {status}, but has points"
            raise row.error(problem, "status", "write `measured`, or remove the points")
        if (verdict := row.get("verdict")) and status_of(ProbeOutcome(verdict)) != status:
            fix = f"write `{status_of(ProbeOutcome(verdict))}`, or remove the verdict"
            raise row.error(f"{status} contradicts the verdict {verdict}", "status", fix)
    known = [row for row in rows if row["llm_id"] not in unknown]
    return feasibility_table(known, about.source)


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
