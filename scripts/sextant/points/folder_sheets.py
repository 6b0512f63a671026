"""What the files of a characterization's folder may hold: a typed row for each, and points.csv.

`Setup` are the columns of points.csv that say how servers were set up, `DescriptionFile` are the
keys of characterization.yaml. `read_points` reads points.csv; `folder` reads the rest.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field, NonNegativeFloat, PositiveInt

from sextant.base import sheets
from sextant.base.errors import InputError
from sextant.base.whole_files import settle
from sextant.experiment import sheets as row_types
from sextant.facts.gpu import Price
from sextant.facts.slo import ENDS, PERCENTILE_PREFIX, end_column
from sextant.points.verdict import ProbeOutcome

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
    cuda_graphs: bool | None = None
    """false: the engine ran without its CUDA graphs (--enforce-eager); empty: as by default"""
    input_tokens: _Tokens | None = None
    """mean input length of the requests, above 0, up to 100,000,000"""
    output_tokens: _Tokens | None = None
    """mean output length of the requests, above 0, up to 100,000,000"""
    wait_steps: Annotated[float, Field(ge=0, le=10_000)] | None = None
    """mean steps that a prompt waits by the server's settings, up to 10,000; empty: the engine's"""
    max_num_batched_tokens: Annotated[int, Field(ge=1, le=2**24)] | None = None
    """most tokens that a step computed; empty: the engine's default"""
    max_num_seqs: PositiveInt | None = None
    """most requests that decoded at once; empty: as many as were sent"""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """share of a GPU's memory that the server might use; empty: the engine's"""
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
    doubt: str | None = None
    """why the point is doubtful: kind (detail), several separated by "; "; empty: it is not"""


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


@dataclass(frozen=True, kw_only=True)
class Description(DescriptionFile):
    """characterization.yaml as it was read, with `defaults` by column."""

    defaults: Mapping[str, Any] = field(default_factory=dict)  # type: ignore[assignment]


def read_points(path: Path) -> pd.DataFrame:
    """Return the typed table of points by line; InputError: a wrong column or value, too many."""
    settle(path.parent)
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
        kind = _TYPES[name]
        filled = texts.loc[texts[name] != "", name]
        if name.endswith("precision"):
            filled = filled.str.lower()
        if kind is int:
            filled = filled.str.replace(r"\.0+$", "", regex=True)
        values = sheets.load_column(filled.tolist(), PointRow, name, path, filled.index.tolist())
        dtype = {int: "Int64", float: "float64", str: "str", bool: "boolean"}[kind]
        columns[name] = pd.Series(values, filled.index, dtype=dtype).reindex(texts.index)
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
