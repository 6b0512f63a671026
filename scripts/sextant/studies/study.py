"""What a study's analysis gets and gives, and the words, tables and axes that its page uses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.pages.blocks import Block, Chart, Section, Table, paragraphs
from sextant.pages.charts import Curve
from sextant.pages.figure import Axis
from sextant.pages.wording import yes_or_no
from sextant.points.cell_files import MeasuredCell
from sextant.points.metrics import POINT_LABELS


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
