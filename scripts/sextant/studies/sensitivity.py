"""Which part of a deployment moves latency: CPU cores, host memory, batch weight or users.

Lazuka et al.: LLM-Pilot, SC 2024, section III-D (Fig. 4). A random forest learns a point's median
latency from how its server was set up and how many users it had; the mean decrease in impurity
(MDI) is each factor's share in the forest's splits.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from sextant.experiment.scenarios import ClosedLoop
from sextant.pages.blocks import Section, Table
from sextant.pages.charts import Axis, Curve, Panel
from sextant.pages.words import joined, number, plural
from sextant.points.run import CELL_KEY
from sextant.studies import study
from sextant.studies.study import SETTING, Analysis, StudyData, part, table_of

FACTORS = {
    "cpu_cores": "CPU cores",
    "memory_limit_gib": "host memory",
    "batch_weight_tokens": "batch weight",
    "users": "users",
}
TARGETS = {"median_ttft_ms": "TTFT", "median_itl_ms": "ITL"}
N_SEEDS = 10
MIN_POINTS = 8  # below, a forest has next to nothing to learn from
PUBLISHED_RATIO = 2.8
"""Latency at the smallest batch weight over the largest's: StarCoder, A100, 128 users (II)."""
_SET_UP = ("cpu_cores", "memory_limit_gib")


@dataclass(frozen=True)
class FactorImportance:
    """How much each of `FACTORS` moves one latency of an LLM on a GPU profile."""

    llm_id: str
    gpu_profile_id: str
    target: str
    """A column of `TARGETS`."""
    n_points: int
    n_set_ups: int
    not_varied: list[str]
    """Factors with one value: their importance is null."""
    not_known: list[str]
    """Factors that some points lack: their importance is null, too."""
    reason: str | None
    """Why no forest was grown; None: `N_SEEDS` forests were grown."""
    factors: pd.DataFrame
    """One row per factor: `factor, n_values, {mdi,permutation}_{mean,sd}` over the seeds."""
    batch_weight_over: dict[str, float]
    """MDI of the batch weight over the MDI of cores and of memory."""
    r2_mean: float
    """R² out of bag."""
    r2_sd: float

    @property
    def where(self) -> str:
        """The LLM and the GPU profile."""
        return f"{self.llm_id} on {self.gpu_profile_id}"

    @property
    def summary(self) -> str:
        """The factors by their importance, in a sentence or two."""
        what = f"{TARGETS[self.target]} of {self.where}"
        if self.reason:
            return f"{what}: no importance ({self.reason})."

        ranked = self.factors.dropna(subset=["mdi_mean"]).sort_values("mdi_mean", ascending=False)
        parts = [f"{FACTORS[row.factor]} {number(row.mdi_mean)}" for row in ranked.itertuples()]
        words = (
            f"Importance (MDI) for {what}: {joined(parts)}; R² out of bag {number(self.r2_mean)}"
        )
        words += ", so the forest does not predict it." if self.r2_mean < 0 else "."
        ratios = self.batch_weight_over
        over = [f"{number(ratio)} times {FACTORS[name]}" for name, ratio in ratios.items()]

        return words + (f" Batch weight scores {joined(over)}." if over else "")

    @property
    def section(self) -> Section:
        """The importance of each factor, as a figure and a table."""
        title = f"Importance for {TARGETS[self.target]}: {self.where}"
        text = f"{self.n_points} points: medians of {plural(self.n_set_ups, 'server set-up')} "
        text += "by number of users. "
        if self.reason:
            return part(title, text + f"No forest was grown: {self.reason}.")

        for names, words in ((self.not_varied, "Not varied"), (self.not_known, "Not known")):
            if names:
                text += f"{words}: {joined([FACTORS[name] for name in names])}. "

        text += (
            f"Mean and standard deviation over {N_SEEDS} seeds of forests of 100 trees; R² out of "
            f"bag is {number(self.r2_mean)} ± {number(self.r2_sd)}. MDI sums to 1 and favours "
            "factors of many values; permutation importance is the loss of R². Factors that "
            "changed together share what either is worth. In LLM-Pilot, CPU cores and memory "
            "score more than 300 times below the batch weight (StarCoder on an A100-40GB); on a "
            "CPU profile cores are the device itself."
        )
        shown = self.factors.assign(factor=self.factors["factor"].map(FACTORS))
        ranked = shown.dropna(subset=["mdi_mean"])
        places = np.arange(len(ranked))
        curves = []
        for kind, name, shift in (("mdi", "MDI", -0.1), ("permutation", "Permutation", 0.1)):
            mean = ranked[f"{kind}_mean"]
            sd = ranked[f"{kind}_sd"]
            curves.append(Curve(name, places + shift, mean, mean - sd, mean + sd, is_marks=True))

        names = ranked["factor"].tolist()
        high = len(ranked) - 0.5
        x = Axis("", ticks=range(len(ranked)), names=names, low=-0.5, high=high)
        figure = [Panel("", x, Axis("Importance", low=0), curves)]
        labels = ("Factor", "Values", "MDI", "± MDI", "Permutation", "± permutation")
        table = Table.of_frame(shown, dict(zip(shown, labels, strict=True)))

        return part(title, text, figure, table)


def analyse(data: StudyData) -> Analysis:
    """Rank the factors for every LLM and GPU profile by itself."""
    # Of the variants' fields null is the server's default.
    set_ups = [
        dict(zip(CELL_KEY, cell.run.ids, strict=True))
        | {name: getattr(cell.run.variant, name) for name in _SET_UP}
        for cell in data.cells
    ]
    variants = pd.DataFrame(set_ups).astype(dict.fromkeys(_SET_UP, float))
    points = data.points_of(ClosedLoop.kind).merge(variants, on=list(CELL_KEY), how="left")
    importances = [
        importance(group, llm_id, profile_id, target, data.seed)
        for (llm_id, profile_id), group in points.groupby(["llm_id", "gpu_profile_id"])
        for target in TARGETS
    ]
    effect = BatchWeightEffect.of_points(points)

    sections = [result.section for result in importances]
    sections.append(effect.section)
    words = [result.summary for result in importances] or ["No closed loop was measured."]
    numbers = {
        "points": points,
        "importance": [vars(result) for result in importances],
        "batch_weight": effect.ratios,
    }

    return Analysis(" ".join([*words, effect.summary]), numbers, sections)


def importance(
    points: pd.DataFrame, llm_id: str, gpu_profile_id: str, target: str, seed: int
) -> FactorImportance:
    """Return the importance of the factors for a column of `TARGETS`, by `N_SEEDS` forests.

    The points are of this LLM and GPU profile. The seeds of the forests begin with `seed`. MDI sums
    to 1 and favours columns with many values. Permutation importance is the loss of R², the mean of
    five; columns that vary together share it.
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

    x = served[used].to_numpy(float)
    y = served[target].to_numpy(float)
    scores: dict[str, list[np.ndarray]] = {"mdi": [], "permutation": []}
    r2_of_seeds = []
    if reason is None:
        # It takes a second to import.
        from sklearn.ensemble import RandomForestRegressor
        from sklearn.inspection import permutation_importance

        for forest_seed in range(seed, seed + N_SEEDS):
            forest = RandomForestRegressor(oob_score=True, random_state=forest_seed).fit(x, y)
            lost = permutation_importance(forest, x, y, n_repeats=5, random_state=forest_seed)
            scores["mdi"].append(forest.feature_importances_)
            scores["permutation"].append(lost.importances_mean)
            r2_of_seeds.append(forest.oob_score_)

    factors = pd.DataFrame({"factor": list(FACTORS), "n_values": n_values.to_numpy()})
    for kind, score_of_seeds in scores.items():
        values = pd.DataFrame(score_of_seeds, columns=used)
        factors[f"{kind}_mean"] = factors["factor"].map(values.mean())
        factors[f"{kind}_sd"] = factors["factor"].map(values.std(ddof=1))

    r2 = pd.Series(r2_of_seeds, dtype=float)
    mdi = factors.set_index("factor")["mdi_mean"]
    ratios = mdi["batch_weight_tokens"] / mdi[list(_SET_UP)]

    return FactorImportance(
        llm_id,
        gpu_profile_id,
        target,
        n_points=len(served),
        n_set_ups=len(served[[*_SET_UP, "batch_weight_tokens"]].drop_duplicates()),
        not_varied=not_varied,
        not_known=not_known,
        reason=reason,
        factors=factors,
        batch_weight_over=ratios[np.isfinite(ratios)].to_dict(),
        r2_mean=float(r2.mean()),
        r2_sd=float(r2.std()),
    )


@dataclass(frozen=True)
class BatchWeightEffect:
    """How latency depends on the batch weight alone."""

    rows: pd.DataFrame
    """Points at the most users of servers that differ in batch weight alone, by rising weight."""
    ratios: pd.DataFrame
    """One row per setting: `users, smallest_tokens, largest_tokens, e2e_ratio`."""

    @classmethod
    def of_points(cls, points: pd.DataFrame) -> "BatchWeightEffect":
        """Return the effect of the most batch weights with equal cores and memory, by setting."""
        parts = [points[:0]]
        for _, at_setting in points[points["n_ok"] > 0].groupby(SETTING):
            top = at_setting[at_setting["level"] == at_setting["level"].max()]
            groups = [group for _, group in top.groupby(list(_SET_UP), dropna=False)]
            longest = max(groups, key=lambda group: group["batch_weight_tokens"].nunique())
            if longest["batch_weight_tokens"].nunique() > 1:
                parts.append(longest.sort_values("batch_weight_tokens"))

        rows = pd.concat(parts)
        by_series = rows.groupby(SETTING)
        ratios = by_series.agg(
            users=("level", "first"),
            smallest_tokens=("batch_weight_tokens", "first"),
            largest_tokens=("batch_weight_tokens", "last"),
        )
        latency_ms = by_series["median_e2e_ms"]
        ratios = ratios.assign(e2e_ratio=latency_ms.first() / latency_ms.last()).reset_index()
        return cls(rows, ratios)

    @property
    def summary(self) -> str:
        """The latency at the smallest batch weight over the latency at the largest."""
        if self.ratios.empty:
            return "No two servers differ in their batch weight alone: its effect is not known."

        effects = "; ".join(
            f"{study.place_words(row)} with {row['users']:g} users: {number(row['e2e_ratio'])}"
            for _, row in self.ratios.iterrows()
        )
        return (
            "Median end-to-end latency at the smallest batch weight over that at the largest: "
            f"{effects} (LLM-Pilot: about {PUBLISHED_RATIO:g}, for StarCoder on an A100 with 128 "
            "users)."
        )

    @property
    def section(self) -> Section:
        """The curve, after Fig. 1 of LLM-Pilot."""
        title = "Latency against batch weight"
        if self.rows.empty:
            return part(title, self.summary)

        weight = Axis("Batch weight (tokens)", is_log=True)
        latency = Axis("Median end-to-end latency (ms)", low=0)
        curves = study.curves_of(
            self.rows, " ".join(SETTING), "batch_weight_tokens", "median_e2e_ms"
        )
        table = table_of(
            self.rows,
            "llm_id gpu_profile_id workload_id variant_id batch_weight_tokens level n_ok "
            "median_e2e_ms median_ttft_ms median_itl_ms throughput_tok_s",
            level="Users",
        )

        return part(
            title, self.summary, [Panel("At the most users", weight, latency, curves)], table
        )
