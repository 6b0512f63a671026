"""How a server takes bursts: failures, latency and throughput as load and lengths change.

Wang et al.: Towards Efficient and Reliable LLM Serving: A Real-World Workload Study (BurstGPT),
section V.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.wording import number, percent
from sextant.studies.burst_phases import (
    MAX_SLICES,
    Phase,
    averages,
    by_setting,
    over_time,
    phases,
    simulated,
    simulated_section,
)
from sextant.studies.study import (
    Analysis,
    Finding,
    StudyData,
    findings_table,
    findings_words,
    part,
    table_of,
)

_NAMES = {"warm-up": "Warm-up", "conversation": "Mirrored conversation", "api": "Mirrored API"}
_NAMES |= {name: f"Sweep of {name}" for name in ("alpha", "beta", "theta")}
_SYMBOLS = {"alpha": "Shape alpha", "beta_s": "Scale beta (s)", "theta": "Zipf exponent theta"}
_METRICS = (
    ("Token latency (ms)", ("mean_token_latency_ms", "p90_token_latency_ms")),
    ("Output tokens/s", ("throughput_tok_s",)),
    ("Failed (fraction)", ("failure_rate",)),
)
_KV_USAGE = "KV cache used"
_NOTABLE_FAILURES = 0.01
"""Failure rate from which failures are more than single ones."""
_NOTABLE_CHANGE = 1.1
"""Ratio of latencies from which they are said to differ."""
_TIME, _BLOCK = Axis("Seconds since the phase began", low=0), Axis("Block of requests")


def _phases_section(place: str, measured: Mapping[str, Phase]) -> Section:
    """Average values of all phases."""
    rows = [{"phase": _NAMES[name], **averages(phase)} for name, phase in measured.items()]
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
    return part(f"Phases: {place}", text, table=table)


def _warmup_section(place: str, phase: Phase) -> Section:
    """How the rate was found."""
    facts, search = phase.facts, phase.facts["search"]
    mean = facts["mean_kv_cache_usage"]
    verdict = "within" if facts["is_within_limits"] else "OUTSIDE of"
    usage = "not known" if mean is None else percent(mean)
    setting = facts["settings"][0]
    text = (
        f"One request of mean lengths, served alone, took {number(search['single_request_s'])} s "
        f"and {percent(search['single_request_kv_usage'])} of the KV cache. From there, "
        f"{len(search['trials'])} trials of arrivals at alpha {setting['alpha']:g} led to "
        f"{number(search['rate_rps'])} requests/s, a scale beta of {number(setting['beta_s'])} s. "
        f"In the warm-up proper the mean use was {usage}: {verdict} the 20 to 50 % that the "
        "paper asks for."
    )
    trials = pd.DataFrame(list(search["trials"]))
    table = table_of(trials, "rate_rps kv_usage failed_fraction")
    return part(f"Warm-up: {place}", text, table=table)


def _mirrored_section(place: str, phases: Sequence[Phase]) -> Section:
    """Load, latency, throughput and failures over time, after their Fig. 16."""
    series = [over_time(phase) for phase in phases]
    panels = []
    for phase in phases:
        settings = by_setting(phase)
        # A rate holds from its setting's start to its end.
        times_s = settings[["start_s", "end_s"]].to_numpy().ravel()
        rate = Curve("mean", times_s, np.repeat(settings["rate_rps"].to_numpy(), 2))
        panels.append(Panel(_NAMES[phase.name], _TIME, Axis("Requests/s due", low=0), [rate]))
    for label, columns in _METRICS:
        for rows in series:
            middle = (rows["start_s"] + rows["end_s"]) / 2
            curves = [Curve(_statistic(name), middle, rows[name]) for name in columns]
            panels.append(Panel("", _TIME, _axis(label), curves))
    for phase in phases:
        usage = Curve("mean", phase.kv_usage["time_s"], phase.kv_usage["usage"])
        panels.append(Panel("", _TIME, _axis(_KV_USAGE), [usage]))
    figure = panels_figure(
        panels, f"Mirrored loads over time, {place}", n_columns=len(phases), height_in=1.7
    )
    scales = [
        f"{_NAMES[phase.name]}: {phase.facts['n_windows']} windows, their time scaled by "
        f"{number(phase.facts['time_factor'])}, at a mean rate {phase.facts['rate_factor']:g} "
        "times the warm-up's"
        for phase in phases
    ]
    text = (
        f"{'; '.join(scales)}. The figure has at most {MAX_SLICES} slices of equal time, fewer "
        "where requests are few; requests count when they were due, tokens when they came; the "
        "use of the KV cache is read from the server once a second.\n\n"
        "BurstGPT's windows are not published as numbers. Unless the plan names other windows, "
        "those of Azure's conversation service (2023) replace its conversations, and those "
        "of Mooncake's trace, taken as Poisson, at twice the warm-up's rate, for its API: the "
        "paper says that the API's beta stays low, not how low."
    )
    return part(f"Mirrored loads: {place}", text, figure)


def _sweeps_section(place: str, phases: Sequence[Phase]) -> Section:
    """Latency, throughput and failures per block of requests, after their Fig. 17."""
    blocks = {phase.name: by_setting(phase) for phase in phases}
    panels = []
    for phase in phases:
        column = "beta_s" if phase.name == "beta" else phase.name
        curve = Curve("mean", _places(blocks[phase.name]), blocks[phase.name][column])
        panels.append(Panel(_NAMES[phase.name], _BLOCK, Axis(_SYMBOLS[column], low=0), [curve]))
    for label, columns in (*_METRICS, (_KV_USAGE, ("mean_kv_usage",))):
        for rows in blocks.values():
            curves = [Curve(_statistic(name), _places(rows), rows[name]) for name in columns]
            panels.append(Panel("", _BLOCK, _axis(label), curves))
    figure = panels_figure(panels, f"Sweeps, {place}", n_columns=len(phases), height_in=1.7)
    table = table_of(
        pd.concat([rows.assign(phase=name, block=_places(rows)) for name, rows in blocks.items()]),
        "phase block alpha beta_s theta n_requests failure_rate mean_token_latency_ms "
        "p90_token_latency_ms mean_ttft_ms throughput_tok_s mean_kv_usage",
        phase="Sweep",
    )
    n_per_change = " or ".join(sorted({str(phase.facts["n_per_change"]) for phase in phases}))
    text = (
        f"A change after each {n_per_change} requests: alpha falls to a quarter and rises "
        "again as a quadratic while beta stays, so that the rate rises too; beta falls linearly to "
        "a quarter; theta rises by 0.8, which makes inputs shorter. Values are of the requests due "
        "in a block; those of a block that was overrun wait in the next."
    )
    return part(f"Sweeps: {place}", text, figure, table)


def _statistic(column: str) -> str:
    return "p90" if column.startswith("p90") else "mean"


def _places(rows: pd.DataFrame) -> list[int]:
    return [*range(1, len(rows) + 1)]


def _axis(label: str) -> Axis:
    """Return a metric's axis; a share that is 0 throughout is still to be seen."""
    if label in ("Failed (fraction)", _KV_USAGE):
        return Axis(label, ticks=(0, 0.5, 1), names=("0", "0.5", "1"), low=-0.06, high=1.06)
    return Axis(label, low=0)


def analyse(data: StudyData) -> Analysis:
    """Judge every cell of the study by itself."""
    words, numbers, sections = [], [], []
    bursts = [cell for cell in data.cells if cell.run.scenario["kind"] == "burst"]
    for cell in data.cells:
        measured = {phase.name: phase for phase in phases(cell)}
        if not measured:
            continue
        _, llm_id, profile_id, *rest = cell.key
        same = [each for each in bursts if each.key[1:3] == cell.key[1:3]]
        place = f"{llm_id} on {profile_id}"
        place += f" ({', '.join(rest)})" if len(same) > 1 else ""
        found, made = findings(measured), simulated(cell, measured, data)
        words.append(_summary(place, measured, found))
        numbers.append(
            {
                "key": list(cell.key),
                "phases": [
                    {"name": name, **averages(phase)}
                    | {key: value for key, value in phase.facts.items() if key != "settings"}
                    | {"by_setting": by_setting(phase)}
                    for name, phase in measured.items()
                ],
                "findings": [each._asdict() for each in found],
                "simulated": made
                and {"law": vars(made.law), "scheduler": vars(made.scheduler), "rows": made.rows},
            }
        )
        sections.append(_phases_section(place, measured))
        if "warm-up" in measured:
            sections.append(_warmup_section(place, measured["warm-up"]))
        mirrored = [measured[name] for name in ("conversation", "api") if name in measured]
        sweeps = [measured[name] for name in ("alpha", "beta", "theta") if name in measured]
        sections += [_mirrored_section(place, mirrored)] if mirrored else []
        sections += [_sweeps_section(place, sweeps)] if sweeps else []
        sections += [simulated_section(place, made)] if made else []
        text = "Findings of section V for Llama 2 on A800 and A6000, and what was measured here."
        table = findings_table(found, "The paper's finding")
        sections.append(part(f"The paper's findings: {place}", text, table=table))
    summary = " ".join(words) or "No cell has a phase: nothing can be said of bursts."
    return Analysis(summary, {"cells": numbers}, sections)


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
    verdicts = findings_words(found, "the paper's {} findings")
    return f"{words}; {verdicts}"


def findings(measured: Mapping[str, Phase]) -> list[Finding]:
    """Compare the phases with what the paper found (V-B, V-C)."""
    return [
        _api_finding(measured),
        _alpha_finding(measured),
        _beta_finding(measured),
        _theta_finding(measured),
    ]


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
