"""Throughput against latency over batch sizes: where it stops growing, and what devices do then.

Recasens et al.: Towards Pareto Optimal Throughput in Small Language Model Serving, EuroMLSys 2024,
section 4.1.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pandas as pd

from sextant.base.resources import resource
from sextant.experiment.scenarios import Batch, OpenLoop
from sextant.facts.gpu import Devices
from sextant.facts.llm import load_llm
from sextant.pages.blocks import Section, Table
from sextant.pages.words import joined, plural
from sextant.points.cell_files import MeasuredCell
from sextant.points.verdict import assess
from sextant.studies import study
from sextant.studies.study import Analysis, StudyData, part, table_of

LEAST_GAIN = 0.1
"""A doubling of the batch that gains less is past the knee: latency grows by 2 / (1 + gain)."""
CURVE = ["llm_id", "gpu_profile_id", "workload_id", "variant_id"]
_FEW_READINGS = 5
OPT_BATCH_SIZES = {
    "facebook__opt-125m": 512,
    "facebook__opt-1.3b": 256,
    "facebook__opt-2.7b": 128,
    "facebook__opt-6.7b": 64,
    "facebook__opt-13b": 16,
}
"""Largest batch, a power of two, on an A100 of 40 GB, 512 input, 256 output tokens (Table 1)."""
# The paper's own reading: 36 GB for a server that may use 90% of the device.
_A100_40GB_DECIMAL = Devices("gpu", 1, 40e9 / 2**30)
_UTILIZATION = 0.9
ASSUMPTIONS = {
    "768 tokens, 40 GiB": (768, Devices("gpu", 1, 40)),
    "768 tokens, 40 GB": (768, _A100_40GB_DECIMAL),
    "640 tokens, 40 GB": (640, _A100_40GB_DECIMAL),
    "512 tokens, 40 GB": (512, _A100_40GB_DECIMAL),
}
"""Tokens of a request in the KV cache, and memory, by column. The first sizes Sextant's batches."""


def gains_per_doubling(sizes: Sequence[float], throughputs: Sequence[float]) -> list[float]:
    """Return throughput's relative gain per doubling from each batch size to the next."""
    steps = zip(sizes, sizes[1:], throughputs, throughputs[1:], strict=False)
    return [(after / before) ** (1 / math.log2(b / a)) - 1 for a, b, before, after in steps]


def knee(sizes: Sequence[float], throughputs: Sequence[float]) -> int | None:
    """Return the index of the first size from which every doubling gains less than `LEAST_GAIN`.

    None: the last doubling gains more, or there is only one size.
    """
    gains = gains_per_doubling(sizes, throughputs)
    growing = [index for index, gain in enumerate(gains) if gain >= LEAST_GAIN]
    index = growing[-1] + 1 if growing else 0
    return index if index < len(gains) else None


def largest_power_of_two(value: float) -> int:
    """Return the largest power of two that is not above `value`; 0 below 1."""
    return 1 << (int(value).bit_length() - 1) if value >= 1 else 0


@cache
def opt_batch_sizes() -> pd.DataFrame:
    """Return Table 1 of Recasens et al.: a row per LLM, `published`, a column per assumption."""
    rows = []
    for llm_id, published in OPT_BATCH_SIZES.items():
        llm = load_llm(resource(f"llms/{llm_id}.json"))
        row = {"llm_id": llm_id, "weights_gb": llm.weight_bytes / 1e9, "published": published}
        for name, (tokens, devices) in ASSUMPTIONS.items():
            held_tokens = assess(llm, devices, _UTILIZATION, tokens).max_batch_weight_tokens
            row[name] = min(512, largest_power_of_two(held_tokens / tokens))
        rows.append(row)
    return pd.DataFrame(rows)


def analyse(data: StudyData) -> Analysis:
    """Find each LLM's frontier of throughput, its knee, and whether one device reaches it."""
    points = study.with_measures(data.points, data, (study.request_times, server_load))
    batches = batch_points(points[points["scenario_kind"] == Batch.kind], data)
    rates = points[points["scenario_kind"] == OpenLoop.kind]
    curves = find_knees(batches)
    frontiers = Frontiers(batches, rates, curves, judge_llms(curves))
    numbers = {
        "least_gain_per_doubling": LEAST_GAIN,
        "batches": batches,
        "curves": curves,
        "llms": frontiers.verdicts,
        "rates": rates,
        "published_batch_sizes": opt_batch_sizes(),
    }

    sizes = opt_batch_sizes()
    text = (
        "Table 1 of Recasens et al.: the largest batch of requests of 512 input and 256 output "
        "tokens on an A100 of 40 GB, a power of two up to 512. Computed: what 90% of the device "
        "leaves beside 16-bit weights, over the KV cache of each request in flight: 768 tokens at "
        "its end (how Sextant sizes a batch), 640 on average, 512 for its prompt (what vLLM "
        "reserves when it admits a request, and may have to preempt)."
    )
    labels = {name: study.LABELS.get(name, name.capitalize()) for name in sizes}
    labels |= {name: name for name in ASSUMPTIONS}
    published = part("Published batch sizes", text, table=Table.of_frame(sizes, labels))

    text = "Latency counts from when a request was due, and all were due at once."
    table = table_of(
        batches,
        "llm_id gpu_profile_id workload_id batch_size n_ok n_failed request_rate_rps "
        "throughput_tok_s mean_processing_ms mean_latency_ms mean_running n_preemptions fits "
        "is_optimal",
    )
    sections = [
        frontiers.frontier_section,
        published,
        *([frontiers.lengths_section] if len(rates) else []),
        *frontiers.device_sections,
        part("Every batch", text, table=table),
    ]

    return Analysis(frontiers.summary, numbers, sections)


def server_load(cell: MeasuredCell) -> pd.DataFrame:
    """Return by level what the servers held, all replicas together.

    Columns: `mean_running`, requests in the batch on average, and `n_preemptions`. Servers are read
    once a second. A level with few readings has no mean, a level with one reading no preemptions.
    """
    levels = [(level.level, level.started_s, level.ended_s) for level in cell.run.levels]
    windows = pd.DataFrame(levels, columns=["level", "from_s", "to_s"], dtype=float)
    # Leave out readings from before a level began, during its warm-up or a search.
    rows = cell.server().merge(windows, on="level")
    rows = rows[rows["time_s"].between(rows["from_s"], rows["to_s"])]
    by_replica = rows.groupby(["level", "replica"])
    counter = by_replica["n_preemptions"]
    n_readings = by_replica.size()
    running = by_replica["n_running"].mean().where(n_readings >= _FEW_READINGS)
    preempted = (counter.max() - counter.min()).where(n_readings > 1)
    load = pd.DataFrame({"mean_running": running, "n_preemptions": preempted})

    # The sum is unknown if it is unknown for one replica.
    return load.groupby("level").agg(lambda column: column.sum(skipna=False)).reset_index()


def batch_points(points: pd.DataFrame, data: StudyData) -> pd.DataFrame:
    """Return the batches that served anything, with `n_gpus, batch_size, fits` and `is_optimal`.

    A batch fits if its whole requests are within the batch weight. A fitting batch is optimal if no
    other fitting batch of the same LLM and workload is as good in throughput and latency, and
    better in one of them.
    """
    batches = points[points["n_ok"] > 0].copy()
    batches["n_gpus"] = [data.profiles[name].n_gpus for name in batches["gpu_profile_id"]]
    batches["batch_size"] = batches["level"].astype(int)
    batches["fits"] = study.fits_memory(batches)
    batches["is_optimal"] = False
    for _, rows in batches[batches["fits"]].groupby(["llm_id", "workload_id"]):
        rates, delays = (rows[name] for name in ("throughput_tok_s", "mean_processing_ms"))
        batches.loc[rows.index, "is_optimal"] = [
            not ((rates >= rate) & (delays <= delay) & ((rates > rate) | (delays < delay))).any()
            for rate, delay in zip(rates, delays, strict=True)
        ]

    return batches.reset_index(drop=True)


def find_knees(batches: pd.DataFrame) -> pd.DataFrame:
    """Return one row per `CURVE`: the sizes that fit, and the knee of throughput over them.

    Columns: `n_sizes` and `largest_size` that fit, `largest_fitting_size` (a power of two, by the
    batch weight), `knee_size` (null while throughput grows), `last_gain` (per doubling), and
    throughput and processing time at the knee and at the largest size.
    """
    curves = []
    for key, group in batches.groupby(CURVE, sort=False):
        rows = group.sort_values("batch_size")
        fitting = rows[rows["fits"]]
        sizes = list(fitting["batch_size"])
        rates = list(fitting["throughput_tok_s"])
        knee_index = knee(sizes, rates)
        gains = gains_per_doubling(sizes, rates)
        weight_tokens = rows["batch_weight_tokens"].iloc[0] * rows["replicas"].iloc[0]
        largest = largest_power_of_two(weight_tokens / rows["request_tokens"].max())
        row = dict(zip(CURVE, key, strict=True)) | {
            "n_gpus": int(rows["n_gpus"].iloc[0]),
            "n_sizes": len(sizes),
            "largest_size": sizes[-1] if sizes else None,
            "largest_fitting_size": None if pd.isna(weight_tokens) else largest,
            "knee_size": None if knee_index is None else sizes[knee_index],
            "last_gain": gains[-1] if gains else None,
        }
        for name, at in (("knee", knee_index), ("largest", len(sizes) - 1 if sizes else None)):
            there = {} if at is None else fitting.iloc[at]
            row[f"{name}_throughput_tok_s"] = there.get("throughput_tok_s")
            row[f"{name}_processing_ms"] = there.get("mean_processing_ms")
        curves.append(row)

    names = [*CURVE, "n_gpus", "n_sizes", "knee_size", "largest_throughput_tok_s"]
    return pd.DataFrame(curves) if curves else pd.DataFrame(columns=names)


def judge_llms(curves: pd.DataFrame) -> pd.DataFrame:
    """Say whether one device reaches the frontier, and how much more several serve."""
    rows = []
    for (llm_id, workload_id), group in curves.groupby(["llm_id", "workload_id"], sort=False):
        single = group[group["n_gpus"] == 1]
        more = group[group["n_gpus"] > 1]
        best, best_more = (part["largest_throughput_tok_s"].max() for part in (single, more))
        n_sizes = int(single["n_sizes"].max()) if len(single) else 0
        verdict = {0: "does not fit", 1: "one size only"}.get(n_sizes, "still growing")
        if single["knee_size"].notna().any():
            verdict = "reached"
        rows.append((llm_id, workload_id, verdict, single["knee_size"].min(), best_more / best))

    names = ["llm_id", "workload_id", "one_device", "knee_size", "devices_gain"]
    return pd.DataFrame(rows, columns=names)


@dataclass(frozen=True)
class Frontiers:
    """How far throughput grows with the batch, and what the study says of it."""

    batches: pd.DataFrame
    """Rows of `batch_points`."""
    rates: pd.DataFrame
    """Points at request rates."""
    curves: pd.DataFrame
    """Rows of `find_knees`."""
    verdicts: pd.DataFrame
    """Rows of `judge_llms`."""

    @property
    def summary(self) -> str:
        """The findings in a few sentences."""
        if self.verdicts.empty:
            return "No batch was served: nothing can be said of throughput and latency."

        by_verdict = {
            name: group["llm_id"].unique() for name, group in self.verdicts.groupby("one_device")
        }
        parts = [
            f"{len(by_verdict.get('reached', ()))} of "
            f"{plural(self.verdicts['llm_id'].nunique(), 'LLM')} reached the frontier of "
            "throughput within one device: a batch size from which no doubling gained "
            f"{LEAST_GAIN:.0%} or more."
        ]
        has_knee = self.curves["knee_size"].notna() & (self.curves["n_gpus"] == 1)
        for _, row in self.curves[has_knee].iterrows():
            parts.append(
                f"{row['llm_id']} ({row['workload_id']}): batch size {row['knee_size']:g}, "
                f"{row['knee_throughput_tok_s']:,.0f} output tokens/s at "
                f"{row['knee_processing_ms']:,.0f} ms; "
                f"{row['largest_size']:g}: {row['largest_throughput_tok_s']:,.0f} at "
                f"{row['largest_processing_ms']:,.0f} ms."
            )

        for verdict, words in (
            ("still growing", "Throughput of {} still grew at the largest batch tried."),
            ("does not fit", "No batch of {} was measured on one device."),
        ):
            if verdict in by_verdict:
                parts.append(words.format(joined(by_verdict[verdict])))

        return " ".join(parts)

    @property
    def frontier_section(self) -> Section:
        """Throughput against processing time, after Fig. 1 of the paper."""
        text = (
            "The knee, ringed, is the smallest batch size from which no further doubling gains "
            f"{LEAST_GAIN:.0%} of throughput; by Little's law one that gains less multiplies "
            f"latency by more than {2 / (1 + LEAST_GAIN):.2f}. A point is Pareto-optimal if no "
            "other batch of its LLM, on any profile, has at least its throughput at no more "
            "latency. Hollow points count for neither: their whole requests exceed the batch "
            "weight, so the server queues or preempts.\n\nProcessing time is the mean from "
            "sending a request to its last token. Numbers at points are batch sizes. All "
            "requests of a run were due at once; the last ones leave the batch emptier, which "
            "lowers the throughput of large batches."
        )
        title = "Throughput against latency"
        if self.curves.empty:
            return part(title, f"No batch was served.\n\n{text}")

        table = table_of(
            self.curves.assign(last_gain_percent=self.curves["last_gain"] * 100),
            "llm_id gpu_profile_id workload_id knee_size knee_throughput_tok_s knee_processing_ms "
            "largest_size largest_throughput_tok_s largest_processing_ms last_gain_percent "
            "largest_fitting_size",
        )
        drawn = self.batches.merge(self.curves[[*CURVE, "knee_size"]], on=CURVE)
        panels = study.panels_of(
            drawn.assign(is_knee=drawn["batch_size"] == drawn["knee_size"]),
            "llm_id workload_id",
            "gpu_profile_id variant_id",
            "throughput_tok_s",
            "mean_processing_ms",
        )

        return part(title, text, panels, table)

    @property
    def lengths_section(self) -> Section:
        """Output lengths at request rates, after Fig. 2 (right) of the paper."""
        text = (
            "A line is one output length, a point one request rate with Poisson arrivals; inf is "
            "all requests at once. Latency counts from when a request was due: with its time in "
            "the queue."
        )
        columns = ("llm_id gpu_profile_id", "workload_id", "throughput_tok_s", "mean_latency_ms")
        panels = study.panels_of(self.rates, *columns)
        table = table_of(
            self.rates.assign(load=self.rates["level"].map(study.level_words)),
            "llm_id workload_id load n_ok mean_output_tokens request_rate_rps throughput_tok_s "
            "mean_latency_ms mean_processing_ms",
            load="Requests/s asked",
            request_rate_rps="Requests/s served",
        )
        return part("Output length and request rate", text, panels, table)

    @property
    def device_sections(self) -> list[Section]:
        """Use of devices over batch sizes (Fig. 3 and 8 of the paper), and power (Fig. 4)."""
        text = (
            "SM active is the fraction of time that a multiprocessor has a warp, SM occupancy the "
            "fraction of the warps it could hold; both need a GPU and DCGM (engine.dcgm_url). The "
            "utilization of a GPU is the fraction of time that any kernel runs, that of processor "
            "cores the CPU time of the server's processes over that of its cores."
        )
        uses = "mean_utilization max_utilization mean_sm_active max_sm_active mean_sm_occupancy"
        energy = "mean_power_w max_power_w energy_per_request_j energy_per_output_token_j"
        of_energy = "Power of all devices of the profile; energy is what their counters gained."
        over = (study.level_axis("Batch size", self.batches["batch_size"]), "batch_size")

        return [
            study.device_section(
                "Device activity", text, self.batches, f"{uses} max_sm_occupancy", *over
            ),
            study.device_section("Power and energy", of_energy, self.batches, energy, *over),
        ]
