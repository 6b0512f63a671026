"""Throughput per replica, and whether it depends on anything but the users per replica.

Lazuka et al.: LLM-Pilot, SC 2024, section II and Table I.
"""

import pandas as pd

from sextant.experiment.scenarios import ClosedLoop
from sextant.pages.blocks import Section, Table
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.wording import percent, plural
from sextant.studies.study import Analysis, StudyData, part, place_words, table_of

_SETTING = ["llm_id", "gpu_profile_id", "workload_id", "scenario_id"]
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
    points = data.points[data.points["scenario_kind"] == ClosedLoop.kind]
    grids = {
        key: rows.assign(per_replica=rows["throughput_tok_s"] / rows["replicas"]).pivot_table(
            "per_replica", "replicas", "users"
        )
        for key, rows in points[points["n_ok"] > 0].groupby(_SETTING, sort=False)
    }
    published = diagonals(PODS_THROUGHPUT_TOK_S)
    found = {key: diagonals(grid) for key, grid in grids.items()}
    return Analysis(
        summary=_summary(found, published),
        numbers={
            "settings": [
                dict(zip(_SETTING, key, strict=True))
                | {"throughput_per_replica_tok_s": _long(grids[key]), "diagonals": own}
                for key, own in found.items()
            ],
            "published": {
                "throughput_per_replica_tok_s": _long(PODS_THROUGHPUT_TOK_S),
                "diagonals": published,
            },
        },
        sections=[
            *(_grid_section(dict(zip(_SETTING, key, strict=True)), grids[key]) for key in grids),
            _diagonal_section(found, published),
            _published_section(),
        ],
    )


def diagonals(grid: pd.DataFrame) -> pd.DataFrame:
    """Return how throughputs per replica differ where users per replica are the same.

    `grid` has replicas as rows and users as columns, null where not measured. Columns:
    `users_per_replica, n` (numbers of replicas, two or more), `mean_tok_s`, `relative_deviation`
    (the largest from the mean, over the mean) and `relative_sd` (with n, not n - 1, which
    reproduces the paper's "never exceeds 5% (2% on average)" from its table).
    """
    rows = _long(grid)
    rows["users_per_replica"] = rows["users"] / rows["replicas"]
    found = rows.groupby("users_per_replica")["tok_s"].agg(
        n="size", mean_tok_s="mean", sd=lambda own: own.std(ddof=0), lowest="min", highest="max"
    )
    found = found[found["n"] > 1]
    mean = found["mean_tok_s"]
    deviation = pd.concat([found["highest"] - mean, mean - found["lowest"]], axis=1).max(axis=1)
    return (
        found[["n", "mean_tok_s"]]
        .assign(relative_deviation=deviation / mean, relative_sd=found["sd"] / mean)
        .reset_index()
    )


def _long(grid: pd.DataFrame) -> pd.DataFrame:
    rows = grid.rename_axis(index="replicas", columns="users").stack().rename("tok_s")
    return rows.dropna().reset_index()


def _summary(found: dict[tuple, pd.DataFrame], published: pd.DataFrame) -> str:
    known = pd.concat([*found.values(), published.iloc[:0]])
    if known.empty:
        return (
            "No number of users per replica was measured with two numbers of replicas: "
            "nothing can be compared."
        )
    return (
        f"With the same users per replica, throughput per replica differs by at most "
        f"{percent(known['relative_deviation'].max())} from its mean over numbers of replicas "
        f"(relative standard deviation: {percent(known['relative_sd'].mean())} on average, "
        f"{percent(known['relative_sd'].max())} at most, over {plural(len(known), 'diagonal')}). "
        f"In LLM-Pilot's Table I it is {percent(published['relative_deviation'].max())} "
        f"({percent(published['relative_sd'].mean())} on average, "
        f"{percent(published['relative_sd'].max())} at most)."
    )


def _grid_section(setting: dict[str, str], grid: pd.DataFrame) -> Section:
    """The table of one setting, and throughput per replica over users per replica."""
    known = {replicas: row.dropna() for replicas, row in grid.iterrows()}
    lines = [
        Curve(plural(replicas, "replica"), row.index / replicas, row.to_numpy())
        for replicas, row in known.items()
    ]
    axes = (Axis("Users per replica", is_log=True), Axis("Output tokens/s per replica", low=0))
    panel = Panel("", *axes, lines)
    text = (
        "Output tokens per second and replica, by replicas (rows) and users of all replicas "
        "(columns). If only the users per replica mattered, the lines would be one, and numbers "
        "equal along the diagonals."
    )
    title = f"{place_words(setting)}, {setting['workload_id']}"
    figure = panels_figure([panel], title, height_in=3.2, has_points=True)
    return part(title, text, figure, _grid_table(grid))


def _grid_table(grid: pd.DataFrame) -> Table:
    users = {column: plural(int(column), "user") for column in grid.columns}
    table = grid.assign(replicas=[str(replicas) for replicas in grid.index])
    return Table.of_frame(table, {"replicas": "Replicas", **users})


def _diagonal_section(found: dict[tuple, pd.DataFrame], published: pd.DataFrame) -> Section:
    parts = {", ".join(key[:3]): own for key, own in found.items()}
    parts["LLM-Pilot, Table I"] = published
    rows = [own.assign(where=where) for where, own in parts.items() if len(own)]
    shown = pd.concat(rows)
    shown = shown.assign(
        deviation_percent=100 * shown["relative_deviation"], sd_percent=100 * shown["relative_sd"]
    )
    table = table_of(shown, "where users_per_replica n mean_tok_s deviation_percent sd_percent")
    text = (
        "Where the number of users per replica is the same: n numbers of replicas, the mean of "
        "their throughputs per replica, the largest deviation from it, and the standard "
        "deviation (over n, as LLM-Pilot's figures need it), both relative to the mean."
    )
    return part("The diagonals", text, table=table)


def _published_section() -> Section:
    text = (
        "Table I of LLM-Pilot: Llama-2-13b, each pod on an A100 of 80 GB. Rows are pods, columns "
        "users; output tokens per second and pod."
    )
    return part("Published", text, table=_grid_table(PODS_THROUGHPUT_TOK_S))
