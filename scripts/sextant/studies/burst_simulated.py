"""The phases of bursts as they were simulated, beside the measured ones."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from sextant.facts.engine import scheduler_sheet
from sextant.law.measured_server import calibrate, closed_loop_requests
from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Curve, Panel
from sextant.pages.words import number, percent
from sextant.points.cell_files import MeasuredCell
from sextant.simulate.server import STATUS, Scheduler
from sextant.simulate.simulation import simulate
from sextant.studies.burst_phases import (
    SMALL_PANELS,
    SWEEPS,
    Phase,
    latencies,
    requests_of_phase,
)
from sextant.studies.study import StudyData, part, table_of
from sextant.workload.requests import RequestStream

_OPTIONS = ("--num-gpu-blocks-override", "--block-size", "--max-num-seqs", "--max-model-len")
_COMPARED = ("failure_rate", "mean_token_latency_ms", "mean_ttft_ms")


def simulated(
    cell: MeasuredCell, measured: Mapping[str, Phase], data: StudyData
) -> dict[str, Any] | None:
    """Return a cell's phases as simulated; None: its closed loop or its settings are not known."""
    scheduler = _scheduler_of(cell, data)
    key = cell.run.ids
    closed_loops = [
        other.folder
        for other in data.cells
        if other.run.scenario["kind"] == "closed_loop"
        and (other.run.ids[:-2], other.run.ids[-1]) == (key[:-2], key[-1])
    ]
    users = closed_loop_requests(closed_loops[0]) if scheduler and closed_loops else pd.DataFrame()
    if scheduler is None or users.empty:
        return None

    law = calibrate(users, scheduler, 0, 0).law
    rows = []
    for phase in measured.values():
        limited = replace(scheduler, timeout_s=phase.timeout_s or np.inf)
        scheduled = phase.requests[["due_s", "requested_input_tokens", "requested_output_tokens"]]
        run = simulate(
            RequestStream.of(*scheduled.to_numpy().T),
            limited,
            law,
            n_replicas=cell.run.variant.replicas,
        )
        columns = {
            "scheduled_s": run.arrival_s,
            "first_token_s": run.arrival_s + run.ttft_s,
            "last_token_s": run.arrival_s + run.e2e_s,
            "output_tokens": run.output_tokens,
            "requested_input_tokens": run.input_tokens,
            "requested_output_tokens": run.output_tokens,
            "status": [STATUS[status] for status in run.status],
        }
        sides = {"": phase.requests}
        sides["simulated_"] = requests_of_phase(pd.DataFrame(columns), 0.0, phase.facts)
        for block in range(len(phase.facts["settings"]) + 1):
            row: dict[str, Any] = {"phase": phase.name, "block": block}
            for prefix, requests in sides.items():
                rows_of_block = requests[requests["setting"] == block - 1] if block else requests
                row["n_requests"] = len(rows_of_block)
                values = {
                    "failure_rate": rows_of_block["is_failed"].mean(),
                    **latencies(rows_of_block),
                }
                row |= {f"{prefix}{name}": values[name] for name in _COMPARED}
            rows.append(row)

    return {"law": vars(law), "scheduler": vars(scheduler), "rows": pd.DataFrame(rows)}


def _scheduler_of(cell: MeasuredCell, data: StudyData) -> Scheduler | None:
    """Return the settings that vLLM was started with; None of another engine."""
    options = dict(pairwise((cell.run.server and cell.run.server.command) or ()))
    if not set(_OPTIONS) <= set(options):
        return None

    devices = data.profiles[cell.run.key.gpu_profile_id].devices
    n_blocks, block_tokens, sequences, longest = (int(options[name]) for name in _OPTIONS)
    step_tokens = scheduler_sheet("vllm", "", devices).max_num_batched_tokens
    return Scheduler(
        (n_blocks - 1) * block_tokens,  # vLLM keeps one block for itself
        sequences,
        int(options.get("--max-num-batched-tokens", max(step_tokens, sequences))),
        longest,
        block_tokens,
        has_prefix_caching=False,
        is_asynchronous=devices.kind != "cpu",  # vLLM schedules synchronously on CPUs
    )


def simulated_section(where: str, rows: pd.DataFrame) -> Section:
    """Simulated against measured: phases as a table, sweeps as a figure."""
    title = f"Simulated: {where}"
    labels = {f"simulated_{name}": "simulated" for name in _COMPARED}
    columns = " ".join(f"{name} simulated_{name}" for name in _COMPARED)
    table = table_of(rows[rows["block"] == 0], f"phase n_requests {columns}", **labels)
    text = (
        "The same requests, simulated step by step with a step law that is calibrated on the "
        "closed loop of this server: it has seen none of these phases."
    )
    blocks = rows[(rows["block"] > 0) & rows["phase"].isin(SWEEPS)]
    if blocks.empty:
        return part(title, text, table=table)

    off = (blocks["simulated_failure_rate"] - blocks["failure_rate"]).abs().mean()
    ratio = blocks["simulated_mean_token_latency_ms"] / blocks["mean_token_latency_ms"]
    text += (
        f" Over the blocks of the sweeps its share of failures is off by {percent(off)} of the "
        "requests in the mean, its token latency by a factor of "
        f"{number(float(np.exp(np.log(ratio).abs().median())))} in the median."
    )
    panels = []
    axis = Axis("Block of requests")
    for metric, label in zip(_COMPARED, ("Failed (fraction)", "Token latency (ms)"), strict=False):
        for name, group in blocks.groupby("phase"):
            curves = [
                Curve("measured", group["block"], group[metric]),
                Curve("simulated", group["block"], group[f"simulated_{metric}"]),
            ]
            heading = f"Sweep of {name}" if metric == _COMPARED[0] else ""
            panels.append(Panel(heading, axis, Axis(label, low=0), curves))

    n_columns = blocks["phase"].nunique()

    return part(title, text, panels, table, n_columns=n_columns, **SMALL_PANELS)
