"""What a study's analysis gets and gives, the words of its page, and how far a run is trusted."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy

from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.pages.blocks import Block, Chart, Section, Table, paragraphs
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.wording import yes_or_no
from sextant.points.cell_files import MeasuredCell
from sextant.points.metrics import N_BLOCKS, POINT_LABELS
from sextant.points.run import CELL_KEY


@dataclass(frozen=True)
class StudyData:
    """All that was measured for a study. Tables of the store hold only its cells' rows."""

    points: pd.DataFrame
    feasibility: pd.DataFrame
    telemetry: pd.DataFrame
    cells: Sequence[MeasuredCell]
    llms: Mapping[str, LLM]
    profiles: Mapping[str, GPUProfile]
    seed: int = 0
    """Of whatever an analysis draws."""


@dataclass(frozen=True)
class Analysis:
    """What a study found."""

    summary: str
    """The findings in a few sentences, computed from the data."""
    numbers: Mapping[str, Any]
    """The same as data, for `study.json`; frames become lists of rows, NaN and inf null."""
    sections: Sequence[Section] = ()


LABELS: Mapping[str, str] = POINT_LABELS | {
    "batch_size": "Batch size",
    "beta_s": "beta (s)",
    "block": "Block",
    "deviation_percent": "Largest deviation (%)",
    "e2e_ratio": "End-to-end latency, smallest over largest weight",
    "failed_fraction": "Failed (fraction)",
    "failure_rate": "Failure rate",
    "fits": "Fits",
    "inference": "Inference",
    "is_optimal": "Pareto-optimal",
    "is_still_rising": "Still rising there",
    "itl_growth": "ITL, most over fewest users",
    "knee_processing_ms": "Processing (ms)",
    "knee_size": "Knee: batch size",
    "knee_throughput_tok_s": "Output tokens/s",
    "kv_gib": "KV cache (GiB)",
    "kv_usage": "KV cache used, mean",
    "large_tokens": "Largest (tokens)",
    "largest_fitting_size": "Memory holds",
    "largest_latency_ms": "Largest mean latency (ms)",
    "largest_processing_ms": "Processing there (ms)",
    "largest_size": "Largest batch that fits",
    "largest_throughput_tok_s": "Output tokens/s there",
    "last_gain_percent": "Gain of the last doubling (%)",
    "latency_interval": "95% interval of it",
    "level": "Level",
    "levels": "Users measured",
    "levels_left_out": "Left out, and why",
    "load": "Load",
    "max_kv_usage": "KV cache used, at most",
    "max_power_w": "Maximum (W)",
    "max_throughput_tok_s": "Highest throughput (output tokens/s)",
    "mean_kv_usage": "KV cache used, mean",
    "mean_latency_ms": "With queueing (ms)",
    "mean_power_w": "Mean power (W)",
    "mean_processing_ms": "Processing (ms)",
    "mean_running": "In the server's batch, mean",
    "mean_tok_s": "Mean output tokens/s per replica",
    "mean_token_latency_ms": "Token latency, mean (ms)",
    "most_users": "Most users measured",
    "n": "Numbers of replicas",
    "n_preemptions": "Preemptions",
    "n_requests": "Requests",
    "n_server_starts": "Server starts",
    "p90_token_latency_ms": "Token latency, p90 (ms)",
    "phase": "Phase",
    "published": "Published",
    "rate_rps": "Requests/s",
    "replicas": "Servers",
    "sd_percent": "Relative standard deviation (%)",
    "small_tokens": "Smallest cache (tokens)",
    "summed_throughput_tok_s": "Output tokens/s, summed",
    "throughput_interval": "95% interval",
    "token_latency_ms": "Per output token (ms)",
    "ttft_growth": "TTFT, most over fewest users",
    "users_per_replica": "Users per replica",
    "verdict": "Verdict",
    "weight_gib": "Weights (GiB)",
    "weights_gb": "Weights (GB)",
    "where": "Setting",
    "why": "Why not",
}
"""The label of each column, with its unit; a column without one shows its own name."""


def part(title: str, text: str, figure: str | None = None, table: Table | None = None) -> Section:
    """Return a section of a study's page; an empty line in `text` begins a paragraph."""
    charts: list[Block] = [Chart(figure, name=Section(title, ()).anchor)] if figure else []
    return Section(title, [*paragraphs(text), *charts, *([table] if table else [])])


def table_of(frame: pd.DataFrame, columns: str, **labels: str) -> Table:
    """Return the table of a frame's columns (their names, with spaces between); `labels` are what
    this table calls columns otherwise than `LABELS`.
    """
    names = {**LABELS, **labels}
    return Table.of_frame(frame, {column: names.get(column, column) for column in columns.split()})


def level_words(level: float | str) -> str:
    """Write a level as a sheet does: 8, 0.5, inf."""
    return f"{float(level):g}"


def level_axis(label: str, levels: Sequence[float] | pd.Series, *, is_log: bool = True) -> Axis:
    """Return an axis with a tick at each level that was measured."""
    ticks = sorted({*levels})
    return Axis(label, is_log=is_log, ticks=ticks, names=[level_words(level) for level in ticks])


def level_curve(name: str, rows: pd.DataFrame, x: str, y: str) -> Curve:
    """Return a curve with a point a level, labelled by it; hollow where `fits` is false."""
    hollow = [place for place, fits in enumerate(rows.get("fits", ())) if not fits]
    return Curve(name, rows[x], rows[y], labels=[*map(level_words, rows["level"])], hollow=hollow)


def place_words(row: Mapping[str, str]) -> str:
    """Write which LLM on which GPU profile a row is of."""
    return f"{row['llm_id']} on {row['gpu_profile_id']}"


def device_section(
    title: str,
    text: str,
    rows: pd.DataFrame,
    wanted: Mapping[str, tuple[str, Axis]],
    x: str,
    axis: Axis,
    drawn: pd.DataFrame | None = None,
) -> Section:
    """Return what devices did over a column `x`: of the columns `wanted` (heading and axis) those
    that they reported, as a table of all rows and as panels of those `drawn`, all by default.
    """
    known = {name: each for name, each in wanted.items() if rows[name].notna().any()}
    if absent := [heading for name, (heading, _) in wanted.items() if name not in known]:
        text += f"\n\nNot reported by the devices: {', '.join(absent)}."
    if not known:
        return part(title, text)
    drawn, panels = rows if drawn is None else drawn, []
    if len(drawn) < len(rows):
        text += "\n\nDrawn are the profiles of the fewest devices."
    for column, (heading, y) in known.items():
        own = drawn[drawn[column].notna()]
        lines = [
            Curve(f"{place_words(each.iloc[0])}, {key[2]}", each[x], each[column])
            for key, each in own.groupby(["llm_id", "gpu_profile_id", "workload_id"], sort=False)
        ]
        panels += [Panel(heading, axis, y, lines)] if lines else []
    figure = panels_figure(panels, f"{title} over {axis.label}", has_points=True)
    labels = {column: heading for column, (heading, _) in known.items()}
    table = table_of(rows, f"llm_id gpu_profile_id {x} {' '.join(known)}", **labels)
    return part(title, text, figure, table)


class Finding(NamedTuple):
    """A claim of a paper, and what was seen here."""

    claim: str
    here: str
    holds: bool | None
    """None where what could tell was not measured, or shows neither."""


def findings_table(found: Sequence[Finding], claim: str) -> Table:
    """Return one row per finding; `claim` is the label of its first column."""
    rows = [(each.claim, each.here, yes_or_no(each.holds)) for each in found]
    return Table((claim, "Here", "Holds"), rows, words=(0, 1, 2))


def findings_words(found: Sequence[Finding], whose: str) -> str:
    """Count the claims that hold; `whose` is e.g. `the paper's {} findings`."""
    hold, refuted, unknown = (
        sum(each.holds is holds for each in found) for holds in (True, False, None)
    )
    return (
        f"of {whose.format(len(found))} {hold} hold here, {refuted} do not, {unknown} cannot be "
        "judged."
    )


_LEVEL = 0.95


class Ratio(NamedTuple):
    """One measured mean over another, with its 95% interval; NaN where it is not known."""

    value: float
    low: float
    high: float


def throughput_blocks(requests: pd.DataFrame) -> np.ndarray:
    """Return the output tokens in each of `N_BLOCKS` equal parts of a level's time.

    `requests` are the level's ok ones: `sent_s, last_token_s, token_offsets_ms`. For loads that
    come and go at any time; in a batch, whose requests begin and end together, see
    `processing_blocks`.
    """
    offsets = [np.asarray(row, float) for row in requests["token_offsets_ms"]]
    sent_s = np.repeat(requests["sent_s"].to_numpy(), [len(row) for row in offsets])
    times_s = sent_s + np.concatenate([*offsets, np.empty(0)]) / 1e3
    ends = (requests["sent_s"].min(), requests["last_token_s"].max())
    # Offsets are 32-bit: the last token may lie a rounding error beyond the end.
    return np.histogram(np.clip(times_s, *ends), N_BLOCKS, ends)[0].astype(float)


def mean_blocks(values: Sequence[float] | np.ndarray, n_blocks: int = N_BLOCKS) -> np.ndarray:
    """Return the means of `n_blocks` runs of successive values, fewer if there are fewer."""
    parts = np.array_split(np.asarray(values, float), max(1, min(n_blocks, len(values))))
    return np.array([part.mean() for part in parts if len(part)])


def processing_blocks(requests: pd.DataFrame, in_flight: float) -> np.ndarray:
    """Return mean processing times (s) of blocks of successive ok requests (`sent_s,
    last_token_s`).

    Requests that are in flight together share their fate, so that a block has at least as many: a
    run in which every request is in flight at once is a single block, which tells no spread.
    """
    ordered = requests.sort_values("last_token_s")
    processing_s = ordered["last_token_s"] - ordered["sent_s"]
    n_rounds = max(1, int(len(ordered) / max(1.0, in_flight)))
    return mean_blocks(processing_s, min(N_BLOCKS, n_rounds))


def ratio_of_means(value: float, blocks: np.ndarray, base: float, base_blocks: np.ndarray) -> Ratio:
    """Return `value / base` with its 95% interval from the spread of their blocks.

    On a logarithmic scale the two standard errors add in squares; Student's t has the degrees
    of freedom of both.
    """
    ratio = value / base if base else math.nan
    n_free = len(blocks) + len(base_blocks) - 2
    if min(len(blocks), len(base_blocks)) < 2 or not ratio > 0:
        return Ratio(ratio, math.nan, math.nan)
    errors = (each.std(ddof=1) / len(each) ** 0.5 / each.mean() for each in (blocks, base_blocks))
    factor = math.exp(scipy.special.stdtrit(n_free, (1 + _LEVEL) / 2) * math.hypot(*errors))
    return Ratio(ratio, ratio / factor, ratio * factor)


LEVEL_KEY = [*CELL_KEY, "level"]
_FEW_READINGS = 5
_USES = ("utilization", "memory_utilization", "sm_active", "sm_occupancy")


def with_measures(
    points: pd.DataFrame,
    data: StudyData,
    measures: Sequence[Callable[[MeasuredCell], pd.DataFrame]],
) -> pd.DataFrame:
    """Return points with the columns that each measure gives of a cell by `level`, and those of
    `device_use`.
    """
    for measure in measures:
        parts = [
            measure(cell).assign(**dict(zip(CELL_KEY, cell.key, strict=True)))
            for cell in data.cells
        ]
        # Infeasible cells have no rows, which would decide the types of columns.
        found = pd.concat([part for part in parts if len(part)] or parts[:1])
        points = points.merge(found.astype({"level": float}), on=LEVEL_KEY, how="left")
    return points.merge(device_use(data.telemetry), on=LEVEL_KEY, how="left")


def request_times(cell: MeasuredCell) -> pd.DataFrame:
    """Return by level `mean_processing_ms`, `mean_latency_ms` and `request_tokens`.

    Processing is from sent to last token, the latency of Recasens et al. (section 3.3);
    `mean_latency_ms` counts from when a request was due, so with the wait for a place in the
    batch; both are of ok requests. `request_tokens` is the largest sum of requested input and
    output.
    """
    times = ("scheduled_s", "sent_s", "last_token_s", "status")
    lengths = ["requested_input_tokens", "requested_output_tokens"]
    rows = cell.requests(["level", *times, *lengths])
    ok = rows["status"] == "ok"
    rows["request_tokens"] = rows[lengths].sum(axis=1)
    rows["mean_processing_ms"] = ((rows["last_token_s"] - rows["sent_s"]) * 1e3).where(ok)
    rows["mean_latency_ms"] = ((rows["last_token_s"] - rows["scheduled_s"]) * 1e3).where(ok)
    by_level = rows.groupby("level")
    means = by_level[["mean_processing_ms", "mean_latency_ms"]].mean()
    return means.assign(request_tokens=by_level["request_tokens"].max()).reset_index()


def fits_memory(points: pd.DataFrame) -> pd.Series:
    """Return, per point, whether the requests of its level fit the batch weights as a whole."""
    weight_tokens = points["batch_weight_tokens"] * points["replicas"]
    # Of servers that ran already the weight is unknown, and compares as no limit.
    return ~(points["level"] * points["request_tokens"] > weight_tokens)


def device_use(telemetry: pd.DataFrame) -> pd.DataFrame:
    """Return by point `{mean,max}_{utilization,memory_utilization,sm_active,sm_occupancy}`: the
    mean over devices and the highest maximum, fractions, null where no device reports them.
    """
    statistics = {f"{what}_{name}": what for name in _USES for what in ("mean", "max")}
    known = telemetry.astype(dict.fromkeys(statistics, float))
    return known.groupby(LEVEL_KEY).agg(statistics).reset_index()


def server_load(cell: MeasuredCell) -> pd.DataFrame:
    """Return by level what the servers held, all replicas together.

    Columns: `mean_running`, requests in the batch on average, and `n_preemptions`. Servers are
    asked once a second: of a level of few readings the mean is not known, of a single one the
    counter's gain neither.
    """
    windows = pd.DataFrame(
        [(level.level, level.started_s, level.ended_s) for level in cell.run.levels],
        columns=["level", "from_s", "to_s"],
        dtype=float,
    )
    # What was read before a level began, during its warm-up or a search, is not of it.
    rows = cell.server().merge(windows, on="level")
    rows = rows[rows["time_s"].between(rows["from_s"], rows["to_s"])]
    by_replica = rows.groupby(["level", "replica"])
    counter = by_replica["n_preemptions"]
    n_readings = by_replica.size()
    found = pd.DataFrame(
        {
            "mean_running": by_replica["n_running"].mean().where(n_readings >= _FEW_READINGS),
            "n_preemptions": (counter.max() - counter.min()).where(n_readings > 1),
        }
    )
    # A sum is unknown if one replica's part is.
    return found.groupby("level").agg(lambda own: own.sum(skipna=False)).reset_index()
