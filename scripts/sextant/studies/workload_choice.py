"""What a larger KV cache brings to which use case, served latency-critical or best-effort.

Papaioannou and Doudali: The Importance of Workload Choice in Evaluating LLM Inference Systems
(poster). Latency-critical requests come at a rate (open loop), best-effort ones all at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sextant.experiment.scenarios import Batch, OpenLoop
from sextant.facts.gpu import GIB
from sextant.pages.wording import listed, number
from sextant.points.cell_files import MeasuredCell
from sextant.points.run import CELL_KEY
from sextant.points.trust import N_BLOCKS
from sextant.studies.labels import Finding, findings_words, place_words
from sextant.studies.study_data import Analysis, StudyData
from sextant.studies.uncertainty import mean_blocks, throughput_blocks
from sextant.studies.workload_choice_sections import (
    cache_section,
    effect_section,
    takeaway_section,
    takeaways,
    use_case_section,
)

CRITICAL, EFFORT = "latency-critical", "best-effort"
N_RESAMPLES = 2000
_COMPARED = ["llm_id", "gpu_profile_id", "workload_id", "scenario_id", "level"]
_LENGTHS = ["requested_input_tokens", "requested_output_tokens"]
_COLUMNS = ["level", "user", "scheduled_s", "sent_s", "last_token_s", "token_offsets_ms"]
_COLUMNS += [*_LENGTHS, "status"]


def analyse(data: StudyData) -> Analysis:
    """Compare cache sizes within each use case and scenario, and use cases with each other."""
    points = _points(data)
    cells = {cell.key: cell for cell in data.cells}
    effects = cache_effects(points, cells, data.seed)
    found = takeaways(points, effects)
    sections = [
        takeaway_section(found),
        use_case_section(points),
        effect_section(effects, N_RESAMPLES, N_BLOCKS),
        cache_section(points),
    ]
    takeaway_rows = [each._asdict() for each in found]
    numbers: dict[str, Any] = {"points": points, "effects": effects, "takeaways": takeaway_rows}
    numbers |= {"n_resamples": N_RESAMPLES, "n_blocks": N_BLOCKS}
    return Analysis(_summary(points, effects, found), numbers, sections)


def _points(data: StudyData) -> pd.DataFrame:
    """Return the points of both scenarios with `inference`, `kv_gib` and `token_latency_ms`.

    `kv_gib` is what the batch weight's tokens take; null where the LLM's facts are not known.
    """
    rows = data.points[data.points["scenario_kind"].isin([OpenLoop.kind, Batch.kind])].copy()
    is_effort = (rows["scenario_kind"] == Batch.kind) | np.isinf(rows["level"])
    rows["inference"] = np.where(is_effort, EFFORT, CRITICAL)
    kv_bytes = {name: float(llm.kv_bytes_per_token) for name, llm in data.llms.items()}
    per_token = rows["llm_id"].map(kv_bytes).astype(float)
    rows["kv_gib"] = rows["batch_weight_tokens"] * per_token / GIB
    rows["token_latency_ms"] = rows["mean_e2e_ms"] / rows["mean_output_tokens"]
    return rows.sort_values([*_COMPARED, "batch_weight_tokens"]).reset_index(drop=True)


def cache_effects(
    points: pd.DataFrame, cells: Mapping[tuple, MeasuredCell], seed: int
) -> pd.DataFrame:
    """Return what the largest cache brings over the smallest, a row a use case and level.

    Columns: those compared within, `inference`, `{small,large}_tokens` and `_kv_gib`,
    `{throughput,latency}_ratio` with `_low` and `_high` (large over small, 95% bootstrap
    interval), `verdict` (by throughput if best-effort, by mean latency if latency-critical), and
    `is_heaviest`, the largest level of its scenario.
    """
    rows: list[dict[str, Any]] = []
    for place, own in points[points["n_ok"] > 0].groupby(_COMPARED):
        small, large = own.iloc[0], own.iloc[-1]
        if small["batch_weight_tokens"] == large["batch_weight_tokens"]:
            continue
        row: dict[str, Any] = dict(zip(_COMPARED, place, strict=True))
        row["inference"] = small["inference"]
        for name, point in (("small", small), ("large", large)):
            row |= {f"{name}_tokens": point["batch_weight_tokens"]}
            row |= {f"{name}_kv_gib": point["kv_gib"]}
        row |= _ratios(small, large, cells, np.random.default_rng([seed, len(rows)]))
        rows.append(row | {"verdict": _verdict(row)})
    found = pd.DataFrame(rows)
    if rows:
        heaviest = found.groupby(_COMPARED[:-1])["level"].transform("max")
        found["is_heaviest"] = found["level"] == heaviest
    return found


def _ratios(
    small: pd.Series,
    large: pd.Series,
    cells: Mapping[tuple, MeasuredCell],
    rng: np.random.Generator,
) -> dict[str, float]:
    runs = {}
    for name, point in (("large", large), ("small", small)):
        run = _served(point, cells[tuple(point[list(CELL_KEY)])])
        tokens_s = throughput_blocks(run) / point["duration_s"]
        latency_s = mean_blocks(run["last_token_s"] - run["scheduled_s"])
        runs[name] = (tokens_s, latency_s, run[_LENGTHS].to_numpy())
    (tokens, latencies, lengths), (base_tokens, base_latencies, base_lengths) = runs.values()
    # The same seed asks for the same requests: what makes one of them slow makes its twin slow.
    is_paired = np.array_equal(lengths, base_lengths)
    ends = {
        "throughput": bootstrap_ratio(tokens, base_tokens, rng, is_paired=False),
        "latency": bootstrap_ratio(latencies, base_latencies, rng, is_paired=is_paired),
    }
    columns = {"throughput": "throughput_tok_s", "latency": "mean_e2e_ms"}
    ratios = {}
    for name, interval in ends.items():
        ratios[f"{name}_ratio"] = large[columns[name]] / small[columns[name]]
        ratios |= dict(zip((f"{name}_ratio_low", f"{name}_ratio_high"), interval, strict=True))
    return ratios


def _served(point: pd.Series, cell: MeasuredCell) -> pd.DataFrame:
    """Return a point's served requests in the order of their schedule."""
    rows = cell.requests(_COLUMNS)
    served = rows[(rows["level"] == point["level"]) & (rows["status"] == "ok")]
    return served.sort_values(["scheduled_s", "user"])


def bootstrap_ratio(
    blocks: np.ndarray, base_blocks: np.ndarray, rng: np.random.Generator, *, is_paired: bool
) -> tuple[float, float]:
    """Return the 95% percentile interval of the ratio of two means, of blocks drawn with
    replacement.

    Successive requests depend on each other, blocks of them hardly do. Paired, the same blocks are
    drawn of both runs. With fewer than 2 blocks nothing is known.
    """
    n, n_base = len(blocks), len(base_blocks)
    if min(n, n_base) < 2:
        return np.nan, np.nan
    drawn = rng.integers(n, size=(N_RESAMPLES, n))
    drawn_base = drawn if is_paired else rng.integers(n_base, size=(N_RESAMPLES, n_base))
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = blocks[drawn].mean(axis=1) / base_blocks[drawn_base].mean(axis=1)
        low, high = np.nanquantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def _verdict(row: Mapping[str, float]) -> str:
    name = "throughput" if row["inference"] == EFFORT else "latency"
    low, high = row[f"{name}_ratio_low"], row[f"{name}_ratio_high"]
    if not (low > 1 or high < 1):
        return "no clear change"
    return "better" if (low > 1) == (name == "throughput") else "worse"


def _summary(points: pd.DataFrame, effects: pd.DataFrame, found: Sequence[Finding]) -> str:
    if points.empty:
        return "No use case was measured latency-critical or best-effort: nothing can be said."
    words = [f"Use cases measured: {points['workload_id'].nunique()}."]
    if len(effects):
        for inference, own in effects[effects["is_heaviest"]].groupby("inference", sort=False):
            words.append(_effect_words(inference, own))
    told = findings_words(found, "the poster's {} takeaways")
    return " ".join([*words, told[0].upper() + told[1:]])


def _effect_words(inference: str, effects: pd.DataFrame) -> str:
    name = "throughput" if inference == EFFORT else "latency"
    is_one_place = len(effects[["llm_id", "gpu_profile_id"]].drop_duplicates()) == 1
    parts = []
    for _, row in effects.iterrows():
        use_case = row["workload_id"] + ("" if is_one_place else f", {place_words(row)}")
        parts.append(f"{number(row[f'{name}_ratio'])} times for {use_case} ({row['verdict']})")
    return f"The largest KV cache brings {inference} inference a {name} of {listed(parts)}."
