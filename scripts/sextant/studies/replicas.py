"""Several servers on one device: what they gain over one, and how busy the device is.

Recasens et al.: Towards Pareto Optimal Throughput in Small Language Model Serving, EuroMLSys 2024,
section 4.2.
"""

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd

from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.wording import interval, listed, plural
from sextant.points.cell_files import MeasuredCell
from sextant.points.metrics import N_BLOCKS
from sextant.points.run import CELL_KEY
from sextant.studies.study import (
    LABELS,
    Analysis,
    StudyData,
    device_section,
    fits_memory,
    level_axis,
    level_curve,
    part,
    place_words,
    processing_blocks,
    ratio_of_means,
    request_times,
    table_of,
    with_measures,
)

SETTING = ["llm_id", "gpu_profile_id", "workload_id", "scenario_id"]
_COLUMNS = ["level", "replica", "sent_s", "last_token_s", "output_tokens", "status"]


def analyse(data: StudyData) -> Analysis:
    """Compare 1, 2, 3 … servers that share one device and its memory evenly."""
    points = with_measures(data.points, data, (replica_sums, request_times))
    served = points[points["n_ok"] > 0].reset_index(drop=True)
    found = add_gains(served, {cell.key: cell for cell in data.cells})
    compared = found[found["is_compared"]]
    return Analysis(
        summary=_summary(compared),
        numbers={"n_blocks": N_BLOCKS, "points": found, "compared": compared},
        sections=[gain_section(found), curve_section(found), _device_section(compared, data)],
    )


def replica_sums(cell: MeasuredCell) -> pd.DataFrame:
    """Return by level the sum of the replicas' throughputs, and the largest of their latencies.

    Columns: `summed_throughput_tok_s`, each replica's ok output tokens over the time from the
    level's first send to its own last token; `largest_latency_ms`, of the mean processing times
    (sent to last token); `slowest_replica`; `n_serving_replicas`, those with an ok request.
    """
    rows = cell.requests(_COLUMNS)
    started_s = rows.groupby("level")["sent_s"].min()
    ok = rows[rows["status"] == "ok"]
    ok = ok.assign(processing_ms=(ok["last_token_s"] - ok["sent_s"]) * 1e3)
    own = ok.groupby(["level", "replica"]).agg(
        tokens=("output_tokens", "sum"),
        ended_s=("last_token_s", "max"),
        latency_ms=("processing_ms", "mean"),
    )
    own["throughput"] = own["tokens"] / (own["ended_s"] - started_s)
    by_level = own.groupby("level")
    sums = {
        "summed_throughput_tok_s": by_level["throughput"].sum(),
        "largest_latency_ms": by_level["latency_ms"].max(),
        "slowest_replica": by_level["latency_ms"].idxmax().map(lambda place: place[1]),
        "n_serving_replicas": by_level.size(),
    }
    return pd.DataFrame(sums).reset_index()


def add_gains(points: pd.DataFrame, cells: Mapping[tuple, MeasuredCell]) -> pd.DataFrame:
    """Return points with what they gain over one server at the same level of the same setting.

    Columns: `fits` (whole requests, within the batch weights), `is_compared` (see
    `_compared_level`), and `{throughput,latency}_ratio` with `_low` and `_high`, a 95% interval
    from the blocks of both runs; null where one server was not measured.
    """
    points["fits"] = fits_memory(points)
    points["is_compared"] = False
    for _, rows in points.groupby(SETTING):
        points.loc[rows.index, "is_compared"] = rows["level"] == _compared_level(rows)
    names = [f"{what}_ratio{end}" for what in ("throughput", "latency") for end in _ENDS]
    gains = [_gains(row, points, cells) for _, row in points.iterrows()]
    return points.assign(**pd.DataFrame(gains, columns=names, index=points.index))


def _compared_level(rows: pd.DataFrame) -> float:
    """Return the largest level that fits all variants of a setting, NaN if none does.

    Of such levels those are preferred that every run filled twice: of others no noise is known.
    """
    by_level = rows.assign(is_filled=rows["n_ok"] >= 2 * rows["level"]).groupby("level")
    found = by_level[["fits", "is_filled"]].all()
    is_common = found["fits"] & (by_level["variant_id"].nunique() == rows["variant_id"].nunique())
    filled = found.index[is_common & found["is_filled"]]
    return float((filled if len(filled) else found.index[is_common]).max())


_ENDS = ("", "_low", "_high")


def _gains(
    row: pd.Series, points: pd.DataFrame, cells: Mapping[tuple, MeasuredCell]
) -> list[float]:
    same = (points[[*SETTING, "level"]] == row[[*SETTING, "level"]]).all(axis=1)
    ones = points[same & (points["replicas"] == 1)]
    if ones.empty:
        return [math.nan] * 6
    base = ones.iloc[0]
    if base.name == row.name:
        return [1.0] * 6
    ratios: list[float] = []
    own, other = (_blocks(point, cells[tuple(point[[*CELL_KEY]])]) for point in (row, base))
    for number, column in enumerate(("summed_throughput_tok_s", "largest_latency_ms")):
        ratios += ratio_of_means(row[column], own[number], base[column], other[number])
    return ratios


def _blocks(point: pd.Series, cell: MeasuredCell) -> tuple[np.ndarray, np.ndarray]:
    """Return the blocks of a point's throughput, and of its slowest replica's latency.

    In a full batch throughput is batch size over processing time (Little's law), so that the
    relative error of one is that of the other, over all requests.
    """
    rows = cell.requests(_COLUMNS)
    rows = rows[(rows["level"] == point["level"]) & (rows["status"] == "ok")]
    slowest = rows[rows["replica"] == point["slowest_replica"]]
    in_flight = point["level"]
    return (
        processing_blocks(rows, in_flight),
        processing_blocks(slowest, in_flight / point["replicas"]),
    )


def _summary(compared: pd.DataFrame) -> str:
    more = compared[(compared["replicas"] > 1) & compared["throughput_ratio"].notna()]
    if more.empty:
        return "No setting was measured with one server and with several: no gain is known."
    parts = []
    for (llm_id, profile_id, workload_id, _), rows in more.groupby(SETTING, sort=False):
        words = []
        for _, row in rows.iterrows():
            low, high = row["throughput_ratio_low"], row["throughput_ratio_high"]
            known = "" if pd.isna(low) else f" (95% interval {low:.2f} to {high:.2f})"
            words.append(
                f"{row['replicas']} servers gave {row['throughput_ratio']:.2f} times the throughput"
                f"{known} at {row['latency_ratio']:.2f} times the latency of one"
            )
        where = f"{llm_id} on {profile_id} ({workload_id}, {rows['level'].iloc[0]:g} in flight)"
        parts.append(f"{where}: {listed(words)}.")
    n_gained = int((more["throughput_ratio_low"] > 1).sum())
    n_lost = int((more["throughput_ratio_high"] < 1).sum())
    n_unknown = int(more["throughput_ratio_low"].isna().sum())
    noise = f"Of {plural(len(more), 'comparison')} {n_gained} gained and {n_lost} lost throughput"
    unknown = f"; of {n_unknown} the noise is not known" if n_unknown else ""
    return " ".join([*parts, f"{noise} beyond the noise within the runs{unknown}."])


def gain_section(points: pd.DataFrame) -> Section:
    """What several servers gain over one, by requests in flight."""
    quantities = ("throughput", "latency")
    shown = points.assign(**{f"{name}_interval": _intervals(points, name) for name in quantities})
    table = table_of(
        shown,
        "llm_id gpu_profile_id workload_id variant_id replicas level n_ok summed_throughput_tok_s "
        "throughput_tok_s throughput_ratio throughput_interval largest_latency_ms latency_ratio "
        "latency_interval fits",
        level="In flight, all together",
        throughput_tok_s="Over the whole run",
        throughput_ratio="Times one server",
        latency_ratio="Times one server's",
    )
    text = (
        "Servers share the device and its memory evenly, requests are spread evenly over them, and "
        "the same number is in flight as with one server. Throughput is the sum of the servers' "
        "own, each over the time until its own last token, and latency the largest of their mean "
        "processing times, as Recasens et al. define them; over the whole run counts the wait for "
        "the slowest server too. The summary compares the largest batch that fits all variants "
        "and that every run filled at least twice, if there is one."
        f"\n\nBars and intervals are of 95%, from at most {N_BLOCKS} blocks of successive "
        "requests of each run (batch means), none smaller than what is in flight at once; a run "
        "that is one block tells none. They hold for n = 1 run of each variant: what changes "
        "between two starts of the servers is not in them."
    )
    return part("Gain over one server", text, _gain_figure(points), table)


def _gain_figure(points: pd.DataFrame) -> str | None:
    known = points[points["throughput_ratio"].notna() & (points["replicas"] > 1)]
    if known.empty:
        return None
    axis = level_axis("In flight", known["level"])
    panels = []
    for _, own in known.groupby(["llm_id", "gpu_profile_id", "workload_id"], sort=False):
        for what in ("throughput", "latency"):
            lines = [
                Curve(
                    f"{replicas} servers",
                    rows["level"],
                    rows[f"{what}_ratio"],
                    low=rows[f"{what}_ratio_low"],
                    high=rows[f"{what}_ratio_high"],
                )
                for replicas, rows in own.groupby("replicas")
            ]
            label = f"{what.capitalize()} over one server's"
            panels.append(Panel(_place_words(own), axis, Axis(label, low=0), lines))
    return panels_figure(panels, "Gain over one server by requests in flight", has_points=True)


def _intervals(rows: pd.DataFrame, what: str) -> list[str]:
    ends = zip(rows[f"{what}_ratio_low"], rows[f"{what}_ratio_high"], strict=True)
    return ["–" if low == high else interval(low, high) for low, high in ends]


def _place_words(rows: pd.DataFrame) -> str:
    return f"{place_words(rows.iloc[0])}, {rows['workload_id'].iloc[0]}"


def curve_section(points: pd.DataFrame) -> Section:
    """Throughput against latency by number of servers, after their Fig. 5."""
    throughput = Axis("Summed throughput (output tokens/s)", is_log=True)
    latency = Axis("Largest mean latency (ms)", is_log=True)
    panels = []
    for _, own in points.groupby(["llm_id", "gpu_profile_id", "workload_id"], sort=False):
        lines = []
        for (replicas, variant_id), rows in own.groupby(["replicas", "variant_id"]):
            name = plural(replicas, "server")
            is_alone = own.loc[own["replicas"] == replicas, "variant_id"].nunique() == 1
            name = name if is_alone else f"{name}, {variant_id}"
            lines.append(level_curve(name, rows, "summed_throughput_tok_s", "largest_latency_ms"))
        panels.append(Panel(_place_words(own), throughput, latency, lines))
    text = (
        "Numbers at points are requests in flight on all servers together. Hollow points are "
        "more whole requests than the servers' memory holds."
    )
    title = "Latency against throughput by servers"
    figure = panels_figure(panels, title, has_points=True) if panels else None
    return part("Throughput against latency", text, figure)


def _device_section(compared: pd.DataFrame, data: StudyData) -> Section:
    """How busy the device is and what it draws, after their Fig. 6 and 7."""
    kinds = {data.profiles[name].gpu.kind for name in compared["gpu_profile_id"]}
    fraction = Axis("Fraction", low=0, high=1.05)
    wanted = {
        "mean_utilization": (f"{'CPU' if kinds == {'cpu'} else 'GPU'} utilization, mean", fraction),
        "mean_sm_active": ("SM active, mean", fraction),
        "mean_sm_occupancy": ("SM occupancy, mean", fraction),
        "mean_power_w": ("Power, mean (W)", Axis("W", low=0)),
        "energy_per_output_token_j": (LABELS["energy_per_output_token_j"], Axis("J", low=0)),
    }
    servers = level_axis("Servers on the device", compared["replicas"], is_log=False)
    text = "Means over time of the compared runs."
    return device_section("The device", text, compared, wanted, "replicas", servers)
