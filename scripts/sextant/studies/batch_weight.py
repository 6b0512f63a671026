"""Latency against batch weight at the most users (LLM-Pilot, section II, Fig. 1)."""

from collections.abc import Sequence

import pandas as pd

from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section
from sextant.pages.wording import number
from sextant.studies.labels import place_words, table_of

PUBLISHED_RATIO = 2.8
"""Latency at the smallest batch weight over that at the largest, for StarCoder on an A100 with 128
users (section II)."""
_SERIES = ["llm_id", "gpu_profile_id", "workload_id", "scenario_id"]


def series(points: pd.DataFrame, others: Sequence[str]) -> pd.DataFrame:
    """Return the points at the most users of servers that differ in their batch weight alone.

    Args:
        points: of closed loops; a point without a served request is left out.
        others: columns that have to be equal, null being a value of its own. Of several such
            series of an LLM, GPU profile, workload and scenario the one with most weights is taken.
    """
    served = points[points["n_ok"] > 0]
    parts = []
    for _, own in served.groupby(_SERIES):
        top = own[own["level"] == own["level"].max()]
        groups = [group for _, group in top.groupby(list(others), dropna=False)]
        longest = max(groups, key=lambda group: group["batch_weight_tokens"].nunique())
        if longest["batch_weight_tokens"].nunique() > 1:
            parts.append(longest.sort_values("batch_weight_tokens"))
    return pd.concat(parts) if parts else served[:0]


def weight_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row a series: its key, `users`, `{smallest,largest}_tokens` and `e2e_ratio`.

    `e2e_ratio` is the median end-to-end latency at the smallest weight over that at the largest.
    """
    found = []
    for key, own in rows.groupby(_SERIES):
        first, last = own.iloc[0], own.iloc[-1]
        found.append(
            {
                **dict(zip(_SERIES, key, strict=True)),
                "users": first["level"],
                "smallest_tokens": first["batch_weight_tokens"],
                "largest_tokens": last["batch_weight_tokens"],
                "e2e_ratio": first["median_e2e_ms"] / last["median_e2e_ms"],
            }
        )
    return pd.DataFrame(found)


def ratio_words(ratios: pd.DataFrame) -> str:
    """Say what the batch weight does to latency, beside the paper's figure."""
    if ratios.empty:
        return "No two servers differ in their batch weight alone: its effect is not known."
    parts = [
        f"{place_words(row)} with {row['users']:g} users: {number(row['e2e_ratio'])}"
        for _, row in ratios.iterrows()
    ]
    return (
        "Median end-to-end latency at the smallest batch weight over that at the largest: "
        f"{'; '.join(parts)} (LLM-Pilot: about {PUBLISHED_RATIO:g}, for StarCoder on an A100 with "
        "128 users)."
    )


def batch_weight_section(rows: pd.DataFrame, ratios: pd.DataFrame) -> Section:
    """The curve, after LLM-Pilot's Fig. 1."""
    title, text = "Latency against batch weight", ratio_words(ratios)
    if rows.empty:
        return Section.of_text(title, text)
    lines = []
    for key, own in rows.groupby(_SERIES):
        name = key[0] if ratios["llm_id"].is_unique else " · ".join(key)
        lines.append(Curve(name, own["batch_weight_tokens"], own["median_e2e_ms"]))
    weight = Axis("Batch weight (tokens)", is_log=True)
    latency = Axis("Median end-to-end latency (ms)", low=0)
    panel = Panel("At the most users", weight, latency, lines)
    table = table_of(
        rows,
        "llm_id gpu_profile_id workload_id variant_id batch_weight_tokens level n_ok median_e2e_ms "
        "median_ttft_ms median_itl_ms throughput_tok_s",
        level="Users",
    )
    return Section.of_text(title, text, panels_figure([panel], title, has_points=True), table)
