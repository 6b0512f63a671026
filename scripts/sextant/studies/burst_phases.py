"""Failures, latency and throughput of each phase of the burst study (BurstGPT, IV-D), measured
and simulated.

Failure rate R, token latency L and throughput P. The paper does not define its token latency; here
it is a request's latency over its output tokens, the normalized latency of vLLM's paper (Kwon et
al., SOSP 2023, 6.1). All latencies count from when a request was due.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPU
from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Curve, Panel, panels_figure
from sextant.pages.wording import number, percent
from sextant.points.cell_files import MeasuredCell
from sextant.points.run import LevelRun
from sextant.simulate import STATUS, Requests, Scheduler, StepLaw, simulate
from sextant.simulate.calibrated import calibrate, closed_loop_requests
from sextant.studies.study import StudyData, part, table_of

MAX_SLICES = 40
"""Most equal parts of a phase's time in its curves over time."""
_REQUESTS_PER_SLICE = 5
"""On average, at least: a slice without a request has no latency."""
_COLUMNS = (
    *("level", "scheduled_s", "sent_s", "first_token_s", "last_token_s", "token_offsets_ms"),
    *("output_tokens", "requested_input_tokens", "requested_output_tokens", "status"),
)


@dataclass(frozen=True)
class Phase:
    """A phase as it was measured. Times are seconds from its start."""

    facts: Mapping[str, Any]
    """What `run.json` says of it, see `sextant.bench.burst.run_phases`."""
    duration_s: float
    """To the last request's end."""
    requests: pd.DataFrame
    """As `requests_of` returns them, by time."""
    token_s: np.ndarray
    """When each output token of the served requests came, ascending."""
    kv_usage: pd.DataFrame
    """`time_s, usage`, mean over the replicas, 0 to 1."""
    timeout_s: float | None
    """Time limit of a request."""

    @property
    def name(self) -> str:
        """Name in `sextant.bench.burst_loads.PHASES`."""
        return self.facts["name"]

    @property
    def last_due_s(self) -> float:
        """When the last request was due: the end of the load."""
        return float(self.requests["due_s"].max())


def phases(cell: MeasuredCell) -> Iterator[Phase]:
    """Yield the phases of a cell by level: none if it is infeasible or of another scenario."""
    rows, server = cell.requests(list(_COLUMNS)), cell.server()
    for level in sorted(cell.run.levels, key=lambda run: run.level):
        own = rows[rows["level"] == level.level].sort_values("scheduled_s", kind="stable")
        if len(own) and level.phase:
            yield _phase(level, level.phase, own.reset_index(drop=True), server)


def _phase(
    level: LevelRun, facts: Mapping[str, Any], rows: pd.DataFrame, server: pd.DataFrame
) -> Phase:
    start_s = level.started_s or 0.0
    requests, is_ok = requests_of(rows, start_s, facts), rows["status"] == "ok"
    offsets = [np.asarray(row, float) / 1e3 for row in rows.loc[is_ok, "token_offsets_ms"]]
    sent_s = np.repeat(rows.loc[is_ok, "sent_s"].to_numpy(), [len(row) for row in offsets])
    token_s = np.sort(np.concatenate([*offsets, np.empty(0)]) + sent_s - start_s)
    own = server[(server["level"] == level.level) & server["kv_cache_usage"].notna()]
    usage = pd.DataFrame(
        {"time_s": own["time_s"] - level.started_s, "usage": own["kv_cache_usage"]}
    )
    usage = usage[usage["time_s"].between(0, level.duration_s)]
    usage = usage.sort_values("time_s").reset_index(drop=True)
    return Phase(facts, level.duration_s or 0.0, requests, token_s, usage, level.timeout_s)


def requests_of(rows: pd.DataFrame, start_s: float, facts: Mapping[str, Any]) -> pd.DataFrame:
    """Return the requests of a phase that began at `start_s`.

    Columns: `due_s, setting` (place in `facts["settings"]`), `is_failed, requested_input_tokens,
    requested_output_tokens`; and, null if failed, `output_tokens, token_latency_ms, ttft_ms,
    decode_ms` (first to last token), `n_gaps`.
    """
    is_ok = rows["status"] == "ok"
    requests = pd.DataFrame(
        {
            "due_s": rows["scheduled_s"] - start_s,
            "is_failed": ~is_ok,
            "requested_input_tokens": rows["requested_input_tokens"],
            "requested_output_tokens": rows["requested_output_tokens"],
            "output_tokens": rows["output_tokens"].where(is_ok),
            "ttft_ms": (rows["first_token_s"] - rows["scheduled_s"]).where(is_ok) * 1e3,
            "decode_ms": (rows["last_token_s"] - rows["first_token_s"]).where(is_ok) * 1e3,
        }
    ).astype({"output_tokens": float})
    e2e_ms = requests["ttft_ms"] + requests["decode_ms"]
    requests["token_latency_ms"] = e2e_ms / requests["output_tokens"]
    requests["n_gaps"] = requests["output_tokens"] - 1
    places = np.arange(len(requests)) // facts.get("n_per_change", 1)
    if "n_per_change" not in facts:
        starts = [setting["start_s"] for setting in facts["settings"]]
        places = np.searchsorted(starts, requests["due_s"], side="right") - 1
    requests["setting"] = np.clip(places, 0, len(facts["settings"]) - 1)
    return requests


def averages(phase: Phase) -> dict[str, float]:
    """Return a phase's averages; NaN where nothing is known.

    Keys: `n_requests, n_failed, failure_rate` (a fraction), `throughput_tok_s` (of served requests
    over the phase's time), those of `latencies`, `mean_kv_usage` (the phase's own record, while
    requests were due) and `max_kv_usage` (of the server's readings, which are rarer).
    """
    requests, mean_usage = phase.requests, phase.facts["mean_kv_cache_usage"]
    return {
        "n_requests": len(requests),
        "n_failed": int(requests["is_failed"].sum()),
        "failure_rate": float(requests["is_failed"].mean()),
        "throughput_tok_s": float(requests["output_tokens"].sum() / phase.duration_s),
        **latencies(requests),
        "mean_kv_usage": np.nan if mean_usage is None else mean_usage,
        "max_kv_usage": float(phase.kv_usage["usage"].max()),
    }


def latencies(requests: pd.DataFrame) -> dict[str, float]:
    """Return `mean_token_latency_ms, p90_token_latency_ms, mean_ttft_ms, mean_itl_ms`.

    The mean ITL is of all gaps between tokens, pooled; NaN where no request was served.
    """
    token_latency, n_gaps = requests["token_latency_ms"], requests["n_gaps"].sum()
    return {
        "mean_token_latency_ms": float(token_latency.mean()),
        "p90_token_latency_ms": float(token_latency.quantile(0.9)),
        "mean_ttft_ms": float(requests["ttft_ms"].mean()),
        "mean_itl_ms": float(requests["decode_ms"].sum() / n_gaps) if n_gaps else np.nan,
    }


def by_setting(phase: Phase) -> pd.DataFrame:
    """Return instantaneous values per setting: a block of requests, or a window of the trace.

    Columns: those of the setting (`alpha, beta_s, rate_rps, theta, start_s`), `end_s` (of its
    arrivals), `n_requests, failure_rate, throughput_tok_s, mean_kv_usage` (from `start_s` to
    `end_s`) and those of `latencies`, of the requests due then.
    """
    settings = pd.DataFrame(phase.facts["settings"])
    ends = [*settings["start_s"].iloc[1:], max(phase.last_due_s, settings["start_s"].iloc[-1])]
    settings["end_s"] = ends
    return _with_parts(phase, settings, phase.requests["setting"])


def over_time(phase: Phase) -> pd.DataFrame:
    """Return instantaneous values per equal slice of the load's time, as `by_setting`."""
    n_slices = int(np.clip(len(phase.requests) // _REQUESTS_PER_SLICE, 1, MAX_SLICES))
    edges = np.linspace(0, max(phase.last_due_s, 1e-9), n_slices + 1)
    slices = np.searchsorted(edges, phase.requests["due_s"], "right") - 1
    slices = np.minimum(slices, n_slices - 1)  # the last request is due at the last edge
    return _with_parts(phase, pd.DataFrame({"start_s": edges[:-1], "end_s": edges[1:]}), slices)


def _with_parts(phase: Phase, spans: pd.DataFrame, places: np.ndarray | pd.Series) -> pd.DataFrame:
    """Return spans with the measures of their requests; `places` has each request's span."""
    ends = zip(spans["start_s"], spans["end_s"], strict=True)
    rows = [_part(phase, phase.requests[places == k], *span) for k, span in enumerate(ends)]
    return spans.join(pd.DataFrame(rows))


def _part(phase: Phase, own: pd.DataFrame, start_s: float, end_s: float) -> dict[str, float]:
    n_tokens = np.diff(np.searchsorted(phase.token_s, [start_s, end_s]))[0]
    usage = phase.kv_usage.loc[phase.kv_usage["time_s"].between(start_s, end_s), "usage"]
    return {
        "n_requests": len(own),
        "failure_rate": float(own["is_failed"].mean()) if len(own) else np.nan,
        "throughput_tok_s": float(n_tokens / (end_s - start_s)) if end_s > start_s else np.nan,
        "mean_kv_usage": float(usage.mean()),
        **latencies(own),
    }


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
    *place, _, variant_id = cell.key
    known = [
        each
        for each in data.cells
        if each.run.scenario["kind"] == "closed_loop"
        and (*each.key[:-2], each.key[-1]) == (*place, variant_id)
    ]
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


def _scheduler_of(cell: MeasuredCell, gpu: GPU) -> Scheduler | None:
    """Return the settings that vLLM was started with; None of another engine."""
    command = (cell.run.server and cell.run.server.command) or ()
    given = dict(pairwise(command))
    if not set(_OPTIONS) <= set(given):
        return None
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
    """Simulated against measured: phases as a table, sweeps as a figure."""
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
        return part(f"Simulated: {place}", text, table=table)
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
    return part(f"Simulated: {place}", text, figure, table)


def _panel(name: str, metric: str, blocks: pd.DataFrame) -> Panel:
    own = blocks[blocks["phase"] == name]
    is_share = metric == "failure_rate"
    y = Axis("Failed (fraction)" if is_share else "Token latency (ms)", low=0)
    curves = [
        Curve(label, own["block"], own[f"{prefix}{metric}"])
        for label, prefix in (("measured", ""), ("simulated", "simulated_"))
    ]
    return Panel(f"Sweep of {name}" if is_share else "", Axis("Block of requests"), y, curves)
