"""How a server takes bursts: failures, latency and throughput as load and lengths change.

Wang et al.: Towards Efficient and Reliable LLM Serving: A Real-World Workload Study (BurstGPT),
section V.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Curve, Panel
from sextant.pages.words import number, percent
from sextant.studies import study
from sextant.studies.burst_phases import MAX_SLICES, SMALL_PANELS, SWEEPS, Phase, phases
from sextant.studies.burst_simulated import simulated, simulated_section
from sextant.studies.study import Analysis, Finding, StudyData, part, table_of

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
_MIRRORED = ("conversation", "api")


def analyse(data: StudyData) -> Analysis:
    """Judge every cell of the study by itself."""
    bursts = [cell.run.ids for cell in data.cells if cell.run.scenario["kind"] == "burst"]
    cells = []
    for cell in data.cells:
        measured = {phase.name: phase for phase in phases(cell)}
        if not measured:
            continue
        ids = cell.run.ids
        _, llm_id, profile_id, *rest = ids
        where = f"{llm_id} on {profile_id}"
        if sum(key[1:3] == ids[1:3] for key in bursts) > 1:
            where += f" ({', '.join(rest)})"
        findings = [Finding(claim, *judge(measured)) for claim, judge in _CLAIMS.items()]
        cells.append(CellBursts(ids, where, measured, findings, simulated(cell, measured, data)))

    summary = " ".join(cell.summary for cell in cells)
    summary = summary or "No cell has a phase: nothing can be said of bursts."
    numbers = {"cells": [cell.numbers for cell in cells]}

    return Analysis(summary, numbers, [section for cell in cells for section in cell.sections])


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


def _metric_panels(frames: Sequence[pd.DataFrame], x: str, across: Axis) -> list[Panel]:
    """Return a row of panels per metric, a panel per phase."""
    return [
        Panel("", across, y, [Curve(label, rows[x], rows[name]) for label, name in columns.items()])
        for y, columns in _METRICS
        for rows in frames
    ]


@dataclass(frozen=True)
class CellBursts:
    """How the server of one cell takes bursts."""

    ids: tuple[str, ...]
    """The key of the cell."""
    where: str
    """The LLM, the GPU profile, and what else tells the cell from others."""
    phases: Mapping[str, Phase]
    """By name."""
    findings: Sequence[Finding]
    simulation: Mapping[str, Any] | None
    """What `simulated` returns."""

    @property
    def summary(self) -> str:
        """The failed requests, and how many claims of the paper hold."""
        totals = [phase.averages for phase in self.phases.values()]
        n_failed, n_requests = (
            sum(averages[name] for averages in totals) for name in ("n_failed", "n_requests")
        )
        words = f"{self.where}: none of {number(n_requests)} requests failed"
        if n_failed:
            worst = max(self.phases.values(), key=lambda phase: phase.averages["failure_rate"])
            words = (
                f"{self.where}: {number(n_failed)} of {number(n_requests)} requests failed "
                f"({percent(n_failed / n_requests)}), the largest share in phase {worst.name} "
                f"({percent(worst.averages['failure_rate'])})"
            )

        verdicts = study.findings_words(self.findings, "the paper's {} findings")

        return f"{words}; {verdicts}"

    @property
    def numbers(self) -> dict[str, Any]:
        """The entry of the cell in the study's JSON."""
        phase_numbers = [
            {"name": name, **phase.averages}
            | {key: value for key, value in phase.facts.items() if key != "settings"}
            | {"by_setting": phase.by_setting}
            for name, phase in self.phases.items()
        ]
        return {
            "key": list(self.ids),
            "phases": phase_numbers,
            "findings": [finding._asdict() for finding in self.findings],
            "simulated": self.simulation,
        }

    @property
    def sections(self) -> list[Section]:
        """All phases, then how the rate was found, mirrored loads, sweeps, and the findings."""
        sections = [self.phases_section]
        if "warm-up" in self.phases:
            sections.append(self.warm_up_section)
        if mirrored := [self.phases[name] for name in _MIRRORED if name in self.phases]:
            sections.append(self.mirrored_section(mirrored))
        if sweeps := [self.phases[name] for name in SWEEPS if name in self.phases]:
            sections.append(self.sweeps_section(sweeps))
        if self.simulation:
            sections.append(simulated_section(self.where, self.simulation["rows"]))

        text = "Findings of section V for Llama 2 on A800 and A6000, and what was measured here."
        table = study.findings_table(self.findings, "The paper's finding")
        sections.append(part(f"The paper's findings: {self.where}", text, table=table))
        return sections

    @property
    def phases_section(self) -> Section:
        """Averages of all phases."""
        rows = [{"phase": _NAMES[name], **phase.averages} for name, phase in self.phases.items()]
        text = (
            "Token latency is the time from when a request was due to its last token, divided by "
            "its output tokens; TTFT counts from when it was due as well, and the mean ITL is of "
            "all gaps. Failed requests, those that took longer than the time limit included, are "
            "in no latency. Every phase begins on a server that has served all requests of the "
            "one before."
        )
        table = table_of(
            pd.DataFrame(rows),
            "phase n_requests n_failed failure_rate mean_token_latency_ms p90_token_latency_ms "
            "mean_ttft_ms mean_itl_ms throughput_tok_s mean_kv_usage max_kv_usage",
        )
        return part(f"Phases: {self.where}", text, table=table)

    @property
    def warm_up_section(self) -> Section:
        """How the rate of the load was found."""
        facts = self.phases["warm-up"].facts
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
        return part(f"Warm-up: {self.where}", text, table=table)

    def mirrored_section(self, phases: Sequence[Phase]) -> Section:
        """Load, latency, throughput and failures over time, after Fig. 16 of the paper."""
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
            f"{'; '.join(scales)}. The figure has at most {MAX_SLICES} slices of equal time; "
            "requests count when they were due, tokens when they came; the use of the KV cache "
            "is read once a second.\n\nBurstGPT's windows are not published as numbers; unless "
            "the plan names others, those of Azure's conversations (2023) take their place, and "
            "for the API, whose beta the paper calls low, those of Mooncake, taken as Poisson, "
            "at twice the rate."
        )

        return part(
            f"Mirrored loads: {self.where}", text, panels, n_columns=len(phases), **SMALL_PANELS
        )

    def sweeps_section(self, phases: Sequence[Phase]) -> Section:
        """Latency, throughput and failures per block of requests, after Fig. 17 of the paper."""
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
            f"A change after each {n_per_change} requests: alpha falls to a quarter and rises "
            "again as a quadratic while beta stays, so that the rate rises too; beta falls "
            "linearly to a quarter; theta rises by 0.8, so inputs are shorter. Values are of the "
            "requests due in a block."
        )

        return part(
            f"Sweeps: {self.where}", text, panels, table, n_columns=len(phases), **SMALL_PANELS
        )
