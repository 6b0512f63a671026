"""How a server takes bursts: failures, latency and throughput as load and lengths change.

Wang et al.: Towards Efficient and Reliable LLM Serving: A Real-World Workload Study (BurstGPT),
section V.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from sextant.studies.study import Analysis, Finding, StudyData, part, table_of
from sextant.workload.requests import RequestStream

MAX_SLICES = 40  # most equal parts of a phase's time in its curves over time
SWEEPS = ("alpha", "beta", "theta")
SMALL_PANELS: Mapping[str, Any] = {"height_in": 1.7, "has_points": False}  # a column a phase
_REQUESTS_PER_SLICE = 5  # on average, at least: a slice without a request has no latency
_COLUMNS = (
    *("level", "scheduled_s", "sent_s", "first_token_s", "last_token_s", "token_offsets_ms"),
    *("output_tokens", "requested_input_tokens", "requested_output_tokens", "status"),
)
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


@dataclass(frozen=True)
class Phase:
    """A phase as it was measured. Times are seconds from its start. The paper does not define its
    token latency; here it is a request's latency over its output tokens, the normalized latency of
    vLLM's paper (Kwon et al., SOSP 2023, 6.1). All latencies count from when a request was due."""

    facts: Mapping[str, Any]  # what `run.json` says of it, see `sextant.bench.burst.run_phases`
    duration_s: float  # to the last request's end
    requests: pd.DataFrame  # as `requests_of` returns them, by time
    token_s: np.ndarray  # when each output token of the served requests came, ascending
    kv_usage: pd.DataFrame  # `time_s, usage`, mean over the replicas, 0 to 1
    timeout_s: float | None  # time limit of a request

    @property
    def name(self) -> str:
        """Name in `sextant.bench.burst.PHASES`."""
        return self.facts["name"]

    @cached_property
    def averages(self) -> dict[str, float]:
        """Its averages, NaN: not known; the server's own readings give `max_kv_usage`."""
        is_failed, mean_usage = self.requests["is_failed"], self.facts["mean_kv_cache_usage"]
        return {
            "n_requests": len(self.requests),
            "n_failed": int(is_failed.sum()),
            "failure_rate": float(is_failed.mean()),
            "throughput_tok_s": float(self.requests["output_tokens"].sum() / self.duration_s),
            **latencies(self.requests),
            "mean_kv_usage": np.nan if mean_usage is None else mean_usage,
            "max_kv_usage": float(self.kv_usage["usage"].max()),
        }

    @cached_property
    def by_setting(self) -> pd.DataFrame:
        """Values per setting (block of requests, or window), of the requests due then."""
        settings = pd.DataFrame(self.facts["settings"])
        last_s = max(self.requests["due_s"].max(), settings["start_s"].iloc[-1])
        settings["end_s"] = [*settings["start_s"].iloc[1:], last_s]
        settings["block"] = np.arange(len(settings)) + 1
        return self._with_measures(settings, self.requests["setting"].to_numpy())

    @cached_property
    def over_time(self) -> pd.DataFrame:
        """Instantaneous values per equal slice of the load's time, as `by_setting`."""
        due_s = self.requests["due_s"]
        n_slices = int(np.clip(len(due_s) // _REQUESTS_PER_SLICE, 1, MAX_SLICES))
        edges = np.linspace(0, max(due_s.max(), 1e-9), n_slices + 1)
        # The last request is due at the last edge.
        slices = np.minimum(np.searchsorted(edges, due_s, "right") - 1, n_slices - 1)
        spans = pd.DataFrame({"start_s": edges[:-1], "end_s": edges[1:]})
        return self._with_measures(spans, slices)

    def _with_measures(self, spans: pd.DataFrame, places: np.ndarray) -> pd.DataFrame:
        """Return spans of time with the measures of the requests whose place is theirs."""
        rows = []
        for place, (start_s, end_s) in enumerate(spans[["start_s", "end_s"]].to_numpy()):
            own = self.requests[places == place]
            n_tokens = np.diff(np.searchsorted(self.token_s, [start_s, end_s]))[0]
            is_within = self.kv_usage["time_s"].between(start_s, end_s)
            row = {
                "n_requests": len(own),
                "failure_rate": own["is_failed"].mean() if len(own) else np.nan,
                "throughput_tok_s": n_tokens / (end_s - start_s) if end_s > start_s else np.nan,
                "mean_kv_usage": self.kv_usage.loc[is_within, "usage"].mean(),
            }
            rows.append(row | latencies(own))
        return spans.join(pd.DataFrame(rows))


def phases(cell: MeasuredCell) -> Iterator[Phase]:
    """Yield the phases of a cell by level: none if it is infeasible or of another scenario."""
    rows, server = cell.requests(list(_COLUMNS)), cell.server()
    for level in sorted(cell.run.levels, key=lambda run: run.level):
        own = rows[rows["level"] == level.level].sort_values("scheduled_s", kind="stable")
        if own.empty or not level.phase:
            continue
        own = own.reset_index(drop=True)
        start_s, duration_s = level.started_s or 0.0, level.duration_s or 0.0
        ok = own[own["status"] == "ok"]
        offsets_s = ok["token_offsets_ms"].explode().dropna().astype(float) / 1e3
        token_s = np.sort(offsets_s + ok["sent_s"].loc[offsets_s.index] - start_s)
        read = server[(server["level"] == level.level) & server["kv_cache_usage"].notna()]
        usage = pd.DataFrame({"time_s": read["time_s"] - start_s, "usage": read["kv_cache_usage"]})
        usage = usage[usage["time_s"].between(0, duration_s)]
        usage = usage.sort_values("time_s", ignore_index=True)
        requests = requests_of_trace(own, start_s, level.phase)
        yield Phase(level.phase, duration_s, requests, token_s, usage, level.conditions.timeout_s)


def requests_of_trace(rows: pd.DataFrame, start_s: float, facts: Mapping[str, Any]) -> pd.DataFrame:
    """Return the requests of a phase that began at `start_s`. Columns: `due_s, setting` (place in
    `facts["settings"]`), `is_failed, requested_input_tokens, requested_output_tokens`; and, null if
    failed, `output_tokens, token_latency_ms, ttft_ms, decode_ms` (first to last token), `n_gaps`.
    """
    is_ok = rows["status"] == "ok"
    requests = rows[["requested_input_tokens", "requested_output_tokens"]].assign(
        due_s=rows["scheduled_s"] - start_s,
        is_failed=~is_ok,
        output_tokens=rows["output_tokens"].where(is_ok).astype(float),
        ttft_ms=(rows["first_token_s"] - rows["scheduled_s"]).where(is_ok) * 1e3,
        decode_ms=(rows["last_token_s"] - rows["first_token_s"]).where(is_ok) * 1e3,
    )
    e2e_ms = requests["ttft_ms"] + requests["decode_ms"]
    requests["token_latency_ms"] = e2e_ms / requests["output_tokens"]
    requests["n_gaps"] = requests["output_tokens"] - 1
    places = np.arange(len(requests)) // facts.get("n_per_change", 1)
    if "n_per_change" not in facts:
        starts = [setting["start_s"] for setting in facts["settings"]]
        places = np.searchsorted(starts, requests["due_s"], side="right") - 1
    requests["setting"] = np.clip(places, 0, len(facts["settings"]) - 1)
    return requests


def latencies(requests: pd.DataFrame) -> dict[str, float]:
    """Return the four mean or p90 latencies, ITL over all gaps; NaN if none was served."""
    token_latency, n_gaps = requests["token_latency_ms"], requests["n_gaps"].sum()
    return {
        "mean_token_latency_ms": float(token_latency.mean()),
        "p90_token_latency_ms": float(token_latency.quantile(0.9)),
        "mean_ttft_ms": float(requests["ttft_ms"].mean()),
        "mean_itl_ms": float(requests["decode_ms"].sum() / n_gaps) if n_gaps else np.nan,
    }


_OPTIONS = ("--num-gpu-blocks-override", "--block-size", "--max-num-seqs", "--max-model-len")
_COMPARED = ("failure_rate", "mean_token_latency_ms", "mean_ttft_ms")


def simulated(
    cell: MeasuredCell, measured: Mapping[str, Phase], data: StudyData
) -> dict[str, Any] | None:
    """Return a cell's phases as simulated; None without its closed loop or settings."""
    scheduler, key = _scheduler_of(cell, data), cell.run.ids
    known = [
        each.folder
        for each in data.cells
        if each.run.scenario["kind"] == "closed_loop"
        and (each.run.ids[:-2], each.run.ids[-1]) == (key[:-2], key[-1])
    ]
    users = closed_loop_requests(known[0]) if scheduler and known else pd.DataFrame()
    if scheduler is None or users.empty:
        return None
    law, rows = calibrate(users, scheduler, 0, 0).law, []
    for phase in measured.values():
        limited = replace(scheduler, timeout_s=phase.timeout_s or np.inf)
        asked = phase.requests[["due_s", "requested_input_tokens", "requested_output_tokens"]]
        made = simulate(
            RequestStream.of(*asked.to_numpy().T),
            limited,
            law,
            n_replicas=cell.run.variant.replicas,
        )
        columns = {
            "scheduled_s": made.arrival_s,
            "first_token_s": made.arrival_s + made.ttft_s,
            "last_token_s": made.arrival_s + made.e2e_s,
            "output_tokens": made.output_tokens,
            "requested_input_tokens": made.input_tokens,
            "requested_output_tokens": made.output_tokens,
            "status": [STATUS[each] for each in made.status],
        }
        sides = {"": phase.requests}
        sides["simulated_"] = requests_of_trace(pd.DataFrame(columns), 0.0, phase.facts)
        for block in range(len(phase.facts["settings"]) + 1):
            row: dict[str, Any] = {"phase": phase.name, "block": block}
            for prefix, requests in sides.items():
                own = requests[requests["setting"] == block - 1] if block else requests
                row["n_requests"] = len(own)
                values = {"failure_rate": own["is_failed"].mean(), **latencies(own)}
                row |= {f"{prefix}{name}": values[name] for name in _COMPARED}
            rows.append(row)
    return {"law": vars(law), "scheduler": vars(scheduler), "rows": pd.DataFrame(rows)}


def _scheduler_of(cell: MeasuredCell, data: StudyData) -> Scheduler | None:
    """Return the settings that vLLM was started with; None of another engine."""
    given = dict(pairwise((cell.run.server and cell.run.server.command) or ()))
    if not set(_OPTIONS) <= set(given):
        return None
    gpu = data.profiles[cell.run.key.gpu_profile_id].gpu
    n_blocks, block_tokens, sequences, longest = (int(given[name]) for name in _OPTIONS)
    step_tokens = 8192 if gpu.memory_gib < 160 else 16_384  # as vLLM 0.32 takes it by default
    if gpu.kind == "cpu" or gpu.memory_gib < 70 or "A100" in gpu.gpu_id:
        step_tokens = 2048
    return Scheduler(
        (n_blocks - 1) * block_tokens,  # vLLM keeps one block for itself
        sequences,
        int(given.get("--max-num-batched-tokens", max(step_tokens, sequences))),
        longest,
        block_tokens,
        has_prefix_caching=False,
        is_asynchronous=gpu.kind != "cpu",  # vLLM schedules synchronously on CPUs
    )


def simulated_section(place: str, rows: pd.DataFrame) -> Section:
    """Simulated against measured: phases as a table, sweeps as a figure."""
    title = f"Simulated: {place}"
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
    panels, axis = [], Axis("Block of requests")
    for metric, label in zip(_COMPARED, ("Failed (fraction)", "Token latency (ms)"), strict=False):
        for name, own in blocks.groupby("phase"):
            curves = [
                Curve("measured", own["block"], own[metric]),
                Curve("simulated", own["block"], own[f"simulated_{metric}"]),
            ]
            heading = f"Sweep of {name}" if metric == _COMPARED[0] else ""
            panels.append(Panel(heading, axis, Axis(label, low=0), curves))
    n_columns = blocks["phase"].nunique()
    return part(title, text, panels, table, n_columns=n_columns, **SMALL_PANELS)


def analyse(data: StudyData) -> Analysis:
    """Judge every cell of the study by itself."""
    words, numbers, sections = [], [], []
    bursts = [cell.run.ids for cell in data.cells if cell.run.scenario["kind"] == "burst"]
    for cell in data.cells:
        measured = {phase.name: phase for phase in phases(cell)}
        if not measured:
            continue
        _, llm_id, profile_id, *rest = cell.run.ids
        place = f"{llm_id} on {profile_id}"
        if sum(key[1:3] == cell.run.ids[1:3] for key in bursts) > 1:
            place += f" ({', '.join(rest)})"
        found = [Finding(claim, *judge(measured)) for claim, judge in _CLAIMS.items()]
        made = simulated(cell, measured, data)
        words.append(_summary(place, measured, found))
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
                "findings": [each._asdict() for each in found],
                "simulated": made,
            }
        )
        sections += _sections(place, measured)
        sections += [simulated_section(place, made["rows"])] if made else []
        text = "Findings of section V for Llama 2 on A800 and A6000, and what was measured here."
        table = study.findings_table(found, "The paper's finding")
        sections.append(part(f"The paper's findings: {place}", text, table=table))
    summary = " ".join(words) or "No cell has a phase: nothing can be said of bursts."
    return Analysis(summary, {"cells": numbers}, sections)


def _summary(place: str, measured: Mapping[str, Phase], found: Sequence[Finding]) -> str:
    totals = [phase.averages for phase in measured.values()]
    n_failed, n_requests = (sum(own[name] for own in totals) for name in ("n_failed", "n_requests"))
    words = f"{place}: none of {number(n_requests)} requests failed"
    if n_failed:
        worst = max(measured.values(), key=lambda phase: phase.averages["failure_rate"])
        words = (
            f"{place}: {number(n_failed)} of {number(n_requests)} requests failed "
            f"({percent(n_failed / n_requests)}), the largest share in phase {worst.name} "
            f"({percent(worst.averages['failure_rate'])})"
        )
    verdicts = study.findings_words(found, "the paper's {} findings")
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
    first, last = blocks.iloc[0], blocks.iloc[-1]
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
    early, late = latency.iloc[1], latency.iloc[-1]
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


def _sections(place: str, measured: Mapping[str, Phase]) -> list[Section]:
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
    sections = [part(f"Phases: {place}", text, table=table)]
    if "warm-up" in measured:
        facts = measured["warm-up"].facts
        search, mean, setting = facts["search"], facts["mean_kv_cache_usage"], facts["settings"][0]
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
        sections.append(part(f"Warm-up: {place}", text, table=table))
    for names, section in ((("conversation", "api"), _mirrored_section), (SWEEPS, _sweeps_section)):
        if own := [measured[name] for name in names if name in measured]:
            sections.append(section(place, own))
    return sections


def _metric_panels(frames: Sequence[pd.DataFrame], x: str, across: Axis) -> list[Panel]:
    """Return a row of panels per metric, a panel per phase."""
    return [
        Panel("", across, y, [Curve(label, rows[x], rows[name]) for label, name in columns.items()])
        for y, columns in _METRICS
        for rows in frames
    ]


def _mirrored_section(place: str, phases: Sequence[Phase]) -> Section:
    """Load, latency, throughput and failures over time, after their Fig. 16."""
    time, panels = Axis("Seconds since the phase began", low=0), []
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
    return part(f"Mirrored loads: {place}", text, panels, n_columns=len(phases), **SMALL_PANELS)


def _sweeps_section(place: str, phases: Sequence[Phase]) -> Section:
    """Latency, throughput and failures per block of requests, after their Fig. 17."""
    blocks, across, panels = [phase.by_setting for phase in phases], Axis("Block of requests"), []
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
    return part(f"Sweeps: {place}", text, panels, table, n_columns=len(phases), **SMALL_PANELS)
