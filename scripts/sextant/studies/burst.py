"""How a server takes bursts: failures, latency and throughput as load and lengths change.

Wang et al.: Towards Efficient and Reliable LLM Serving: A Real-World Workload Study (BurstGPT),
section V.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from sextant.law.measured_server import calibrate, closed_loop_requests
from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Curve, Panel
from sextant.pages.words import number, percent
from sextant.points.cell_files import MeasuredCell
from sextant.simulate.simulation import STATUS, Scheduler, simulate
from sextant.studies import study
from sextant.studies.burst_phases import (
    MAX_SLICES,
    Phase,
    latencies,
    phases,
    requests_of_phase,
)
from sextant.studies.study import Analysis, Finding, StudyData, part, table_of
from sextant.workload.requests import RequestStream

SWEEPS = ("alpha", "beta", "theta")
SMALL_PANELS: Mapping[str, Any] = {"height_in": 1.7, "has_points": False}  # a column a phase
_NAMES = {"warm-up": "Warm-up", "conversation": "Mirrored conversation", "api": "Mirrored API"}
_NAMES |= {name: f"Sweep of {name}" for name in SWEEPS}
_SYMBOLS = {"alpha": "Shape alpha", "beta_s": "Scale beta (s)", "theta": "Zipf exponent theta"}
# A share that is 0 throughout is still to be seen.
_SHARE = Axis("", ticks=(0, 0.5, 1), names=("0", "0.5", "1"), low=-0.06, high=1.06)
_KV_USAGE = _SHARE._replace(label="KV cache used")
_LATENCIES = {"mean": "mean_token_latency_ms", "p90": "p90_token_latency_ms"}
_METRICS = (
    (Axis("Token latency (ms)", low=0), _LATENCIES),
    (Axis("Output tokens/s", low=0), {"mean": "throughput_tok_s"}),
    (_SHARE._replace(label="Failed (fraction)"), {"mean": "failure_rate"}),
)
_NOTABLE_FAILURES = 0.01  # failure rate from which failures are more than single ones
_NOTABLE_CHANGE = 1.1  # ratio of latencies from which they are said to differ
_FEW_SERVED = ("Too few requests were served to compare latencies.", None)


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

    gpu = data.profiles[cell.run.key.gpu_profile_id].gpu
    n_blocks, block_tokens, sequences, longest = (int(options[name]) for name in _OPTIONS)
    step_tokens = 8192 if gpu.memory_gib < 160 else 16_384  # as vLLM 0.32 takes it by default
    if gpu.kind == "cpu" or gpu.memory_gib < 70 or "A100" in gpu.gpu_id:
        step_tokens = 2048

    return Scheduler(
        (n_blocks - 1) * block_tokens,  # vLLM keeps one block for itself
        sequences,
        int(options.get("--max-num-batched-tokens", max(step_tokens, sequences))),
        longest,
        block_tokens,
        has_prefix_caching=False,
        is_asynchronous=gpu.kind != "cpu",  # vLLM schedules synchronously on CPUs
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


def analyse(data: StudyData) -> Analysis:
    """Judge every cell of the study by itself."""
    words = []
    numbers = []
    sections = []
    bursts = [cell.run.ids for cell in data.cells if cell.run.scenario["kind"] == "burst"]
    for cell in data.cells:
        measured = {phase.name: phase for phase in phases(cell)}
        if not measured:
            continue
        _, llm_id, profile_id, *rest = cell.run.ids
        where = f"{llm_id} on {profile_id}"
        if sum(key[1:3] == cell.run.ids[1:3] for key in bursts) > 1:
            where += f" ({', '.join(rest)})"
        findings = [Finding(claim, *judge(measured)) for claim, judge in _CLAIMS.items()]
        simulation = simulated(cell, measured, data)
        words.append(_summary(where, measured, findings))
        of_phases = [
            {"name": name, **phase.averages}
            | {key: value for key, value in phase.facts.items() if key != "settings"}
            | {"by_setting": phase.by_setting}
            for name, phase in measured.items()
        ]
        numbers.append(
            {
                "key": list(cell.run.ids),
                "phases": of_phases,
                "findings": [finding._asdict() for finding in findings],
                "simulated": simulation,
            }
        )
        sections += _sections(where, measured)
        sections += [simulated_section(where, simulation["rows"])] if simulation else []
        text = "Findings of section V for Llama 2 on A800 and A6000, and what was measured here."
        table = study.findings_table(findings, "The paper's finding")
        sections.append(part(f"The paper's findings: {where}", text, table=table))

    summary = " ".join(words) or "No cell has a phase: nothing can be said of bursts."

    return Analysis(summary, {"cells": numbers}, sections)


def _summary(where: str, measured: Mapping[str, Phase], findings: Sequence[Finding]) -> str:
    totals = [phase.averages for phase in measured.values()]
    n_failed, n_requests = (
        sum(averages[name] for averages in totals) for name in ("n_failed", "n_requests")
    )
    words = f"{where}: none of {number(n_requests)} requests failed"
    if n_failed:
        worst = max(measured.values(), key=lambda phase: phase.averages["failure_rate"])
        words = (
            f"{where}: {number(n_failed)} of {number(n_requests)} requests failed "
            f"({percent(n_failed / n_requests)}), the largest share in phase {worst.name} "
            f"({percent(worst.averages['failure_rate'])})"
        )

    verdicts = study.findings_words(findings, "the paper's {} findings")

    return f"{words}; {verdicts}"


def _judge_api(measured: Mapping[str, Phase]) -> tuple[str, bool | None]:
    if not {"conversation", "api"} <= {*measured}:
        return "Not both loads were measured.", None
    conversation, api = (measured[name].averages for name in ("conversation", "api"))
    here = (
        f"Failed: {percent(conversation['failure_rate'])} of the conversation's "
        f"{conversation['n_requests']} requests, {percent(api['failure_rate'])} of the API's "
        f"{api['n_requests']}, at {measured['api'].facts['rate_factor']:g} times the rate."
    )
    is_more = api["failure_rate"] > conversation["failure_rate"]
    return here, is_more and api["failure_rate"] >= _NOTABLE_FAILURES


def _judge_alpha(measured: Mapping[str, Phase]) -> tuple[str, bool | None]:
    if "alpha" not in measured:
        return "The sweep was not measured.", None

    blocks = measured["alpha"].by_setting
    first = blocks.iloc[0]
    last = blocks.iloc[-1]
    worst = blocks.loc[blocks["failure_rate"].idxmax()]
    if worst["failure_rate"] < _NOTABLE_FAILURES:
        here = f"At most {percent(worst['failure_rate'])} of a block's requests failed."
        ratio = blocks["mean_token_latency_ms"].max() / first["mean_token_latency_ms"]
        slower = f" Token latency grew at most {number(ratio)} times." if np.isfinite(ratio) else ""
        return here + slower, None

    here = (
        f"Failed: {percent(first['failure_rate'])} at alpha {number(first['alpha'])}, at most "
        f"{percent(worst['failure_rate'])} (at {number(worst['alpha'])}), "
        f"{percent(last['failure_rate'])} when it was {number(last['alpha'])} again."
    )
    recovers = last["failure_rate"] < worst["failure_rate"] / 2

    return here, bool(worst["failure_rate"] > first["failure_rate"] and recovers)


def _judge_beta(measured: Mapping[str, Phase]) -> tuple[str, bool | None]:
    if "beta" not in measured:
        return "The sweep was not measured.", None

    blocks = measured["beta"].by_setting
    latency = blocks["mean_token_latency_ms"] / blocks["mean_token_latency_ms"].iloc[0]
    early = latency.iloc[1]
    late = latency.iloc[-1]
    if not np.isfinite([early, late]).all():
        return _FEW_SERVED

    share = blocks["beta_s"] / blocks["beta_s"].iloc[0]
    here = (
        f"Mean token latency is {number(early)} times that of the first block at "
        f"{percent(share.iloc[1])} of beta, {number(late)} times at {percent(share.iloc[-1])}."
    )

    return here, bool(late > _NOTABLE_CHANGE and late > early)


def _judge_theta(measured: Mapping[str, Phase]) -> tuple[str, bool | None]:
    if not {"theta", "beta"} <= {*measured}:
        return "Not both sweeps were measured.", None
    sweeps = [measured[name].by_setting["mean_token_latency_ms"] for name in ("theta", "beta")]
    changes = [float(latency.max() / latency.min()) for latency in sweeps]
    if not np.isfinite(changes).all():
        return _FEW_SERVED
    here = (
        f"The largest mean token latency of a block is {number(changes[0])} times the smallest "
        f"while theta changes, {number(changes[1])} times while beta does."
    )
    return here, changes[0] < changes[1]


_CLAIMS = {
    "Conversation load hardly fails, API load fails continuously.": _judge_api,
    "As alpha falls, failures rise suddenly; as it rises, the server recovers.": _judge_alpha,
    "While beta is large latency hardly changes; as beta falls, latency rises.": _judge_beta,
    "Lengths (theta) move latency less than concurrency (beta) does.": _judge_theta,
}
"""What the paper found (V-B, V-C), and what compares the phases with it."""


def _sections(where: str, measured: Mapping[str, Phase]) -> list[Section]:
    """Average values of all phases, then how the rate was found, mirrored loads and sweeps."""
    rows = [{"phase": _NAMES[name], **phase.averages} for name, phase in measured.items()]
    text = (
        "Token latency is the time from when a request was due to its last token, divided by its "
        "output tokens; TTFT counts from when it was due as well, and the mean ITL is of all gaps. "
        "Failed requests, those that took longer than the time limit included, are in no latency. "
        "Every phase begins on a server that has served all requests of the one before."
    )
    table = table_of(
        pd.DataFrame(rows),
        "phase n_requests n_failed failure_rate mean_token_latency_ms p90_token_latency_ms "
        "mean_ttft_ms mean_itl_ms throughput_tok_s mean_kv_usage max_kv_usage",
    )
    sections = [part(f"Phases: {where}", text, table=table)]
    if "warm-up" in measured:
        facts = measured["warm-up"].facts
        search = facts["search"]
        mean = facts["mean_kv_cache_usage"]
        setting = facts["settings"][0]
        text = (
            f"One request of mean lengths, served alone, took {number(search['single_request_s'])} "
            f"s and {percent(search['single_request_kv_usage'])} of the KV cache. From there, "
            f"{len(search['trials'])} trials of arrivals at alpha {setting['alpha']:g} led to "
            f"{number(search['rate_rps'])} requests/s, a scale beta of "
            f"{number(setting['beta_s'])} s. In the warm-up proper the mean use was "
            f"{'not known' if mean is None else percent(mean)}: "
            f"{'within' if facts['is_within_limits'] else 'OUTSIDE of'} the 20 to 50 % that the "
            "paper asks for."
        )
        table = table_of(pd.DataFrame(list(search["trials"])), "rate_rps kv_usage failed_fraction")
        sections.append(part(f"Warm-up: {where}", text, table=table))

    for names, section in ((("conversation", "api"), _mirrored_section), (SWEEPS, _sweeps_section)):
        if phases := [measured[name] for name in names if name in measured]:
            sections.append(section(where, phases))

    return sections


def _metric_panels(frames: Sequence[pd.DataFrame], x: str, across: Axis) -> list[Panel]:
    """Return a row of panels per metric, a panel per phase."""
    return [
        Panel("", across, y, [Curve(label, rows[x], rows[name]) for label, name in columns.items()])
        for y, columns in _METRICS
        for rows in frames
    ]


def _mirrored_section(where: str, phases: Sequence[Phase]) -> Section:
    """Load, latency, throughput and failures over time, after their Fig. 16."""
    time = Axis("Seconds since the phase began", low=0)
    panels = []
    for phase in phases:
        settings = phase.by_setting
        # A rate holds from its setting's start to its end.
        times_s = settings[["start_s", "end_s"]].to_numpy().ravel()
        rate = Curve("mean", times_s, np.repeat(settings["rate_rps"].to_numpy(), 2))
        panels.append(Panel(_NAMES[phase.name], time, Axis("Requests/s due", low=0), [rate]))

    slices = [phase.over_time for phase in phases]
    slices = [rows.assign(middle_s=(rows["start_s"] + rows["end_s"]) / 2) for rows in slices]
    panels += _metric_panels(slices, "middle_s", time)
    for phase in phases:
        usage = Curve("mean", phase.kv_usage["time_s"], phase.kv_usage["usage"])
        panels.append(Panel("", time, _KV_USAGE, [usage]))

    scales = [
        f"{_NAMES[phase.name]}: {phase.facts['n_windows']} windows, their time scaled by "
        f"{number(phase.facts['time_factor'])}, at a mean rate {phase.facts['rate_factor']:g} "
        "times the warm-up's"
        for phase in phases
    ]
    text = (
        f"{'; '.join(scales)}. The figure has at most {MAX_SLICES} slices of equal time; requests "
        "count when they were due, tokens when they came; the use of the KV cache is read once a "
        "second.\n\nBurstGPT's windows are not published as numbers; unless the plan names "
        "others, those of Azure's conversations (2023) take their place, and for the API, whose "
        "beta the paper calls low, those of Mooncake, taken as Poisson, at twice the rate."
    )

    return part(f"Mirrored loads: {where}", text, panels, n_columns=len(phases), **SMALL_PANELS)


def _sweeps_section(where: str, phases: Sequence[Phase]) -> Section:
    """Latency, throughput and failures per block of requests, after their Fig. 17."""
    blocks = [phase.by_setting for phase in phases]
    across = Axis("Block of requests")
    panels = []
    for phase, rows in zip(phases, blocks, strict=True):
        column = "beta_s" if phase.name == "beta" else phase.name
        curve = Curve("mean", rows["block"], rows[column])
        panels.append(Panel(_NAMES[phase.name], across, Axis(_SYMBOLS[column], low=0), [curve]))

    panels += _metric_panels(blocks, "block", across)
    for rows in blocks:
        curve = Curve("mean", rows["block"], rows["mean_kv_usage"])
        panels.append(Panel("", across, _KV_USAGE, [curve]))

    named = zip(phases, blocks, strict=True)
    table = table_of(
        pd.concat([rows.assign(phase=phase.name) for phase, rows in named]),
        "phase block alpha beta_s theta n_requests failure_rate mean_token_latency_ms "
        "p90_token_latency_ms mean_ttft_ms throughput_tok_s mean_kv_usage",
        phase="Sweep",
    )
    n_per_change = " or ".join(sorted({str(phase.facts["n_per_change"]) for phase in phases}))
    text = (
        f"A change after each {n_per_change} requests: alpha falls to a quarter and rises again "
        "as a quadratic while beta stays, so that the rate rises too; beta falls linearly to a "
        "quarter; theta rises by 0.8, so inputs are shorter. Values are of the requests due in a "
        "block."
    )

    return part(f"Sweeps: {where}", text, panels, table, n_columns=len(phases), **SMALL_PANELS)
