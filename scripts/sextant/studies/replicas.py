"""Several servers on one device: what they gain over one, and how busy the device is.

Recasens et al.: Towards Pareto Optimal Throughput in Small Language Model Serving, EuroMLSys 2024,
section 4.2.
"""

import math
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Panel
from sextant.pages.words import interval, joined, plural
from sextant.points.cell_files import MeasuredCell
from sextant.points.metrics import N_BLOCKS
from sextant.studies import study
from sextant.studies.study import SETTING, Analysis, StudyData, part

_CONFIDENCE = 0.95
_RATIOS = [
    f"{what}_ratio{end}" for what in ("throughput", "latency") for end in ("", "_low", "_high")
]


def analyse(data: StudyData) -> Analysis:
    """Compare 1, 2, 3 … servers that share one device and its memory evenly."""
    points = study.with_measures(data.points, data, (replica_sums, study.request_times))
    served = points[points["n_ok"] > 0].reset_index(drop=True)
    gains = Gains(add_gains(served, data))
    compared = gains.compared
    text = (
        "Numbers at points are requests in flight on all servers together. Hollow points are "
        "more whole requests than the servers' memory holds."
    )
    curves = study.panels_of(
        gains.points.assign(servers=[plural(n, "server") for n in gains.points["replicas"]]),
        "llm_id gpu_profile_id workload_id",
        "servers variant_id",
        "summed_throughput_tok_s",
        "largest_latency_ms",
    )
    of_device = "Means over time of the compared runs."
    wanted = "mean_utilization mean_sm_active mean_sm_occupancy mean_power_w"
    wanted += " energy_per_output_token_j"
    axis = study.level_axis("Servers on the device", compared["replicas"], is_log=False)
    sections = [
        gains.section,
        part("Throughput against latency", text, curves),  # after Fig. 5 of the paper
        # After Fig. 6 and 7 of the paper.
        study.device_section("The device", of_device, compared, wanted, axis, "replicas"),
    ]
    numbers = {"n_blocks": N_BLOCKS, "points": gains.points, "compared": compared}

    return Analysis(gains.summary, numbers, sections)


def replica_sums(cell: MeasuredCell) -> pd.DataFrame:
    """Return sums over the replicas by level.

    Columns: the sum of the replicas' throughputs, each from the level's first send to the replica's
    last token; and the largest of the replicas' mean processing times (sent to last token).
    """
    columns = ["level", "replica", "sent_s", "last_token_s", "output_tokens", "status"]
    rows = cell.requests(columns)
    started_s = rows.groupby("level")["sent_s"].min()
    ok = rows[rows["status"] == "ok"]
    ok = ok.assign(latency_ms=(ok["last_token_s"] - ok["sent_s"]) * 1e3)
    by_replica = ok.groupby(["level", "replica"])
    took_s = by_replica["last_token_s"].max() - started_s
    by_level = (by_replica["output_tokens"].sum() / took_s).groupby("level")
    latencies_ms = by_replica["latency_ms"].mean().groupby("level")
    sums = {
        "summed_throughput_tok_s": by_level.sum(),
        "largest_latency_ms": latencies_ms.max(),
        "slowest_replica": latencies_ms.idxmax().map(lambda key: key[1]),
        "n_serving_replicas": by_level.size(),
    }

    return pd.DataFrame(sums).reset_index()


def add_gains(points: pd.DataFrame, data: StudyData) -> pd.DataFrame:
    """Return points with their gain over one server at the same level, with intervals."""
    points["fits"] = study.fits_memory(points)
    points["is_compared"] = False
    for _, rows in points.groupby(SETTING):
        # The largest level that fits all variants. Levels that every run filled twice come first:
        # the noise of other levels is not known.
        by_level = rows.assign(is_filled=rows["n_ok"] >= 2 * rows["level"]).groupby("level")
        is_all = by_level[["fits", "is_filled"]].all()
        n_variants = rows["variant_id"].nunique()
        is_common = is_all["fits"] & (by_level["variant_id"].nunique() == n_variants)
        filled = is_all.index[is_common & is_all["is_filled"]]
        level = (filled if len(filled) else is_all.index[is_common]).max()
        points.loc[rows.index, "is_compared"] = rows["level"] == level

    points[_RATIOS] = math.nan
    columns = ("summed_throughput_tok_s", "largest_latency_ms")
    for _, rows in points.groupby([*SETTING, "level"]):
        ones = rows[rows["replicas"] == 1]
        for label, row in rows.iterrows() if len(ones) else ():
            base = ones.iloc[0]
            gains = [1.0] * len(_RATIOS)
            if label != base.name:
                pairs = zip(columns, _blocks(row, data), _blocks(base, data), strict=True)
                ratios = [
                    ratio_of_means(row[n], blocks, base[n], other) for n, blocks, other in pairs
                ]
                gains = [value for ratio in ratios for value in ratio]
            points.loc[label, _RATIOS] = gains

    return points


def _blocks(point: pd.Series, data: StudyData) -> tuple[np.ndarray, np.ndarray]:
    """Return the blocks of a point's throughput (Little's law), and of the slowest replica."""
    rows = data.requests_of(point, ["replica", "sent_s", "last_token_s"])
    slowest = rows[rows["replica"] == point["slowest_replica"]]
    of_slowest = processing_blocks(slowest, point["level"] / point["replicas"])
    return processing_blocks(rows, point["level"]), of_slowest


def processing_blocks(requests: pd.DataFrame, in_flight: float) -> np.ndarray:
    """Return mean processing times (s) of blocks of successive ok requests.

    A block has as many requests as are in flight together, because requests in flight slow each
    other down. If all are in flight at once there is one block, which shows no spread.
    """
    ordered = requests.sort_values("last_token_s")
    n_rounds = max(1, int(len(ordered) / max(1.0, in_flight)))
    return study.mean_blocks(ordered["last_token_s"] - ordered["sent_s"], min(N_BLOCKS, n_rounds))


def ratio_of_means(
    value: float, blocks: np.ndarray, base: float, base_blocks: np.ndarray
) -> tuple[float, float, float]:
    """Return a ratio and its 95% interval, by Student's t on a logarithmic scale, or NaN."""
    ratio = value / base if base else math.nan
    if min(len(blocks), len(base_blocks)) < 2 or not ratio > 0:
        return ratio, math.nan, math.nan

    errors = (
        sample.std(ddof=1) / len(sample) ** 0.5 / sample.mean() for sample in (blocks, base_blocks)
    )
    t = scipy.special.stdtrit(len(blocks) + len(base_blocks) - 2, (1 + _CONFIDENCE) / 2)
    factor = math.exp(t * math.hypot(*errors))

    return ratio, ratio / factor, ratio * factor


@dataclass(frozen=True)
class Gains:
    """What several servers on one device gain over one."""

    points: pd.DataFrame
    """Rows of `add_gains`."""

    @property
    def compared(self) -> pd.DataFrame:
        """The points that the summary compares."""
        return self.points[self.points["is_compared"]]

    @property
    def summary(self) -> str:
        """The findings in a few sentences."""
        is_gain = (self.compared["replicas"] > 1) & self.compared["throughput_ratio"].notna()
        more = self.compared[is_gain]
        if more.empty:
            return "No setting was measured with one server and with several: no gain is known."

        parts = []
        for (llm_id, profile_id, workload_id, _), rows in more.groupby(SETTING, sort=False):
            words = []
            for _, row in rows.iterrows():
                low = row["throughput_ratio_low"]
                high = row["throughput_ratio_high"]
                bounds = "" if pd.isna(low) else f" (95% interval {low:.2f} to {high:.2f})"
                words.append(
                    f"{row['replicas']} servers gave {row['throughput_ratio']:.2f} times the "
                    f"throughput{bounds} at {row['latency_ratio']:.2f} times the latency of one"
                )
            where = f"{llm_id} on {profile_id} ({workload_id}, {rows['level'].iloc[0]:g} in flight)"
            parts.append(f"{where}: {joined(words)}.")

        n_gained = (more["throughput_ratio_low"] > 1).sum()
        n_lost = (more["throughput_ratio_high"] < 1).sum()
        n_unknown = more["throughput_ratio_low"].isna().sum()
        noise = (
            f"Of {plural(len(more), 'comparison')} {n_gained} gained and {n_lost} lost throughput"
        )
        unknown = f"; of {n_unknown} the noise is not known" if n_unknown else ""

        return " ".join([*parts, f"{noise} beyond the noise within the runs{unknown}."])

    @property
    def section(self) -> Section:
        """What several servers gain over one, by requests in flight."""
        shown = self.points.copy()
        for what in ("throughput", "latency"):
            ends = zip(shown[f"{what}_ratio_low"], shown[f"{what}_ratio_high"], strict=True)
            words = ["–" if low == high else interval(low, high) for low, high in ends]
            shown[f"{what}_interval"] = words

        table = study.table_of(
            shown,
            "llm_id gpu_profile_id workload_id variant_id replicas level n_ok "
            "summed_throughput_tok_s throughput_tok_s throughput_ratio throughput_interval "
            "largest_latency_ms latency_ratio latency_interval fits",
            level="In flight, all together",
            throughput_tok_s="Over the whole run",
            throughput_ratio="Times one server",
            latency_ratio="Times one server's",
        )
        text = (
            "Servers share the device, its memory and the requests evenly. Throughput is the sum "
            "of the servers' own, each until its own last token, latency the largest of their "
            "mean processing times (Recasens et al.); over the whole run counts the wait for the "
            "slowest too. The summary compares the largest batch that fits all variants and that "
            f"every run filled twice.\n\nIntervals are of 95%, from at most {N_BLOCKS} blocks of "
            "successive requests of each run; what changes between two starts of the servers is "
            "not in them."
        )
        is_gain = self.points["throughput_ratio"].notna() & (self.points["replicas"] > 1)
        gains = self.points[is_gain].drop(columns="fits")
        gains["servers"] = [plural(n, "server") for n in gains["replicas"]]
        axis = study.level_axis("In flight", gains["level"])
        panels = list[Panel]()
        for what in ("throughput", "latency"):
            axes = (axis, Axis(f"{what.capitalize()} over one server's", low=0))
            by = "llm_id gpu_profile_id workload_id"
            panels += study.panels_of(gains, by, "servers", "level", f"{what}_ratio", axes)

        return part("Gain over one server", text, panels, table)
