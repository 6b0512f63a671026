"""What the page of the study `replicas` shows."""

import pandas as pd

from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section
from sextant.pages.wording import interval, plural
from sextant.studies.labels import level_axis, level_curve, table_of, workload_place_words
from sextant.studies.study_data import StudyData
from sextant.studies.uncertainty import N_BLOCKS


def gain_section(points: pd.DataFrame) -> Section:
    """What several servers gain over one, by requests in flight."""
    shown = points.assign(
        throughput_interval=_intervals(points, "throughput"),
        latency_interval=_intervals(points, "latency"),
    )
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
    return Section.of_text("Gain over one server", text, _gain_figure(points), table)


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
            panels.append(Panel(workload_place_words(own), axis, Axis(label, low=0), lines))
    return panels_figure(panels, "Gain over one server by requests in flight", has_points=True)


def _intervals(rows: pd.DataFrame, what: str) -> list[str]:
    ends = zip(rows[f"{what}_ratio_low"], rows[f"{what}_ratio_high"], strict=True)
    return ["–" if low == high else interval(low, high) for low, high in ends]


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
        panels.append(Panel(workload_place_words(own), throughput, latency, lines))
    text = (
        "Numbers at points are requests in flight on all servers together. Hollow points are "
        "more whole requests than the servers' memory holds."
    )
    title = "Latency against throughput by servers"
    figure = panels_figure(panels, title, has_points=True) if panels else None
    return Section.of_text("Throughput against latency", text, figure)


def device_section(compared: pd.DataFrame, data: StudyData) -> Section:
    """How busy the device is and what it draws, after their Fig. 6 and 7."""
    kinds = {data.profiles[name].gpu.kind for name in compared["gpu_profile_id"]}
    utilization = "CPU utilization" if kinds == {"cpu"} else "GPU utilization"
    wanted = (
        ("mean_utilization", f"{utilization}, mean", "Fraction"),
        ("mean_sm_active", "SM active, mean", "Fraction"),
        ("mean_sm_occupancy", "SM occupancy, mean", "Fraction"),
        ("mean_power_w", "Power, mean", "W"),
    )
    known = [entry for entry in wanted if compared[entry[0]].notna().any()]
    absent = [entry[1] for entry in wanted if entry not in known]
    text = "Means over time of the compared runs."
    if absent:
        text += f" Not reported by the devices: {', '.join(absent)}."
    if not known:
        return Section.of_text("The device", text)
    axis = level_axis("Servers on the device", compared["replicas"], is_log=False)
    panels = [
        Panel(
            heading,
            axis,
            Axis(unit, low=0, high=1.05 if unit == "Fraction" else None),
            [
                Curve(llm_id, rows["replicas"], rows[column])
                for llm_id, rows in compared[compared[column].notna()].groupby("llm_id", sort=False)
            ],
        )
        for column, heading, unit in known
    ]
    labels = {column: f"{heading} ({unit})" for column, heading, unit in known}
    columns = f"llm_id gpu_profile_id replicas {' '.join(labels)} energy_per_output_token_j"
    table = table_of(compared, columns, **labels)
    figure = panels_figure(panels, "The device", has_points=True)
    return Section.of_text("The device", text, figure, table)
