"""How a server takes bursts: failures, latency and throughput as load and lengths change.

Wang et al.: Towards Efficient and Reliable LLM Serving: A Real-World Workload Study (BurstGPT),
section V.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sextant.pages.sections import Section
from sextant.pages.wording import number, percent
from sextant.points.cell_files import MeasuredCell
from sextant.studies.burst_measures import Phase, averages, by_setting, phases
from sextant.studies.burst_sections import (
    mirrored_section,
    phases_section,
    sweeps_section,
    warmup_section,
)
from sextant.studies.burst_simulated import SimulatedCell, simulated, simulated_section
from sextant.studies.labels import Finding, findings_table, findings_words
from sextant.studies.study_data import Analysis, StudyData

_NOTABLE_FAILURES = 0.01
"""Failure rate from which failures are more than single ones."""
_NOTABLE_CHANGE = 1.1
"""Ratio of latencies from which they are said to differ."""


def analyse(data: StudyData) -> Analysis:
    """Judge every cell of the study by itself."""
    words, numbers, sections = [], [], []
    for cell in data.cells:
        measured = {phase.name: phase for phase in phases(cell)}
        if not measured:
            continue
        place = _place(cell, data)
        found = findings(measured)
        made = simulated(cell, measured, data)
        words.append(_summary(place, measured, found))
        numbers.append(_numbers(cell, measured, found, made))
        sections += _sections(place, measured, found, made)
    summary = " ".join(words) or "No cell has a phase: nothing can be said of bursts."
    return Analysis(summary, {"cells": numbers}, sections)


def _place(cell: MeasuredCell, data: StudyData) -> str:
    _, llm_id, profile_id, *parts = cell.key
    pair = f"{llm_id} on {profile_id}"
    bursts = [each for each in data.cells if each.run.scenario["kind"] == "burst"]
    same = [each for each in bursts if each.key[1:3] == cell.key[1:3]]
    return pair if len(same) == 1 else f"{pair} ({', '.join(parts)})"


def _sections(
    place: str,
    measured: Mapping[str, Phase],
    found: Sequence[Finding],
    made: SimulatedCell | None,
) -> list[Section]:
    sections = [phases_section(place, measured)]
    if "warm-up" in measured:
        sections.append(warmup_section(place, measured["warm-up"]))
    mirrored = [measured[name] for name in ("conversation", "api") if name in measured]
    sweeps = [measured[name] for name in ("alpha", "beta", "theta") if name in measured]
    sections += [mirrored_section(place, mirrored)] if mirrored else []
    sections += [sweeps_section(place, sweeps)] if sweeps else []
    sections += [simulated_section(place, made)] if made else []
    text = "Findings of section V for Llama 2 on A800 and A6000, beside what was measured here."
    table = findings_table(found, "The paper's finding")
    return [*sections, Section.of_text(f"The paper's findings: {place}", text, table=table)]


def _summary(place: str, measured: Mapping[str, Phase], found: Sequence[Finding]) -> str:
    totals = [averages(phase) for phase in measured.values()]
    n_failed = sum(each["n_failed"] for each in totals)
    n_requests = sum(each["n_requests"] for each in totals)
    share = percent(n_failed / n_requests)
    failures = f"{number(n_failed)} of {number(n_requests)} requests failed ({share})"
    worst = max(measured.values(), key=lambda phase: averages(phase)["failure_rate"])
    words = f"{place}: {failures if n_failed else f'none of {number(n_requests)} requests failed'}"
    if n_failed:
        rate = percent(averages(worst)["failure_rate"])
        words += f", the largest share in phase {worst.name} ({rate})"
    told = findings_words(found, "the paper's {} findings")
    return f"{words}; {told}"


def findings(measured: Mapping[str, Phase]) -> list[Finding]:
    """Compare the phases with what the paper found (V-B, V-C)."""
    judges = (_api_finding, _alpha_finding, _beta_finding, _theta_finding)
    return [judge(measured) for judge in judges]


def _api_finding(measured: Mapping[str, Phase]) -> Finding:
    paper = "Conversation load hardly fails, API load fails continuously."
    if not {"conversation", "api"} <= {*measured}:
        return Finding(paper, "Not both loads were measured.", None)
    conversation, api = (averages(measured[name]) for name in ("conversation", "api"))
    here = (
        f"Failed: {percent(conversation['failure_rate'])} of the conversation's "
        f"{conversation['n_requests']} requests, {percent(api['failure_rate'])} of the API's "
        f"{api['n_requests']}, at {measured['api'].facts['rate_factor']:g} times the rate."
    )
    is_more = api["failure_rate"] > conversation["failure_rate"]
    return Finding(paper, here, is_more and api["failure_rate"] >= _NOTABLE_FAILURES)


def _alpha_finding(measured: Mapping[str, Phase]) -> Finding:
    paper = "As alpha falls, failures rise suddenly; as it rises again, the server recovers."
    blocks = _blocks(measured, "alpha")
    if blocks is None:
        return Finding(paper, "The sweep was not measured.", None)
    first, last = blocks.iloc[0], blocks.iloc[-1]
    worst = blocks.loc[blocks["failure_rate"].idxmax()]
    if worst["failure_rate"] < _NOTABLE_FAILURES:
        here = f"At most {percent(worst['failure_rate'])} of a block's requests failed."
        ratio = blocks["mean_token_latency_ms"].max() / first["mean_token_latency_ms"]
        slower = f" Token latency grew at most {number(ratio)} times." if np.isfinite(ratio) else ""
        return Finding(paper, here + slower, None)
    here = (
        f"Failed: {percent(first['failure_rate'])} at alpha {number(first['alpha'])}, at most "
        f"{percent(worst['failure_rate'])} (at {number(worst['alpha'])}), "
        f"{percent(last['failure_rate'])} when it was {number(last['alpha'])} again."
    )
    recovers = last["failure_rate"] < worst["failure_rate"] / 2
    return Finding(paper, here, bool(worst["failure_rate"] > first["failure_rate"] and recovers))


def _beta_finding(measured: Mapping[str, Phase]) -> Finding:
    paper = "While beta is large latency hardly changes; as beta falls further, latency rises."
    blocks = _blocks(measured, "beta")
    if blocks is None:
        return Finding(paper, "The sweep was not measured.", None)
    latency = blocks["mean_token_latency_ms"]
    early = latency.iloc[1] / latency.iloc[0]
    late = latency.iloc[-1] / latency.iloc[0]
    if not np.isfinite([early, late]).all():
        return Finding(paper, "Too few requests were served to compare latencies.", None)
    share = blocks["beta_s"] / blocks["beta_s"].iloc[0]
    here = (
        f"Mean token latency is {number(early)} times that of the first block at "
        f"{percent(share.iloc[1])} of beta, {number(late)} times at {percent(share.iloc[-1])}."
    )
    return Finding(paper, here, bool(late > _NOTABLE_CHANGE and late > early))


def _theta_finding(measured: Mapping[str, Phase]) -> Finding:
    paper = "Lengths (theta) move latency less than concurrency (beta) does."
    theta, beta = _blocks(measured, "theta"), _blocks(measured, "beta")
    if theta is None or beta is None:
        return Finding(paper, "Not both sweeps were measured.", None)
    latencies = [blocks["mean_token_latency_ms"] for blocks in (theta, beta)]
    changes = [float(values.max() / values.min()) for values in latencies]
    if not np.isfinite(changes).all():
        return Finding(paper, "Too few requests were served to compare latencies.", None)
    here = (
        "The largest mean token latency of a block is "
        f"{number(changes[0])} times the smallest while theta changes, {number(changes[1])} times "
        "while beta does."
    )
    return Finding(paper, here, bool(changes[0] < changes[1]))


def _blocks(measured: Mapping[str, Phase], name: str) -> pd.DataFrame | None:
    return by_setting(measured[name]) if name in measured else None


def _numbers(
    cell: MeasuredCell,
    measured: Mapping[str, Phase],
    found: Sequence[Finding],
    made: SimulatedCell | None,
) -> dict[str, Any]:
    return {
        "key": list(cell.key),
        "phases": [
            {
                "name": phase.name,
                **averages(phase),
                **{name: value for name, value in phase.facts.items() if name != "settings"},
                "by_setting": by_setting(phase),
            }
            for phase in measured.values()
        ],
        "findings": [each._asdict() for each in found],
        "simulated": made
        and {"law": vars(made.law), "scheduler": vars(made.scheduler), "rows": made.rows},
    }
