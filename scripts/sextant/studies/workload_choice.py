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
from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.wording import interval, listed, number, plural
from sextant.points.cell_files import MeasuredCell
from sextant.points.metrics import N_BLOCKS
from sextant.points.run import CELL_KEY
from sextant.studies.study import (
    Analysis,
    Finding,
    StudyData,
    findings_table,
    findings_words,
    level_words,
    mean_blocks,
    part,
    place_words,
    table_of,
    throughput_blocks,
)


def use_case_section(points: pd.DataFrame) -> Section:
    """Lengths and performance of every point."""
    text = (
        "Latency counts from when a request was due: at its arrival if latency-critical, at the "
        "start if best-effort. Per output token is the mean latency over the mean output."
    )
    loads = []
    for kind, level in zip(points["scenario_kind"], points["level"], strict=True):
        load = "all at once" if np.isinf(level) else f"{level_words(level)} requests/s"
        loads.append(f"{level_words(level)} in flight" if kind == Batch.kind else load)
    table = table_of(
        points.assign(load=loads),
        "workload_id llm_id gpu_profile_id inference load batch_weight_tokens kv_gib n_ok n_failed "
        "mean_input_tokens mean_output_tokens throughput_tok_s mean_ttft_ms mean_e2e_ms "
        "token_latency_ms",
        workload_id="Use case",
        batch_weight_tokens="KV cache (tokens)",
    )
    return part("Use cases", text, table=table)


def effect_section(effects: pd.DataFrame, n_resamples: int, n_blocks: int) -> Section:
    """What the largest cache brings over the smallest."""
    title = "Effect of a larger KV cache"
    if effects.empty:
        return part(title, "No use case was measured with two sizes.")
    intervals = {
        f"{name}_interval": effects[[f"{name}_ratio_low", f"{name}_ratio_high"]].agg(
            lambda ends: interval(*ends), axis=1
        )
        for name in ("throughput", "latency")
    }
    table = table_of(
        effects.assign(load=effects["level"].map(level_words), **intervals),
        "workload_id inference scenario_id load small_tokens large_tokens throughput_ratio "
        "throughput_interval latency_ratio latency_interval verdict",
        workload_id="Use case",
        load="Level",
        throughput_ratio="Throughput, largest over smallest",
        latency_ratio="Latency, largest over smallest",
        verdict="Larger is",
    )
    text = (
        "The verdict is by throughput for best-effort inference, by mean latency for "
        f"latency-critical. Intervals are percentiles of {n_resamples} bootstrap draws (seeded) of "
        f"the {n_blocks} blocks of either run, of latencies the same blocks of both where both "
        "runs served the same requests; they hold for n = 1 run each: what changes from one start "
        "of a server to the next is not in them. Latency-critical throughput is what arrives, as "
        "long as the server keeps up."
    )
    return part(title, text, table=table)


def cache_section(points: pd.DataFrame) -> Section:
    """Performance over the size of the cache, one line per use case, at the heaviest load."""
    panels = []
    places = ["llm_id", "gpu_profile_id", "inference", "scenario_id"]
    for (*_, inference, _scenario), rows in points.groupby(places, sort=False):
        heaviest = rows.groupby("workload_id")["level"].transform("max")
        own = rows[rows["level"] == heaviest]
        name, unit = ("mean_e2e_ms", "Mean latency (ms)")
        if inference == "best-effort":
            name, unit = "throughput_tok_s", "Output tokens/s"
        size = "kv_gib" if own["kv_gib"].notna().all() else "batch_weight_tokens"
        axis = Axis("KV cache (GiB)" if size == "kv_gib" else "KV cache (tokens)", is_log=True)
        lines = [
            Curve(workload_id, each[size], each[name])
            for workload_id, each in own.groupby("workload_id")
        ]
        heading = f"{inference}, {place_words(own.iloc[0])}"
        panels.append(Panel(heading, axis, Axis(unit, low=0), lines))
    title = "Performance over the size of the KV cache"
    figure = panels_figure(panels, title, has_points=True) if panels else None
    text = "The heaviest load of each scenario; mean latency from when requests were due."
    return part("Performance over the KV cache", text, figure)


def takeaways(points: pd.DataFrame, effects: pd.DataFrame) -> list[Finding]:
    """Return each takeaway, what was seen here, and whether it holds.

    An effect of the cache counts where its interval excludes 1, at the heaviest level of each
    scenario; use cases are distinguished by their measured mean inputs.
    """
    lengths = points[points["n_ok"] > 0].groupby("workload_id")
    lengths = lengths[["mean_input_tokens", "mean_output_tokens"]].mean()
    heaviest = effects[effects["is_heaviest"]] if len(effects) else effects
    return [
        Finding(
            "The use case decides the length of inputs more than of outputs.", *_lengths(lengths)
        ),
        Finding(
            "Use cases with large inputs (summarization, conversation) perform worse.",
            *_classes(points, lengths),
        ),
        Finding(
            "A larger KV cache improves latency-critical inference, except summarization.",
            *_larger_cache(heaviest, "latency-critical", lengths, is_longest_excepted=True),
        ),
        Finding(
            "A larger KV cache always improves best-effort inference.",
            *_larger_cache(heaviest, "best-effort", lengths, is_longest_excepted=False),
        ),
    ]


def _lengths(lengths: pd.DataFrame) -> tuple[str, bool | None]:
    if len(lengths) < 2:
        return "Fewer than two use cases were served.", None
    inputs, outputs = (lengths[name].max() / lengths[name].min() for name in lengths)
    here = (
        f"Mean inputs differ {number(inputs)} times between use cases, mean outputs "
        f"{number(outputs)} times."
    )
    return here, bool(inputs > outputs)


def _classes(points: pd.DataFrame, lengths: pd.DataFrame) -> tuple[str, bool | None]:
    """Compare each use case of large inputs with each of small ones, all else being equal.

    The two classes lie above and below the geometric middle of the mean inputs; better is a
    higher throughput if best-effort, a shorter time per output token if latency-critical.
    """
    if len(lengths) < 2:
        return "Fewer than two use cases were served.", None
    inputs = lengths["mean_input_tokens"]
    large = {*inputs.index[inputs > (inputs.min() * inputs.max()) ** 0.5]}
    served = points[points["n_ok"] > 0]
    n_worse = n_pairs = 0
    same = ["llm_id", "gpu_profile_id", "scenario_id", "level", "batch_weight_tokens"]
    for _, own in served.groupby(same):
        is_large = own["workload_id"].isin(large)
        name, sign = "throughput_tok_s", 1
        if (own["inference"] == "latency-critical").all():
            name, sign = "token_latency_ms", -1
        for value in sign * own.loc[is_large, name]:
            others = sign * own.loc[~is_large, name]
            n_worse, n_pairs = n_worse + int((value < others).sum()), n_pairs + len(others)
    if not n_pairs:
        return "No two use cases were measured in the same scenario with the same cache.", None
    here = (
        f"Large are the inputs of {listed(sorted(large))}. In {n_worse} of {n_pairs} pairs under "
        "the same load and cache the one with large inputs performs worse."
    )
    return here, n_worse == n_pairs


def _larger_cache(
    effects: pd.DataFrame, inference: str, lengths: pd.DataFrame, *, is_longest_excepted: bool
) -> tuple[str, bool | None]:
    own = effects[effects["inference"] == inference] if len(effects) else effects
    if own.empty:
        return f"No {inference} use case was measured with two cache sizes.", None
    verdicts = own.groupby("verdict")["workload_id"].agg(lambda names: sorted({*names}))
    here = "; ".join(f"{verdict}: {listed(names)}" for verdict, names in verdicts.items())
    here = f"Of {plural(own['workload_id'].nunique(), 'use case')} {here}"
    judged = own
    if is_longest_excepted and own["workload_id"].nunique() > 1:
        longest = lengths["mean_input_tokens"].idxmax()
        judged = own[own["workload_id"] != longest]
        here += f" (the longest inputs: {longest})"
    # What is not clear neither confirms nor refutes.
    holds = None if (judged["verdict"] != "worse").all() else False
    return f"{here}.", True if (judged["verdict"] == "better").all() else holds


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
    text = (
        "The cache counts where the 95 % interval of its effect excludes 1, at the heaviest load "
        "measured. The poster gives no numbers to compare with."
    )
    sections = [
        part("Takeaways", text, table=findings_table(found, "Takeaway of the poster")),
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
    """Return what the largest cache brings over the smallest, one row per use case and level.

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
    for name, (low, high) in ends.items():
        ratios[f"{name}_ratio"] = large[columns[name]] / small[columns[name]]
        ratios |= {f"{name}_ratio_low": low, f"{name}_ratio_high": high}
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
    verdicts = findings_words(found, "the poster's {} takeaways")
    return " ".join([*words, verdicts[0].upper() + verdicts[1:]])


def _effect_words(inference: str, effects: pd.DataFrame) -> str:
    name = "throughput" if inference == EFFORT else "latency"
    is_one_place = len(effects[["llm_id", "gpu_profile_id"]].drop_duplicates()) == 1
    parts = []
    for _, row in effects.iterrows():
        use_case = row["workload_id"] + ("" if is_one_place else f", {place_words(row)}")
        parts.append(f"{number(row[f'{name}_ratio'])} times for {use_case} ({row['verdict']})")
    return f"The largest KV cache brings {inference} inference a {name} of {listed(parts)}."
