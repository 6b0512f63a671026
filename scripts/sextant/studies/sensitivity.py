"""Which part of a deployment moves latency: CPU cores, host memory, batch weight or users.

Lazuka et al.: LLM-Pilot, SC 2024, section III-D (Fig. 4). A random forest learns a point's median
latency from how its server was set up and how many users it had; the mean decrease in impurity
(MDI) is each factor's share in the forest's splits.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.experiment.scenarios import ClosedLoop
from sextant.pages.blocks import Section, Table
from sextant.pages.charts import Axis, Curve, Panel, bars_figure, panels_figure
from sextant.pages.wording import listed, number, plural
from sextant.points.run import CELL_KEY
from sextant.studies.study import Analysis, StudyData, part, place_words, table_of

FACTORS = {
    "cpu_cores": "CPU cores",
    "memory_limit_gib": "host memory",
    "batch_weight_tokens": "batch weight",
    "users": "users",
}
TARGETS = {"median_ttft_ms": "TTFT", "median_itl_ms": "ITL"}
N_SEEDS = 10
N_TREES = 100
MIN_POINTS = 8
"""Below, a forest has next to nothing to learn from."""
_SET_UP = ("cpu_cores", "memory_limit_gib")
_PLACE = ["llm_id", "gpu_profile_id"]
PUBLISHED = (
    "LLM-Pilot reports MDI scores of CPU cores and memory more than 300 times below that of the "
    "batch weight (StarCoder on an A100-40GB)"
)


def analyse(data: StudyData) -> Analysis:
    """Rank the factors for every LLM and GPU profile by itself."""
    points = _points(data)
    found = [
        {**dict(zip(_PLACE, place, strict=True)), **importance(own, target, data.seed)}
        for place, own in points.groupby(_PLACE)
        for target in TARGETS
    ]
    rows = series(points, _SET_UP)
    ratios = weight_ratios(rows)
    sections = [_importance_section(each) for each in found]
    sections.append(batch_weight_section(rows, ratios))
    words = [_words(each) for each in found] or ["No closed loop was measured."]
    numbers = {"points": points, "importance": found, "batch_weight": ratios}
    return Analysis(" ".join([*words, ratio_words(ratios)]), numbers, sections)


def _points(data: StudyData) -> pd.DataFrame:
    """Return the points of closed loops with the variant's fields; null is the server's default."""
    set_ups = [[getattr(cell.run.variant, name) for name in _SET_UP] for cell in data.cells]
    variants = pd.DataFrame(
        [[*cell.key, *own] for cell, own in zip(data.cells, set_ups, strict=True)],
        columns=[*CELL_KEY, *_SET_UP],
    ).astype(dict.fromkeys(_SET_UP, float))
    rows = data.points[data.points["scenario_kind"] == ClosedLoop.kind]
    return rows.merge(variants, on=list(CELL_KEY), how="left")


def importance(points: pd.DataFrame, target: str, seed: int) -> dict[str, Any]:
    """Return what random forests of `N_SEEDS` seeds, the first of them `seed`, say of the factors
    of one target, a column of `TARGETS`; points without a value of it are left out.

    Keys: `target, n_points, n_set_ups` (distinct servers), `factors` (a frame of `factor,
    n_values, {mdi,permutation}_{mean,sd}`, the spread over seeds), `batch_weight_over` (its MDI
    over those of cores and memory), `r2_mean` and `r2_sd` (out of bag), `not_varied` and
    `not_known` (factors of one value, or without a value at some points: left out, importance
    null), and `reason`, null unless no forest was grown.
    """
    served = points[points[target].notna()]
    n_values = served[list(FACTORS)].nunique()
    not_known = [name for name in FACTORS if served[name].isna().any() and n_values[name]]
    not_varied = [name for name in FACTORS if n_values[name] < 2 and name not in not_known]
    used = [name for name in FACTORS if name not in (*not_known, *not_varied)]
    reason = None
    if len(served) < MIN_POINTS:
        reason = f"{len(served)} points have the latency, {MIN_POINTS} are needed"
    elif not used:
        reason = "no factor was varied"
    elif served[target].nunique() < 2:
        reason = "all points have the same latency"
    found = {
        "target": target,
        "n_points": len(served),
        "n_set_ups": len(served[[*_SET_UP, "batch_weight_tokens"]].drop_duplicates()),
        "not_varied": not_varied,
        "not_known": not_known,
        "reason": reason,
    }
    x, y = served[used].to_numpy(float), served[target].to_numpy(float)
    forests = [_grow(x, y, each) for each in range(seed, seed + N_SEEDS) if reason is None]
    factors = pd.DataFrame({"factor": list(FACTORS), "n_values": n_values.to_numpy()})
    for kind in ("mdi", "permutation"):
        values = pd.DataFrame([getattr(each, kind) for each in forests], columns=used)
        for statistic, series_ in (("mean", values.mean()), ("sd", values.std(ddof=1))):
            factors[f"{kind}_{statistic}"] = factors["factor"].map(series_)
    r2 = pd.Series([each.r2 for each in forests], dtype=float)
    mdi = factors.set_index("factor")["mdi_mean"]
    ratios = mdi["batch_weight_tokens"] / mdi[list(_SET_UP)]
    found |= {"factors": factors, "batch_weight_over": ratios[np.isfinite(ratios)].to_dict()}
    return found | {"r2_mean": float(r2.mean()), "r2_sd": float(r2.std())}


class _Forest(NamedTuple):
    """What a random forest says of each column, (columns,)."""

    mdi: np.ndarray
    """Share in the decrease of impurity, in sum 1. It favours columns of many values."""
    permutation: np.ndarray
    """Loss of R² when a column's values change places at random, mean of five times. Two columns
    that vary together share their importance."""
    r2: float
    """Out of bag."""


def _grow(x: np.ndarray, y: np.ndarray, seed: int) -> _Forest:
    """Train scikit-learn's forest with its defaults: 100 trees grown to the end."""
    # It takes a second to import.
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    forest = RandomForestRegressor(oob_score=True, random_state=seed).fit(x, y)
    lost = permutation_importance(forest, x, y, n_repeats=5, random_state=seed)
    return _Forest(forest.feature_importances_, lost.importances_mean, forest.oob_score_)


def _words(found: Mapping[str, Any]) -> str:
    place = f"{TARGETS[found['target']]} of {place_words(found)}"
    if found["reason"]:
        return f"{place}: no importance ({found['reason']})."
    ranked = found["factors"].dropna(subset=["mdi_mean"]).sort_values("mdi_mean", ascending=False)
    parts = [f"{FACTORS[row.factor]} {number(row.mdi_mean)}" for row in ranked.itertuples()]
    words = (
        f"Importance (MDI) for {place}: {listed(parts)}; R² out of bag {number(found['r2_mean'])}"
    )
    words += ", so the forest does not predict it." if found["r2_mean"] < 0 else "."
    ratios = found["batch_weight_over"]
    over = [f"{number(ratio)} times {FACTORS[name]}" for name, ratio in ratios.items()]
    return words + (f" Batch weight scores {listed(over)}." if over else "")


def _importance_section(found: Mapping[str, Any]) -> Section:
    title = f"Importance for {TARGETS[found['target']]}: {place_words(found)}"
    text = f"{found['n_points']} points: medians of {plural(found['n_set_ups'], 'server set-up')} "
    text += "by number of users. "
    if found["reason"]:
        return part(title, text + f"No forest was grown: {found['reason']}.")
    for names, words in ((found["not_varied"], "Not varied"), (found["not_known"], "Not known")):
        if names:
            text += f"{words}: {listed([FACTORS[name] for name in names])}. "
    text += (
        f"Mean and standard deviation over {N_SEEDS} seeds of forests of {N_TREES} trees; R² out "
        f"of bag is {number(found['r2_mean'])} ± {number(found['r2_sd'])}. MDI sums to 1, favours "
        "factors of many values and is computed on the points of the training, as is permutation "
        "importance (loss of R²). Factors that changed together share what either is worth. "
        f"{PUBLISHED}. On a CPU profile cores are the device itself, so they count for more."
    )
    factors = found["factors"]
    known = factors.dropna(subset=["mdi_mean"])
    groups = [("MDI", known["mdi_mean"].tolist())]
    groups.append(("Permutation", known["permutation_mean"].tolist()))
    figure = bars_figure([FACTORS[name] for name in known["factor"]], groups, "Importance", title)
    labels = {
        "factor": "Factor",
        "n_values": "Values",
        "mdi_mean": "MDI",
        "mdi_sd": "± MDI",
        "permutation_mean": "Permutation",
        "permutation_sd": "± permutation",
    }
    shown = factors.assign(factor=factors["factor"].map(FACTORS))
    return part(title, text, figure, Table.of_frame(shown, labels))


PUBLISHED_RATIO = 2.8
"""Latency at the smallest batch weight over that at the largest, for StarCoder on an A100 with 128
users (section II)."""
_SERIES = ["llm_id", "gpu_profile_id", "workload_id", "scenario_id"]


def series(points: pd.DataFrame, others: Sequence[str]) -> pd.DataFrame:
    """Return the points at the most users of servers that differ in their batch weight alone.

    Of closed loops, points without a served request left out. The columns `others` have to be
    equal, null being a value of its own; of several such series of an LLM, GPU profile, workload
    and scenario the one with most weights is taken.
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
    """Return one row per series: its key, `users`, `{smallest,largest}_tokens` and `e2e_ratio`, the
    median end-to-end latency at the smallest weight over that at the largest.
    """
    by_series = rows.groupby(_SERIES)
    found = by_series.agg(
        users=("level", "first"),
        smallest_tokens=("batch_weight_tokens", "first"),
        largest_tokens=("batch_weight_tokens", "last"),
    )
    latency_ms = by_series["median_e2e_ms"]
    return found.assign(e2e_ratio=latency_ms.first() / latency_ms.last()).reset_index()


def ratio_words(ratios: pd.DataFrame) -> str:
    """Return the effect of the batch weight on latency in words, with the paper's figure."""
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
        return part(title, text)
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
    return part(title, text, panels_figure([panel], title, has_points=True), table)
