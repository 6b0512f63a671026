"""The burst study's phases, simulated with a step law that has seen none of their requests.

It is calibrated on the closed loop of the same LLM, profile, workload and variant, if the study has
one. Arrivals, lengths and the time limit are those of the measured phases.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPU
from sextant.pages.charts import Curve, Panel, panels_figure
from sextant.pages.figure import Axis
from sextant.pages.sections import Section
from sextant.pages.wording import number, percent
from sextant.points.cell_files import MeasuredCell
from sextant.simulate.calibrated import calibrate, closed_loop_requests
from sextant.simulate.inputs import Requests, Scheduler, StepLaw
from sextant.simulate.run import STATUS, simulate
from sextant.studies.burst_measures import Phase, latencies, requests_of
from sextant.studies.labels import table_of
from sextant.studies.study_data import StudyData

_OPTIONS = ("--num-gpu-blocks-override", "--block-size", "--max-num-seqs", "--max-model-len")
_METRICS = ("failure_rate", "mean_token_latency_ms", "mean_ttft_ms")
_SWEEPS = ("alpha", "beta", "theta")


class SimulatedCell(NamedTuple):
    """What was made of a cell's phases."""

    law: StepLaw
    scheduler: Scheduler
    rows: pd.DataFrame
    """`phase, block` (0: the whole phase), `n_requests`, `_METRICS` as measured, and the same with
    `simulated_` before the name."""


def simulated(
    cell: MeasuredCell, measured: Mapping[str, Phase], data: StudyData
) -> SimulatedCell | None:
    """Return the phases of a cell as simulated, None without its closed loop or vLLM's settings."""
    scheduler = _scheduler_of(cell, data.profiles[cell.run.gpu_profile_id].gpu)
    known = [each for each in data.cells if _is_closed_loop_of(cell, each)]
    if scheduler is None or not known:
        return None
    users = closed_loop_requests(known[0].folder)
    if users.empty:
        return None
    law = calibrate(users, scheduler, 0, 0).law
    frames = []
    for phase in measured.values():
        limited = replace(scheduler, timeout_s=phase.timeout_s or np.inf)
        frames.append(_compared(phase, _simulated(phase, limited, law, cell.run.variant.replicas)))
    return SimulatedCell(law, scheduler, pd.concat(frames, ignore_index=True))


def _is_closed_loop_of(cell: MeasuredCell, other: MeasuredCell) -> bool:
    source, llm_id, profile_id, workload_id, _, variant_id = cell.key
    *place, _, variant = other.key
    is_same = (*place, variant) == (source, llm_id, profile_id, workload_id, variant_id)
    return is_same and other.run.scenario["kind"] == "closed_loop"


def _scheduler_of(cell: MeasuredCell, gpu: GPU) -> Scheduler | None:
    """Return the settings that vLLM was started with; None of another engine."""
    command = (cell.run.server and cell.run.server.command) or ()
    given = dict(pairwise(command))
    if not set(_OPTIONS) <= set(given):
        return None
    n_blocks, block_tokens, sequences, longest = (int(given[name]) for name in _OPTIONS)
    return Scheduler(
        (n_blocks - 1) * block_tokens,  # vLLM keeps one block for itself
        sequences,
        int(given.get("--max-num-batched-tokens", max(_tokens_a_step(gpu), sequences))),
        longest,
        block_tokens,
        has_prefix_caching=False,
        is_asynchronous=gpu.kind != "cpu",  # vLLM schedules synchronously on CPUs
    )


def _tokens_a_step(gpu: GPU) -> int:
    """Return what vLLM 0.32 takes for `max_num_batched_tokens` of a server."""
    if gpu.kind == "cpu" or gpu.memory_gib < 70 or "A100" in gpu.gpu_id:
        return 2048
    return 8192 if gpu.memory_gib < 160 else 16_384


def _simulated(phase: Phase, scheduler: Scheduler, law: StepLaw, n_replicas: int) -> pd.DataFrame:
    """Return the phase's requests, as `Phase.requests`, with what the simulator makes of them."""
    asked = phase.requests[["due_s", "requested_input_tokens", "requested_output_tokens"]]
    made = simulate(Requests.of(*asked.to_numpy().T), scheduler, law, n_replicas=n_replicas)
    rows = {
        "scheduled_s": made.arrival_s,
        "first_token_s": made.arrival_s + made.ttft_s,
        "last_token_s": made.arrival_s + made.e2e_s,
        "output_tokens": made.output_tokens,
        "requested_input_tokens": made.input_tokens,
        "requested_output_tokens": made.output_tokens,
        "status": [STATUS[each] for each in made.status],
    }
    return requests_of(pd.DataFrame(rows), 0.0, phase.facts)


def _compared(phase: Phase, made: pd.DataFrame) -> pd.DataFrame:
    """Return a row for the phase and one for each of its settings."""
    found = []
    for block in range(len(phase.facts["settings"]) + 1):
        row: dict[str, Any] = {"phase": phase.name, "block": block}
        for prefix, requests in (("", phase.requests), ("simulated_", made)):
            own = requests[requests["setting"] == block - 1] if block else requests
            row["n_requests"] = len(own)
            values = {"failure_rate": own["is_failed"].mean(), **latencies(own)}
            row |= {f"{prefix}{name}": values[name] for name in _METRICS}
        found.append(row)
    return pd.DataFrame(found)


def simulated_section(place: str, found: SimulatedCell) -> Section:
    """What was simulated beside what was measured: phases as a table, sweeps as a figure."""
    whole = found.rows[found.rows["block"] == 0]
    blocks = found.rows[(found.rows["block"] > 0) & found.rows["phase"].isin(_SWEEPS)]
    names = [name for name in _SWEEPS if name in set(blocks["phase"])]
    labels = {f"simulated_{name}": "simulated" for name in _METRICS}
    columns = " ".join(f"{name} simulated_{name}" for name in _METRICS)
    table = table_of(whole, f"phase n_requests {columns}", **labels)
    text = (
        "The same requests, simulated step by step with a step law that is calibrated on the "
        "closed loop of this server: it has seen none of these phases."
    )
    if not names:
        return Section.of_text(f"Simulated: {place}", text, table=table)
    figure = panels_figure(
        [_panel(name, metric, blocks) for metric in _METRICS[:2] for name in names],
        f"Sweeps, measured and simulated, {place}",
        n_columns=len(names),
        height_in=1.7,
    )
    off = (blocks["simulated_failure_rate"] - blocks["failure_rate"]).abs().mean()
    ratio = blocks["simulated_mean_token_latency_ms"] / blocks["mean_token_latency_ms"]
    text += (
        f" Over the blocks of the sweeps its share of failures is off by {percent(off)} of the "
        f"requests in the mean, its token latency by a factor of "
        f"{number(float(np.exp(np.log(ratio).abs().median())))} in the median."
    )
    return Section.of_text(f"Simulated: {place}", text, figure, table)


def _panel(name: str, metric: str, blocks: pd.DataFrame) -> Panel:
    own = blocks[blocks["phase"] == name]
    is_share = metric == "failure_rate"
    y = Axis("Failed (fraction)" if is_share else "Token latency (ms)", low=0)
    curves = [
        Curve(label, own["block"], own[f"{prefix}{metric}"])
        for label, prefix in (("measured", ""), ("simulated", "simulated_"))
    ]
    return Panel(f"Sweep of {name}" if is_share else "", Axis("Block of requests"), y, curves)
