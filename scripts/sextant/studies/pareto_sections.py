"""What the page of the study `pareto` shows."""

from collections.abc import Iterator, Sequence

import pandas as pd

from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section, Table
from sextant.pages.wording import plural
from sextant.studies.frontier import LEAST_GAIN, OPT_INPUT_TOKENS, OPT_OUTPUT_TOKENS
from sextant.studies.labels import (
    LABELS,
    level_axis,
    level_curve,
    level_words,
    place_words,
    table_of,
)
from sextant.studies.study_data import StudyData

_THROUGHPUT = Axis("Throughput (output tokens/s)", is_log=True)
_PROCESSING = Axis("Mean processing time (ms)", is_log=True)
_ACTIVITY = {
    f"{statistic}_{words.lower().replace(' ', '_')}": f"{words}, {statistic}"
    for words in ("Utilization", "SM active", "SM occupancy")
    for statistic in ("mean", "max")
}
_KNEE_RULE = (
    "The knee is the smallest batch size from which no further doubling gains "
    f"{LEAST_GAIN:.0%} of throughput: as latency is batch size over request rate (Little's law), "
    f"a doubling that gains less multiplies latency by more than {2 / (1 + LEAST_GAIN):.2f}."
)


def frontier_section(batches: pd.DataFrame, curves: pd.DataFrame) -> Section:
    """Throughput against processing time, after their Fig. 1."""
    text = (
        f"{_KNEE_RULE} It has a ring. A point is Pareto-optimal if no other batch of its LLM, on "
        "any profile, has at least its throughput at no more latency. Hollow points are larger "
        "than the memory holds whole requests for: there the server queues or preempts, so they "
        "count for neither.\n\n"
        "Processing time is the mean from sending a request to its last token; a request is sent "
        "when the batch has a place for it. Numbers at points are batch sizes. Each point is "
        "one run, whose requests were all due at once; the last ones leave the batch "
        "emptier, which lowers the throughput of batches that are large against the number of "
        "requests."
    )
    title = "Throughput against latency"
    if curves.empty:
        return Section.of_text(title, f"No batch was served.\n\n{text}")
    table = table_of(
        curves.assign(last_gain_percent=curves["last_gain"] * 100),
        "llm_id gpu_profile_id workload_id knee_size knee_throughput_tok_s knee_processing_ms "
        "largest_size largest_throughput_tok_s largest_processing_ms last_gain_percent",
    )
    return Section.of_text(title, text, _frontier_figure(batches, curves), table)


def _frontier_figure(batches: pd.DataFrame, curves: pd.DataFrame) -> str:
    knees = curves.set_index(["llm_id", "gpu_profile_id", "workload_id", "variant_id"])["knee_size"]
    panels = []
    for (llm_id, workload_id), own in batches.groupby(["llm_id", "workload_id"], sort=False):
        lines = []
        for (profile_id, variant_id), rows in own.groupby(
            ["gpu_profile_id", "variant_id"], sort=False
        ):
            sizes = list(rows["batch_size"])
            knee_size = knees[llm_id, profile_id, workload_id, variant_id]
            name = profile_id if variant_id == "default" else f"{profile_id}, {variant_id}"
            line = level_curve(name, rows, "throughput_tok_s", "mean_processing_ms")
            ringed = [sizes.index(knee_size)] if knee_size in sizes else []
            lines.append(line._replace(ringed=ringed))
        panels.append(Panel(f"{llm_id}, {workload_id}", _THROUGHPUT, _PROCESSING, lines))
    return panels_figure(
        panels, "Processing time against throughput by batch size", has_points=True
    )


def batch_table_section(batches: pd.DataFrame) -> Section:
    """Every batch, in numbers."""
    text = (
        f"{plural(len(batches), 'batch')}. "
        "With queueing, time counts from the moment a request was due, and all were due at once: "
        "it grows with the number of requests and says little of the server."
    )
    table = table_of(
        batches,
        "llm_id gpu_profile_id workload_id batch_size n_ok n_failed request_rate_rps "
        "throughput_tok_s mean_processing_ms mean_latency_ms mean_running n_preemptions fits "
        "is_optimal",
    )
    return Section.of_text("Every batch", text, table=table)


def memory_section(curves: pd.DataFrame) -> Section:
    """The largest batch by memory against the largest that was tried."""
    text = (
        "What memory holds is the largest power of two whose whole requests, input and output, "
        "are within the batch weight that the server was tuned to."
    )
    if curves.empty:
        return Section.of_text("Largest batch", text)
    columns = "llm_id gpu_profile_id workload_id largest_fitting_size largest_size"
    table = table_of(curves, columns, largest_size="Largest tried that fits")
    return Section.of_text("Largest batch", text, table=table)


def published_section(sizes: pd.DataFrame, agreement: str) -> Section:
    """Their Table 1 beside what memory facts give."""
    text = (
        "Table 1 of Recasens et al.: the largest batch of requests of "
        f"{OPT_INPUT_TOKENS} input and {OPT_OUTPUT_TOKENS} output tokens on an A100 of 40 GB, a "
        "power of two up to 512. Computed: what 90% of the device leaves beside 16-bit weights, "
        "over the KV cache of the tokens that each request in flight keeps. "
        f"{agreement}\n\n"
        f"{OPT_INPUT_TOKENS + OPT_OUTPUT_TOKENS} tokens is a request at its end, "
        f"{OPT_INPUT_TOKENS + OPT_OUTPUT_TOKENS // 2} its mean over the generation, "
        f"{OPT_INPUT_TOKENS} its prompt, which is what vLLM reserves when it admits a request "
        "(blocks are allocated on demand). Requests that start at different times never all need "
        "their last block at once; requests that start together do, and are preempted then. "
        "Their text gives 50 MB for a request of OPT-1.3B, which is the KV cache of "
        f"{OPT_OUTPUT_TOKENS} tokens, not of {OPT_INPUT_TOKENS + OPT_OUTPUT_TOKENS}."
    )
    labels = {name: LABELS.get(name, name) for name in sizes}
    return Section.of_text("Published batch sizes", text, table=Table.of_frame(sizes, labels))


def lengths_section(rates: pd.DataFrame) -> Section:
    """Output lengths at request rates, after their Fig. 2 (right)."""
    latency = Axis("Mean latency from due time (ms)", is_log=True)
    panels = []
    for (llm_id, profile_id), own in rates.groupby(["llm_id", "gpu_profile_id"], sort=False):
        lines = [
            level_curve(workload_id, rows, "throughput_tok_s", "mean_latency_ms")
            for workload_id, rows in own.groupby("workload_id", sort=False)
        ]
        panels.append(Panel(f"{llm_id} on {profile_id}", _THROUGHPUT, latency, lines))
    text = (
        "A line is one output length, a point one request rate with Poisson arrivals; inf is all "
        "requests at once. Latency counts from the moment a request was due, so it includes the "
        "queue that grows where the rate is above what the server can do."
    )
    table = table_of(
        rates.assign(load=rates["level"].map(level_words)),
        "llm_id workload_id load n_ok mean_output_tokens request_rate_rps throughput_tok_s "
        "mean_latency_ms mean_processing_ms",
        load="Requests/s asked",
        request_rate_rps="Requests/s served",
        mean_latency_ms="Mean latency (ms)",
    )
    title = "Latency against throughput by output length and request rate"
    figure = panels_figure(panels, title, has_points=True)
    return Section.of_text("Output length and request rate", text, figure, table)


def activity_section(batches: pd.DataFrame, data: StudyData) -> Section:
    """How busy devices are over batch sizes, after their Fig. 3 and 8."""
    is_cpu = {name: profile.gpu.kind == "cpu" for name, profile in data.profiles.items()}
    on_cpu = bool(batches["gpu_profile_id"].map(is_cpu).any())
    notes = [
        "SM active is the fraction of time that a multiprocessor has a warp, SM occupancy the "
        "fraction of the warps it could hold (DCGM); mean and maximum are over the time of a "
        "batch. GPU utilization is the fraction of time that any kernel runs, whatever it uses of "
        "the device. Drawn are the profiles of the fewest devices."
    ]
    if batches.empty or batches["mean_sm_active"].isna().all():
        notes.append(
            "SM metrics are not available here: they need a GPU and DCGM (engine.dcgm_url)."
        )
    if on_cpu:
        notes.append(
            "On processor cores utilization is the CPU time of the server's processes over that "
            "of its cores."
        )
    panels = list(_activity_panels(_fewest_devices(batches), on_cpu))
    if all(panel.y == _THROUGHPUT for panel in panels):
        return Section("Device activity", notes=[*notes, "No device reported how busy it was."])
    figure = panels_figure(panels, "Device activity over batch size", has_points=True)
    known = [column for column in _ACTIVITY if batches[column].notna().any()]
    table = table_of(batches, f"llm_id gpu_profile_id batch_size {' '.join(known)}", **_ACTIVITY)
    return Section("Device activity", notes=notes, figures=[(figure, "")], tables=[table])


def _activity_panels(batches: pd.DataFrame, on_cpu: bool) -> Iterator[Panel]:
    for column, heading in (
        ("mean_utilization", "CPU utilization, mean" if on_cpu else "GPU utilization, mean"),
        ("throughput_tok_s", "Throughput"),
        ("mean_sm_active", "SM active, mean"),
        ("max_sm_active", "SM active, maximum"),
        ("mean_sm_occupancy", "SM occupancy, mean"),
        ("max_sm_occupancy", "SM occupancy, maximum"),
    ):
        lines = _lines(batches, column)
        is_fraction = column != "throughput_tok_s"
        y = Axis("Fraction", low=0, high=1.05) if is_fraction else _THROUGHPUT
        if lines:
            yield Panel(heading, _batch_axis(batches), y, lines)


def energy_section(batches: pd.DataFrame) -> Section:
    """Power and energy over batch sizes, after their Fig. 4."""
    title = "Power and energy"
    if batches.empty or batches["mean_power_w"].isna().all():
        return Section.of_text(title, "The devices report no power: energy is not known.")
    fewest, axis = _fewest_devices(batches), _batch_axis(batches)
    panels = [
        Panel(heading, axis, y, _lines(fewest, column))
        for heading, y, column in (
            ("Mean power", Axis("W", low=0), "mean_power_w"),
            ("Energy per output token", Axis("J", is_log=True), "energy_per_output_token_j"),
        )
    ]
    text = (
        "Power of all devices of the profile; energy is what their counters gained over the run. "
        "Drawn are the profiles of the fewest devices."
    )
    figure = panels_figure([panel for panel in panels if panel.curves], title, has_points=True)
    table = table_of(
        batches,
        "llm_id gpu_profile_id batch_size mean_power_w max_power_w energy_per_request_j "
        "energy_per_output_token_j",
    )
    return Section.of_text(title, text, figure, table)


def _batch_axis(batches: pd.DataFrame) -> Axis:
    return level_axis("Batch size", batches["batch_size"])


def _fewest_devices(batches: pd.DataFrame) -> pd.DataFrame:
    return batches[batches["n_gpus"] == batches.groupby("llm_id")["n_gpus"].transform("min")]


def _lines(batches: pd.DataFrame, column: str) -> Sequence[Curve]:
    known = batches[batches[column].notna()]
    curves = known.groupby(["llm_id", "gpu_profile_id", "workload_id"], sort=False)
    is_one_workload = known["workload_id"].nunique() < 2
    return [
        Curve(
            place_words(rows.iloc[0]) + ("" if is_one_workload else f", {key[2]}"),
            rows["batch_size"],
            rows[column],
        )
        for key, rows in curves
    ]
