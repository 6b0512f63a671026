"""What the page of the study `pareto` shows."""

from collections.abc import Iterator, Sequence

import pandas as pd

from sextant.pages.charts import Axis
from sextant.pages.sections import plural
from sextant.studies.data import Section, StudyData
from sextant.studies.drawing import Line, Panel, lines_figure
from sextant.studies.frontier import LEAST_GAIN
from sextant.studies.measures import columns_of, level_words, place_words
from sextant.studies.published import OPT_INPUT_TOKENS, OPT_OUTPUT_TOKENS

_THROUGHPUT = Axis("Throughput (output tokens/s)", is_log=True)
_PROCESSING = Axis("Mean processing time (ms)", is_log=True)
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
    names = {
        "llm_id": "LLM",
        "gpu_profile_id": "GPU profile",
        "workload_id": "Workload",
        "knee_size": "Knee: batch size",
        "knee_throughput_tok_s": "Output tokens/s",
        "knee_processing_ms": "Processing (ms)",
        "largest_size": "Largest batch that fits",
        "largest_throughput_tok_s": "Output tokens/s there",
        "largest_processing_ms": "Processing there (ms)",
        "last_gain_percent": "Gain of the last doubling (%)",
    }
    if curves.empty:
        return Section("Throughput against latency", f"No batch was served.\n\n{text}")
    table = columns_of(curves.assign(last_gain_percent=curves["last_gain"] * 100), names)
    return Section("Throughput against latency", text, _frontier_figure(batches, curves), table)


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
            line = Line(
                profile_id if variant_id == "default" else f"{profile_id}, {variant_id}",
                rows["throughput_tok_s"],
                rows["mean_processing_ms"],
                labels=[str(size) for size in sizes],
                ringed=[sizes.index(knee_size)] if knee_size in sizes else [],
                hollow=[place for place, fits in enumerate(rows["fits"]) if not fits],
            )
            lines.append(line)
        panels.append(Panel(f"{llm_id}, {workload_id}", _THROUGHPUT, _PROCESSING, lines))
    return lines_figure(panels, "Processing time against throughput by batch size")


def batch_table_section(batches: pd.DataFrame) -> Section:
    """Every batch, in numbers."""
    names = {
        "llm_id": "LLM",
        "gpu_profile_id": "GPU profile",
        "workload_id": "Workload",
        "batch_size": "Batch size",
        "n_ok": "Requests",
        "n_failed": "Failed",
        "request_rate_rps": "Requests/s",
        "throughput_tok_s": "Output tokens/s",
        "mean_processing_ms": "Processing (ms)",
        "mean_latency_ms": "With queueing (ms)",
        "mean_running": "In the server's batch, mean",
        "n_preemptions": "Preemptions",
        "fits_words": "Fits",
        "optimal_words": "Pareto-optimal",
    }
    words = {True: "yes", False: "no"}
    shown = batches.assign(
        fits_words=batches["fits"].map(words), optimal_words=batches["is_optimal"].map(words)
    )
    text = (
        f"{plural(len(batches), 'batch')[:-1] + 'es' if len(batches) != 1 else '1 batch'}. "
        "With queueing, time counts from the moment a request was due, and all were due at once: "
        "it grows with the number of requests and says little of the server."
    )
    return Section("Every batch", text, None, columns_of(shown, names))


def memory_section(curves: pd.DataFrame) -> Section:
    """The largest batch by memory against the largest that was tried."""
    names = {
        "llm_id": "LLM",
        "gpu_profile_id": "GPU profile",
        "workload_id": "Workload",
        "largest_fitting_size": "Memory holds",
        "largest_size": "Largest tried that fits",
    }
    text = (
        "What memory holds is the largest power of two whose whole requests, input and output, "
        "are within the batch weight that the server was tuned to."
    )
    table = None if curves.empty else columns_of(curves, names)
    return Section("Largest batch", text, None, table)


def published_section(table: pd.DataFrame, agreement: str) -> Section:
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
    names = {"llm_id": "LLM", "weights_gb": "Weights (GB)", "published": "Published"}
    return Section("Published batch sizes", text, None, table.rename(columns=names))


def lengths_section(rates: pd.DataFrame) -> Section:
    """Output lengths at request rates, after their Fig. 2 (right)."""
    panels = []
    for (llm_id, profile_id), own in rates.groupby(["llm_id", "gpu_profile_id"], sort=False):
        lines = [
            Line(
                workload_id,
                rows["throughput_tok_s"],
                rows["mean_latency_ms"],
                labels=[level_words(level) for level in rows["level"]],
            )
            for workload_id, rows in own.groupby("workload_id", sort=False)
        ]
        latency = Axis("Mean latency from due time (ms)", is_log=True)
        panels.append(Panel(f"{llm_id} on {profile_id}", _THROUGHPUT, latency, lines))
    names = {
        "llm_id": "LLM",
        "workload_id": "Workload",
        "rate_words": "Requests/s asked",
        "n_ok": "Requests",
        "mean_output_tokens": "Output tokens",
        "request_rate_rps": "Requests/s served",
        "throughput_tok_s": "Output tokens/s",
        "mean_latency_ms": "Mean latency (ms)",
        "mean_processing_ms": "Processing (ms)",
    }
    shown = rates.assign(rate_words=[level_words(level) for level in rates["level"]])
    text = (
        "A line is one output length, a point one request rate with Poisson arrivals; inf is all "
        "requests at once. Latency counts from the moment a request was due, so it includes the "
        "queue that grows where the rate is above what the server can do."
    )
    figure = lines_figure(panels, "Latency against throughput by output length and request rate")
    return Section("Output length and request rate", text, figure, columns_of(shown, names))


def activity_section(batches: pd.DataFrame, data: StudyData) -> Section:
    """How busy devices are over batch sizes, after their Fig. 3 and 8."""
    is_cpu = {name: profile.gpu.kind == "cpu" for name, profile in data.profiles.items()}
    on_cpu = batches["gpu_profile_id"].map(is_cpu).any()
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
        notes.append("No device reported how busy it was.")
        return Section("Device activity", "\n\n".join(notes))
    figure = lines_figure(panels, "Device activity over batch size")
    return Section("Device activity", "\n\n".join(notes), figure, _activity_table(batches))


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


def _activity_table(batches: pd.DataFrame) -> pd.DataFrame:
    names = {"llm_id": "LLM", "gpu_profile_id": "GPU profile", "batch_size": "Batch size"}
    words = {
        "utilization": "utilization",
        "sm_active": "SM active",
        "sm_occupancy": "SM occupancy",
    }
    for name, word in words.items():
        for statistic in ("mean", "max"):
            if batches[f"{statistic}_{name}"].notna().any():
                names[f"{statistic}_{name}"] = f"{word}, {statistic}".capitalize()
    return columns_of(batches, names)


def energy_section(batches: pd.DataFrame) -> Section:
    """Power and energy over batch sizes, after their Fig. 4."""
    title = "Power and energy"
    if batches.empty or batches["mean_power_w"].isna().all():
        return Section(title, "The devices report no power: energy is not known.")
    fewest, axis = _fewest_devices(batches), _batch_axis(batches)
    panels = [
        Panel("Mean power", axis, Axis("W", low=0), _lines(fewest, "mean_power_w")),
        Panel(
            "Energy per output token",
            axis,
            Axis("J", is_log=True),
            _lines(fewest, "energy_per_output_token_j"),
        ),
    ]
    names = {
        "llm_id": "LLM",
        "gpu_profile_id": "GPU profile",
        "batch_size": "Batch size",
        "mean_power_w": "Mean power (W)",
        "max_power_w": "Maximum (W)",
        "energy_per_request_j": "Energy per request (J)",
        "energy_per_output_token_j": "Per output token (J)",
    }
    text = (
        "Power of all devices of the profile; energy is what their counters gained over the run. "
        "Drawn are the profiles of the fewest devices."
    )
    figure = lines_figure([panel for panel in panels if panel.lines], "Power and energy")
    return Section(title, text, figure, columns_of(batches, names))


def _batch_axis(batches: pd.DataFrame) -> Axis:
    sizes = sorted(batches["batch_size"].unique())
    return Axis("Batch size", is_log=True, ticks=sizes, names=[str(size) for size in sizes])


def _fewest_devices(batches: pd.DataFrame) -> pd.DataFrame:
    return batches[batches["n_gpus"] == batches.groupby("llm_id")["n_gpus"].transform("min")]


def _lines(batches: pd.DataFrame, column: str) -> Sequence[Line]:
    known = batches[batches[column].notna()]
    curves = known.groupby(["llm_id", "gpu_profile_id", "workload_id"], sort=False)
    is_one_workload = known["workload_id"].nunique() < 2
    return [
        Line(
            place_words(rows.iloc[0]) + ("" if is_one_workload else f", {key[2]}"),
            rows["batch_size"],
            rows[column],
        )
        for key, rows in curves
    ]
