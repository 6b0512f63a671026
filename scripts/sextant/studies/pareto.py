"""Throughput against latency over batch sizes, where it stops to grow, and what devices do then.

Recasens et al.: Towards Pareto Optimal Throughput in Small Language Model Serving, EuroMLSys 2024,
section 4.1.
"""

from collections.abc import Sequence

import pandas as pd

from sextant.experiment.scenarios import Batch, OpenLoop
from sextant.pages.wording import listed, plural
from sextant.studies.frontier import (
    LEAST_GAIN,
    agreement_words,
    gains_per_doubling,
    knee,
    largest_power_of_two,
    opt_batch_sizes,
    pareto_optimal,
)
from sextant.studies.pareto_sections import (
    activity_section,
    batch_table_section,
    energy_section,
    frontier_section,
    lengths_section,
    memory_section,
    published_section,
)
from sextant.studies.point_measures import fits_memory, request_times, server_load, with_measures
from sextant.studies.study_data import Analysis, StudyData

CURVE = ["llm_id", "gpu_profile_id", "workload_id", "variant_id"]
_OTHER_GAINS = (0.05, LEAST_GAIN, 0.2)


def analyse(data: StudyData) -> Analysis:
    """Find each LLM's frontier of throughput, its knee, and whether one device reaches it."""
    points = with_measures(data.points, data, (request_times, server_load))
    batches = batch_points(points[points["scenario_kind"] == Batch.kind], data)
    rates = points[points["scenario_kind"] == OpenLoop.kind]
    curves = find_knees(batches)
    verdicts = judge_llms(curves)
    published = opt_batch_sizes()
    return Analysis(
        summary=_summary(verdicts, curves),
        numbers={
            "least_gain_per_doubling": LEAST_GAIN,
            "batches": batches,
            "curves": curves,
            "llms": verdicts,
            "rates": rates,
            "published_batch_sizes": published,
        },
        sections=[
            frontier_section(batches, curves),
            memory_section(curves),
            published_section(published, agreement_words(published)),
            *([lengths_section(rates)] if len(rates) else []),
            activity_section(batches, data),
            energy_section(batches),
            batch_table_section(batches),
        ],
    )


def batch_points(points: pd.DataFrame, data: StudyData) -> pd.DataFrame:
    """Return the batches that served anything, with `n_gpus, batch_size, fits` (whole requests are
    within the batch weight) and `is_optimal`, among those that fit of one LLM and workload.
    """
    found = points[points["n_ok"] > 0].copy()
    found["n_gpus"] = [data.profiles[name].n_gpus for name in found["gpu_profile_id"]]
    found["batch_size"] = found["level"].astype(int)
    found["fits"] = fits_memory(found)
    found["is_optimal"] = False
    for _, rows in found[found["fits"]].groupby(["llm_id", "workload_id"]):
        is_optimal = pareto_optimal(rows["throughput_tok_s"], rows["mean_processing_ms"])
        found.loc[rows.index, "is_optimal"] = is_optimal
    return found.reset_index(drop=True)


def find_knees(batches: pd.DataFrame) -> pd.DataFrame:
    """Return one row a curve: its sizes, its knee, and the throughput there and at the end.

    Columns: those of `CURVE`, `n_gpus, n_sizes, largest_size` (of those that fit),
    `largest_fitting_size` (a power of two, from the batch weight), `knee_size` and
    `knee_size_by_gain` (null while throughput still grows), `last_gain` (per doubling),
    `{knee,largest}_{throughput_tok_s,processing_ms}`.
    """
    rows = [
        dict(zip(CURVE, key, strict=True)) | _curve(rows.sort_values("batch_size"))
        for key, rows in batches.groupby(CURVE, sort=False)
    ]
    names = [*CURVE, "n_gpus", "n_sizes", "knee_size", "largest_throughput_tok_s"]
    return pd.DataFrame(rows) if rows else pd.DataFrame(columns=names)


def _curve(rows: pd.DataFrame) -> dict:
    fitting = rows[rows["fits"]]
    sizes, rates = list(fitting["batch_size"]), list(fitting["throughput_tok_s"])
    places = {gain: knee(sizes, rates, gain) for gain in _OTHER_GAINS}
    place, gains = places[LEAST_GAIN], gains_per_doubling(sizes, rates)
    weight_tokens = rows["batch_weight_tokens"].iloc[0] * rows["replicas"].iloc[0]
    largest = largest_power_of_two(weight_tokens / rows["request_tokens"].max())
    found = {
        "n_gpus": int(rows["n_gpus"].iloc[0]),
        "n_sizes": len(sizes),
        "largest_size": sizes[-1] if sizes else None,
        "largest_fitting_size": None if pd.isna(weight_tokens) else largest,
        "knee_size": None if place is None else sizes[place],
        "knee_size_by_gain": {
            str(gain): None if at is None else sizes[at] for gain, at in places.items()
        },
        "last_gain": gains[-1] if gains else None,
    }
    for name, at in (("knee", place), ("largest", len(sizes) - 1 if sizes else None)):
        row = None if at is None else fitting.iloc[at]
        found[f"{name}_throughput_tok_s"] = None if row is None else row["throughput_tok_s"]
        found[f"{name}_processing_ms"] = None if row is None else row["mean_processing_ms"]
    return found


def judge_llms(curves: pd.DataFrame) -> pd.DataFrame:
    """Say of each LLM and workload whether one device reaches the frontier.

    `one_device` is `reached`, `still growing`, `one size only` or `does not fit`; `devices_gain`
    the largest throughput on more devices over that on one, null without either.
    """
    rows = []
    for (llm_id, workload_id), own in curves.groupby(["llm_id", "workload_id"], sort=False):
        single, more = own[own["n_gpus"] == 1], own[own["n_gpus"] > 1]
        best, best_more = (part["largest_throughput_tok_s"].max() for part in (single, more))
        knee_size = single["knee_size"].min()
        rows.append((llm_id, workload_id, _verdict(single), knee_size, best_more / best))
    names = ["llm_id", "workload_id", "one_device", "knee_size", "devices_gain"]
    return pd.DataFrame(rows, columns=names)


def _verdict(single: pd.DataFrame) -> str:
    if single["knee_size"].notna().any():
        return "reached"
    n_sizes = single["n_sizes"].max() if len(single) else 0
    return {0: "does not fit", 1: "one size only"}.get(int(n_sizes), "still growing")


def _summary(verdicts: pd.DataFrame, curves: pd.DataFrame) -> str:
    if verdicts.empty:
        return "No batch was served: nothing can be said of throughput and latency."
    reached = verdicts[verdicts["one_device"] == "reached"]
    n_llms = len(verdicts["llm_id"].unique())
    first = (
        f"{reached['llm_id'].nunique()} of {plural(n_llms, 'LLM')} reached the frontier of "
        f"throughput within one device: a batch size from which no doubling gained "
        f"{LEAST_GAIN:.0%} or more."
    )
    parts = [first, *_knee_words(curves)]
    growing = verdicts.loc[verdicts["one_device"] == "still growing", "llm_id"].unique()
    if len(growing):
        parts.append(f"Throughput of {listed(growing)} still grew at the largest batch tried.")
    absent = verdicts.loc[verdicts["one_device"] == "does not fit", "llm_id"].unique()
    if len(absent):
        parts.append(f"No batch of {listed(absent)} was measured on one device.")
    return " ".join(parts)


def _knee_words(curves: pd.DataFrame) -> Sequence[str]:
    kneed = curves[curves["knee_size"].notna() & (curves["n_gpus"] == 1)]
    return [
        f"{row['llm_id']} ({row['workload_id']}): batch size {row['knee_size']:g}, "
        f"{row['knee_throughput_tok_s']:,.0f} output tokens/s at "
        f"{row['knee_processing_ms']:,.0f} ms; "
        f"{row['largest_size']:g}: {row['largest_throughput_tok_s']:,.0f} at "
        f"{row['largest_processing_ms']:,.0f} ms."
        for _, row in kneed.iterrows()
    ]
