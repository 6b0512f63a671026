"""Throughput per replica, and whether it depends on anything but the users per replica.

Lazuka et al.: LLM-Pilot, SC 2024, section II and Table I.
"""

import pandas as pd

from sextant.experiment.scenarios import ClosedLoop
from sextant.pages.blocks import Table
from sextant.pages.charts import Axis, Panel
from sextant.pages.words import percent, plural
from sextant.studies import study
from sextant.studies.study import SETTING, Analysis, StudyData, part, table_of

PODS_THROUGHPUT_TOK_S = pd.DataFrame(
    [
        [47.1, 78.1, 118.2, 174.2, 237.8, 288.6, 314.7, 292.6],
        [23.5, 44.4, 74.7, 114.3, 171.1, 229.8, 282.7, 286.3],
        [11.6, 23.3, 43.0, 73.5, 113.0, 169.5, 231.4, 283.4],
        [5.7, 11.7, 22.8, 42.3, 72.6, 112.9, 169.2, 231.1],
    ],
    index=pd.Index([1, 2, 4, 8], name="replicas"),
    columns=pd.Index([1, 2, 4, 8, 16, 32, 64, 128], name="users"),
)
"""Output tokens per second and pod, Llama-2-13b, each pod on an A100 of 80 GB, by pods and users.
Lazuka et al.: LLM-Pilot, SC 2024, Table I."""


def analyse(data: StudyData) -> Analysis:
    """Compare throughput per replica along the diagonals of replicas × users."""
    points = data.points_of(ClosedLoop.kind)
    points = points[points["n_ok"] > 0]
    points = points.assign(per_replica=points["throughput_tok_s"] / points["replicas"])
    published = diagonals(PODS_THROUGHPUT_TOK_S)

    settings = []
    sections = []
    parts = []
    for key, rows in points.groupby(SETTING, sort=False):
        grid = rows.pivot_table("per_replica", "replicas", "users")
        setting = dict(zip(SETTING, key, strict=True))
        values = _long(grid)
        grid_diagonals = diagonals(grid)
        numbers = {"throughput_per_replica_tok_s": values, "diagonals": grid_diagonals}
        settings.append(setting | numbers)
        parts.append(grid_diagonals.assign(where=", ".join(key[:3])))

        text = (
            "Output tokens per second and replica, by replicas (rows) and users of all replicas "
            "(columns). If only the users per replica mattered, the lines would be one, and "
            "numbers equal along the diagonals."
        )
        axes = (Axis("Users per replica", is_log=True), Axis("Output tokens/s per replica", low=0))
        pods = values.assign(
            pods=[plural(replicas, "replica") for replicas in values["replicas"]],
            users_per_replica=values["users"] / values["replicas"],
        )
        panel = Panel("", *axes, study.curves_of(pods, "pods", "users_per_replica", "tok_s"))
        title = f"{study.place_words(setting)}, {setting['workload_id']}"
        sections.append(part(title, text, [panel], _grid_table(grid), height_in=3.2))

    shown = pd.concat([*parts, published.assign(where="LLM-Pilot, Table I")])
    shown["deviation_percent"] = 100 * shown["relative_deviation"]
    shown["sd_percent"] = 100 * shown["relative_sd"]
    table = table_of(shown, "where users_per_replica n mean_tok_s deviation_percent sd_percent")
    text = (
        "Where the number of users per replica is the same: n numbers of replicas, the mean of "
        "their throughputs per replica, the largest deviation from it, and the standard "
        "deviation (over n, as LLM-Pilot's figures need it), both relative to the mean."
    )
    sections.append(part("The diagonals", text, table=table))

    text = (
        "Table I of LLM-Pilot: Llama-2-13b, each pod on an A100 of 80 GB. Rows are pods, columns "
        "users; output tokens per second and pod."
    )
    sections.append(part("Published", text, table=_grid_table(PODS_THROUGHPUT_TOK_S)))

    paper = {"throughput_per_replica_tok_s": _long(PODS_THROUGHPUT_TOK_S), "diagonals": published}
    summary = _summary(pd.concat([*parts, published[:0]]), published)

    return Analysis(summary, {"settings": settings, "published": paper}, sections)


def _summary(measured: pd.DataFrame, published: pd.DataFrame) -> str:
    if measured.empty:
        return (
            "No number of users per replica was measured with two numbers of replicas: nothing can "
            "be compared."
        )

    deviation = measured["relative_deviation"]
    sd = measured["relative_sd"]
    return (
        "With the same users per replica, throughput per replica differs by at most "
        f"{percent(deviation.max())} from its mean over numbers of replicas "
        f"(relative standard deviation: {percent(sd.mean())} on average, "
        f"{percent(sd.max())} at most, over {plural(len(measured), 'diagonal')})"
        f". In LLM-Pilot's Table I it is {percent(published['relative_deviation'].max())} "
        f"({percent(published['relative_sd'].mean())} on average, "
        f"{percent(published['relative_sd'].max())} at most)."
    )


def diagonals(grid: pd.DataFrame) -> pd.DataFrame:
    """Return how throughputs per replica differ where users per replica are the same.

    `grid` has replicas by users. Each row of the result is one diagonal: `n` numbers of replicas,
    the mean of their throughputs, the largest deviation from it and the standard deviation, both
    relative (over n, not n - 1, as in the paper's "never exceeds 5% (2% on average)").
    """
    rows = _long(grid)
    rows["users_per_replica"] = rows["users"] / rows["replicas"]
    throughput = rows.groupby("users_per_replica")["tok_s"]
    summary = throughput.agg(n="size", mean_tok_s="mean")
    summary["relative_deviation"] = throughput.agg(
        lambda values: (values - values.mean()).abs().max()
    )
    summary["relative_sd"] = throughput.std(ddof=0)
    summary[["relative_deviation", "relative_sd"]] /= summary[["mean_tok_s"]].to_numpy()

    return summary[summary["n"] > 1].reset_index()


def _long(grid: pd.DataFrame) -> pd.DataFrame:
    rows = grid.rename_axis(index="replicas", columns="users").stack().rename("tok_s")
    return rows.dropna().reset_index()


def _grid_table(grid: pd.DataFrame) -> Table:
    users = {column: plural(int(column), "user") for column in grid.columns}
    table = grid.assign(replicas=[str(replicas) for replicas in grid.index])
    return Table.of_frame(table, {"replicas": "Replicas", **users})
