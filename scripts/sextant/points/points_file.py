"""What the files of a characterization's folder may hold; reads its table of points."""

import re
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import pandas as pd
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sextant.base.errors import InputError
from sextant.base.files import read_parquet
from sextant.base.sheets import SelectableId, field_types, load_column, sheet_cells
from sextant.experiment.sheets import CellRow, Dtype, GpuProfileRow, LlmRow
from sextant.facts.gpu import Price
from sextant.facts.slo import ENDS, PERCENTILE_PREFIX, end_column
from sextant.points.verdict import Outcome

NAMES = ("points.csv", "points.parquet")
_UNITS = ("ms", "tok_s", "rps", "j_per_token")
_UNIT = re.compile(r"_(ms|m?s|us|ns|seconds?|tokens_s|tok_s|rp[sm]|per_s|m?j_per_token|wh?)$")
_DTYPES = {int: "Int64", float: "float64", str: "str"}
_STATISTICS = {"mean": "mean"} | {
    prefix: "median" if prefix == "median" else f"{number}th percentile"
    for number, prefix in PERCENTILE_PREFIX.items()
}
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

    engine: str | None = None
    """what served, e.g. vllm, sglang, trtllm, tgis"""
    engine_version: str | None = None
    """its version, e.g. 0.19.0"""
    precision: Literal["fp32", "fp16", "bf16", "fp8", "nvfp4", "mxfp4", "int4", "int8"] | None = (
        None
    )
    """how weights were served; empty: as the config.json says"""
    kv_precision: Literal["fp32", "fp16", "bf16", "fp8", "nvfp4", "int8"] | None = None
    """how the KV cache was kept; empty: as the config.json says"""
    tensor_parallel: PositiveInt | None = None
    """devices that a layer is split over; empty: all of the profile"""
    data_parallel: PositiveInt | None = None
    """copies of the attention layers, 1 or more"""
    expert_parallel: PositiveInt | None = None
    """devices that the experts are shared out over, 1 if each is split instead"""
    input_tokens: PositiveFloat | None = None
    """mean input length of the requests, above 0"""
    output_tokens: PositiveFloat | None = None
    """mean output length of the requests, above 0"""
    measured_on: Annotated[str, Field(pattern=r"^\d{4}-\d{2}-\d{2}([T ].*)?$")] | None = None
    """date of the measurement, YYYY-MM-DD, with or without a time"""


@dataclass(frozen=True, kw_only=True)
class EngineKnown:
    """Settings of the engine."""

    chunked_prefill: bool | None = None
    """whether long prompts were split over several steps"""
    prefix_caching: bool | None = None
    """whether the KV cache of equal prompt beginnings was used again"""
    max_batched_tokens: PositiveInt | None = None
    """most tokens of a step"""
    cuda_graphs: bool | None = None
    """whether decoding steps were launched as CUDA graphs"""


@dataclass(frozen=True, kw_only=True)
class DescriptionFile:
    """characterization.yaml: what the points of a characterization are, and whose."""

    source: SelectableId
    """name of the characterization: 1 to 100 visible characters, no comma, not *"""
    licence: Annotated[str, Field(min_length=1)]
    """SPDX identifier of the data's licence, e.g. CC-BY-4.0"""
    attribution: Annotated[str, Field(min_length=1)]
    """who is to be named, and how"""
    statistic: Literal["median", "mean", "unknown"]
    """what numbers without a percentile are; unknown: they stand in the columns of medians"""
    load: Literal["closed_loop", "rate"]
    """how load was put on the servers: closed_loop (users) or rate (requests per second)"""
    lengths: Literal["fixed", "varying"]
    """fixed: all requests of a point have its lengths; varying: these are means"""
    defaults: Setup | None = None
    """values of points.csv where its column is missing or empty"""
    engine_settings: EngineKnown | None = None
    """what is known of the engine's settings; leave out what is not"""
    dtype: Dtype | None = None
    """data type that unquantized weights were served in; without it that of each LLM's config"""
    memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """fraction of the memory that a server may use, above 0 to 1; without it 0.9, vLLM's default"""
    longest_request_tokens: PositiveInt | None = None
    """tokens of the longest request, input and output; default: the points' largest means"""
    workload_id: SelectableId = "as-published"
    """name of the workload that was replayed"""
    scenario_id: SelectableId = "as-published"
    """name of how load was put on the servers"""
    llm_features: str | None = None
    """sheet of the LLMs' features that came with it, relative to this folder"""
    gpu_features: str | None = None
    """sheet of the GPUs' features that came with it, relative to this folder"""
    note: str | None = None
    """what a reader of an answer has to know of the servers; a sentence or two"""


@dataclass(frozen=True, kw_only=True)
class FolderLlmRow(LlmRow):
    """llms.tsv of a characterization: each row is one LLM; paths are relative to the folder."""

    dtype: Dtype | None = None
    """data type of its unquantized weights; empty: that of the yaml or the config.json"""


@dataclass(frozen=True, kw_only=True)
class FolderProfileRow(GpuProfileRow):
    """gpu_profiles.tsv of a characterization; facts may stand in its folder gpus."""

    usd_per_hour: Price | None = None  # type: ignore[assignment]
    """price of the whole profile in USD per hour, 0.0001 to 1,000,000; empty if unknown"""


@dataclass(frozen=True, kw_only=True)
class FeasibilityRow(CellRow):
    """feasibility.csv of a characterization: each row says whether a GPU profile serves an LLM."""

    reason: str | None = None
    """the reason as a sentence, and who says so; made of the status if it is empty"""
    verdict: Annotated[str, Field(pattern=f"^({'|'.join(Outcome)})$")] | None = None
    """the verdict of `sextant`, where it says more than the status, e.g. heads_cannot_be_split"""


@dataclass(frozen=True, kw_only=True)
class _Point(Setup):
    """points.csv: each row is one measurement of an LLM on a GPU profile; repeats stay as rows."""

    llm_id: str
    """an LLM of llms.tsv"""
    gpu_profile_id: str
    """a profile of gpu_profiles.tsv: all devices of one replica"""
    users: PositiveInt | None = None
    """concurrent users of a closed loop, 1 or more; empty for a rate"""
    request_rate_rps: PositiveFloat | None = None
    """requests per second, above 0; in a closed loop a result"""
    throughput_tok_s: NonNegativeFloat | None = None
    """output tokens of all requests per second, not below 0"""
    energy_j_per_token: NonNegativeFloat | None = None
    """energy of all devices per output token in J, not below 0"""
    n_ok: NonNegativeInt | None = None
    """requests that succeeded"""
    n_failed: NonNegativeInt | None = None
    """requests that failed"""
    run_id: str | None = None
    """what the publisher calls the run or the row"""


def _latency_fields() -> list[tuple[str, Any, None]]:
    """Return name, type and default of the columns of latencies and of the ends of intervals."""
    texts = {
        f"{prefix}_{name}_ms": f"{text}, {statistic}, in ms"
        for prefix, statistic in _STATISTICS.items()
        for name, text in _LATENCIES.items()
    }
    for column, text in [*texts.items()]:
        for end, which in zip(ENDS, ("lower", "upper"), strict=True):
            if not column.startswith("mean_"):
                texts[end_column(column, end)] = f"{text}: {which} end of its 90% interval"
    return [
        (column, Annotated[float, Field(ge=0, description=f"{text}, not below 0")], None)
        for column, text in texts.items()
    ]


PointRow = make_dataclass(
    "PointRow",
    _latency_fields(),
    bases=(_Point,),
    namespace={"__doc__": _Point.__doc__},
    frozen=True,
    kw_only=True,
)
_TYPES = field_types(PointRow)


def read_points(path: Path) -> pd.DataFrame:
    """Return the table with the columns of the file, typed; its index is the line of each row.

    Lines count as an editor does, the header is line 1; in a Parquet file as if it were a CSV.

    Raises:
        InputError: a column is unknown or in another unit, or a value is not what
            `workflow/schemas/points.schema.yaml` says.
    """
    try:
        texts = _parquet(path) if path.suffix == ".parquet" else _csv(path)
    except InputError as error:
        raise _in_another_unit(error) or error from None
    if texts.empty:
        raise InputError("there are no points", file=path, fix="add one row per measurement")
    return pd.DataFrame({name: _column(texts[name], path) for name in texts})


def _csv(path: Path) -> pd.DataFrame:
    rows = sheet_cells(path, PointRow, delimiter=",")
    return pd.DataFrame(rows, [row.line for row in rows], dtype=object)


def _parquet(path: Path) -> pd.DataFrame:
    fix = "write a Parquet file with the columns of workflow/schemas/points.schema.yaml"
    frame = read_parquet(path, fix=fix).to_pandas()
    for name in frame:
        if name not in _TYPES:
            fix = f"remove it or correct its name; known: {', '.join(_TYPES)}"
            raise InputError("unknown column", file=path, field=name, fix=fix)
    texts = frame.astype(object).where(frame.notna(), "").map(_as_text)
    return texts.set_axis(range(2, len(frame) + 2))


def _as_text(value: Any) -> str:
    """Return a value as a CSV would have it: a whole number has no point."""
    is_whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if is_whole else str(value)


def _in_another_unit(error: InputError) -> InputError | None:
    """Return the error of a column that has a known one's name, but another unit; else None."""
    name = error.field or ""
    for unit in _UNITS:
        right = f"{_UNIT.sub('', name)}_{unit}"
        if error.problem == "unknown column" and right in _TYPES:
            problem, fix = "it is in another unit", f"convert its values and call it {right}"
            return InputError(problem, file=error.file, row=error.row, field=name, fix=fix)
    return None


def _column(texts: pd.Series, path: Path) -> pd.Series:
    """Return a column's values; an empty text is a missing value, 4.0 is a whole number."""
    given, name = texts[texts != ""], str(texts.name)
    if name.endswith("precision"):
        given = given.str.lower()
    if _TYPES[name] is int:
        given = given.str.replace(r"\.0+$", "", regex=True)
    values = load_column(given.tolist(), PointRow, name, path, given.index.tolist())
    return pd.Series(values, given.index, dtype=_DTYPES[_TYPES[name]]).reindex(texts.index)
