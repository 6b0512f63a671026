"""What the page of the study `workload_choice` shows."""

import numpy as np
import pandas as pd

from sextant.pages.charts import Axis
from sextant.studies.data import Section
from sextant.studies.drawing import Line, Panel, lines_figure
from sextant.studies.measures import columns_of, level_words, place_words

_VERDICTS = {True: "yes", False: "no", None: "cannot be told"}


def takeaway_section(found: pd.DataFrame) -> Section:
    """The poster's takeaways beside what was seen."""
    table = pd.DataFrame(
        {
            "Takeaway of the poster": found["takeaway"],
            "Here": found["here"],
            "Holds": [_VERDICTS[holds] for holds in found["holds"]],
        }
    )
    text = (
        "The cache counts where the 95 % interval of its effect excludes 1, at the heaviest load "
        "measured. The poster gives no numbers to compare with."
    )
    return Section("Takeaways", text, None, table)


def use_case_section(points: pd.DataFrame) -> Section:
    """Lengths and performance of every point."""
    names = {
        "workload_id": "Use case",
        "llm_id": "LLM",
        "gpu_profile_id": "GPU profile",
        "inference": "Inference",
        "load": "Load",
        "batch_weight_tokens": "KV cache (tokens)",
        "kv_gib": "KV cache (GiB)",
        "n_ok": "Requests",
        "n_failed": "Failed",
        "mean_input_tokens": "Input, mean (tokens)",
        "mean_output_tokens": "Output, mean (tokens)",
        "throughput_tok_s": "Output tokens/s",
        "mean_ttft_ms": "TTFT, mean (ms)",
        "mean_e2e_ms": "Latency, mean (ms)",
        "token_latency_ms": "Per output token (ms)",
    }
    text = (
        "Latency counts from when a request was due: at its arrival if latency-critical, at the "
        "start if best-effort. Per output token is the mean latency over the mean output."
    )
    shown = points.assign(load=[_load_words(row) for row in points.itertuples()])
    return Section("Use cases", text, None, columns_of(shown, names))


def _load_words(row) -> str:
    if row.scenario_kind == "batch":
        return f"{level_words(row.level)} in flight"
    return "all at once" if np.isinf(row.level) else f"{level_words(row.level)} requests/s"


def effect_section(effects: pd.DataFrame, n_resamples: int, n_blocks: int) -> Section:
    """What the largest cache brings over the smallest."""
    if effects.empty:
        return Section("Effect of a larger KV cache", "No use case was measured with two sizes.")
    names = {
        "workload_id": "Use case",
        "inference": "Inference",
        "scenario_id": "Scenario",
        "load": "Level",
        "small_tokens": "Smallest cache (tokens)",
        "large_tokens": "Largest (tokens)",
        "throughput_ratio": "Throughput, largest over smallest",
        "throughput_interval": "95 % interval",
        "latency_ratio": "Latency, largest over smallest",
        "latency_interval": "95 % interval of it",
        "verdict": "Larger is",
    }
    intervals = {
        f"{name}_interval": [
            f"{low:.2f}–{high:.2f}" if np.isfinite([low, high]).all() else "–"
            for low, high in zip(
                effects[f"{name}_ratio_low"], effects[f"{name}_ratio_high"], strict=True
            )
        ]
        for name in ("throughput", "latency")
    }
    shown = effects.assign(load=effects["level"].map(level_words), **intervals)
    text = (
        "The verdict is by throughput for best-effort inference, by mean latency for "
        f"latency-critical. Intervals are percentiles of {n_resamples} bootstrap draws (seeded) of "
        f"the {n_blocks} blocks of either run, of latencies the same blocks of both where both "
        "runs served the same requests; they hold for n = 1 run each: what changes from one start "
        "of a server to the next is not in them. Latency-critical throughput is what arrives, as "
        "long as the server keeps up."
    )
    return Section("Effect of a larger KV cache", text, None, columns_of(shown, names))


def cache_section(points: pd.DataFrame) -> Section:
    """Performance over the size of the cache, a line a use case, at the heaviest load."""
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
            Line(workload_id, each[size], each[name])
            for workload_id, each in own.groupby("workload_id")
        ]
        heading = f"{inference}, {place_words(own.iloc[0])}"
        panels.append(Panel(heading, axis, Axis(unit, low=0), lines))
    figure = lines_figure(panels, "Performance over the size of the KV cache") if panels else None
    text = "The heaviest load of each scenario; mean latency from when requests were due."
    return Section("Performance over the KV cache", text, figure)
