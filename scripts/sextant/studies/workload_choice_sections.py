"""What the page of the study `workload_choice` shows."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sextant.experiment.scenarios import Batch
from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section
from sextant.pages.wording import interval, listed, number, plural
from sextant.studies.labels import Finding, findings_table, level_words, place_words, table_of


def takeaway_section(found: Sequence[Finding]) -> Section:
    """The poster's takeaways beside what was seen."""
    text = (
        "The cache counts where the 95 % interval of its effect excludes 1, at the heaviest load "
        "measured. The poster gives no numbers to compare with."
    )
    return Section.of_text("Takeaways", text, table=findings_table(found, "Takeaway of the poster"))


def use_case_section(points: pd.DataFrame) -> Section:
    """Lengths and performance of every point."""
    text = (
        "Latency counts from when a request was due: at its arrival if latency-critical, at the "
        "start if best-effort. Per output token is the mean latency over the mean output."
    )
    loads = zip(points["scenario_kind"], points["level"], strict=True)
    table = table_of(
        points.assign(load=[_load_words(kind, level) for kind, level in loads]),
        "workload_id llm_id gpu_profile_id inference load batch_weight_tokens kv_gib n_ok n_failed "
        "mean_input_tokens mean_output_tokens throughput_tok_s mean_ttft_ms mean_e2e_ms "
        "token_latency_ms",
        workload_id="Use case",
        batch_weight_tokens="KV cache (tokens)",
    )
    return Section.of_text("Use cases", text, table=table)


def _load_words(scenario_kind: str, level: float) -> str:
    if scenario_kind == Batch.kind:
        return f"{level_words(level)} in flight"
    return "all at once" if np.isinf(level) else f"{level_words(level)} requests/s"


def effect_section(effects: pd.DataFrame, n_resamples: int, n_blocks: int) -> Section:
    """What the largest cache brings over the smallest."""
    title = "Effect of a larger KV cache"
    if effects.empty:
        return Section.of_text(title, "No use case was measured with two sizes.")
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
    return Section.of_text(title, text, table=table)


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
            Curve(workload_id, each[size], each[name])
            for workload_id, each in own.groupby("workload_id")
        ]
        heading = f"{inference}, {place_words(own.iloc[0])}"
        panels.append(Panel(heading, axis, Axis(unit, low=0), lines))
    title = "Performance over the size of the KV cache"
    figure = panels_figure(panels, title, has_points=True) if panels else None
    text = "The heaviest load of each scenario; mean latency from when requests were due."
    return Section.of_text("Performance over the KV cache", text, figure)


def takeaways(points: pd.DataFrame, effects: pd.DataFrame) -> list[Finding]:
    """Return each takeaway, what was seen here, and whether it holds.

    An effect of the cache counts where its interval excludes 1, at the heaviest level of each
    scenario; use cases are told apart by the mean inputs that they were measured with.
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
