"""Failures, latency and throughput of each phase of the burst study (BurstGPT, IV-D), measured
and simulated.

Failure rate R, token latency L and throughput P. The paper does not define its token latency; here
it is a request's latency over its output tokens, the normalized latency of vLLM's paper (Kwon et
al., SOSP 2023, 6.1). All latencies count from when a request was due.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from sextant.pages.blocks import Section
from sextant.pages.charts import Axis, Curve, Panel
from sextant.pages.wording import number, percent
from sextant.points.cell_files import MeasuredCell
from sextant.simulate import STATUS, Requests, Scheduler, simulate
from sextant.simulate.calibrated import calibrate, closed_loop_requests
from sextant.studies.study import StudyData, part, table_of

MAX_SLICES = 40  # most equal parts of a phase's time in its curves over time
SWEEPS = ("alpha", "beta", "theta")
SMALL_PANELS: Mapping[str, Any] = {"height_in": 1.7, "has_points": False}  # a column a phase
_REQUESTS_PER_SLICE = 5  # on average, at least: a slice without a request has no latency
_COLUMNS = (
    *("level", "scheduled_s", "sent_s", "first_token_s", "last_token_s", "token_offsets_ms"),
    *("output_tokens", "requested_input_tokens", "requested_output_tokens", "status"),
)


@dataclass(frozen=True)
class Phase:
    """A phase as it was measured. Times are seconds from its start."""

    facts: Mapping[str, Any]  # what `run.json` says of it, see `sextant.bench.burst.run_phases`
    duration_s: float  # to the last request's end
    requests: pd.DataFrame  # as `requests_of` returns them, by time
    token_s: np.ndarray  # when each output token of the served requests came, ascending
    kv_usage: pd.DataFrame  # `time_s, usage`, mean over the replicas, 0 to 1
    timeout_s: float | None  # time limit of a request

    @property
    def name(self) -> str:
        """Name in `sextant.bench.burst_loads.PHASES`."""
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
        """Values per setting, a block of requests or a window of the trace: its own columns,
        `block` (from 1), `end_s` (of its arrivals), and measures of the requests due then.
        """
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
        return self._with_measures(
            pd.DataFrame({"start_s": edges[:-1], "end_s": edges[1:]}), slices
        )

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
        usage = usage[usage["time_s"].between(0, duration_s)].sort_values(
            "time_s", ignore_index=True
        )
        requests = requests_of(own, start_s, level.phase)
        yield Phase(level.phase, duration_s, requests, token_s, usage, level.timeout_s)


def requests_of(rows: pd.DataFrame, start_s: float, facts: Mapping[str, Any]) -> pd.DataFrame:
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
_METRICS = ("failure_rate", "mean_token_latency_ms", "mean_ttft_ms")


def simulated(
    cell: MeasuredCell, measured: Mapping[str, Phase], data: StudyData
) -> dict[str, Any] | None:
    """Return a cell's phases as simulated; None without its closed loop or settings."""
    scheduler, key = _scheduler_of(cell, data), cell.key
    known = [
        each.folder
        for each in data.cells
        if each.run.scenario["kind"] == "closed_loop"
        and (each.key[:-2], each.key[-1]) == (key[:-2], key[-1])
    ]
    users = closed_loop_requests(known[0]) if scheduler and known else pd.DataFrame()
    if scheduler is None or users.empty:
        return None
    law, rows = calibrate(users, scheduler, 0, 0).law, []
    for phase in measured.values():
        limited = replace(scheduler, timeout_s=phase.timeout_s or np.inf)
        asked = phase.requests[["due_s", "requested_input_tokens", "requested_output_tokens"]]
        made = simulate(
            Requests.of(*asked.to_numpy().T), limited, law, n_replicas=cell.run.variant.replicas
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
        sides["simulated_"] = requests_of(pd.DataFrame(columns), 0.0, phase.facts)
        for block in range(len(phase.facts["settings"]) + 1):
            row: dict[str, Any] = {"phase": phase.name, "block": block}
            for prefix, requests in sides.items():
                own = requests[requests["setting"] == block - 1] if block else requests
                row["n_requests"] = len(own)
                values = {"failure_rate": own["is_failed"].mean(), **latencies(own)}
                row |= {f"{prefix}{name}": values[name] for name in _METRICS}
            rows.append(row)
    return {"law": vars(law), "scheduler": vars(scheduler), "rows": pd.DataFrame(rows)}


def _scheduler_of(cell: MeasuredCell, data: StudyData) -> Scheduler | None:
    """Return the settings that vLLM was started with; None of another engine."""
    given = dict(pairwise((cell.run.server and cell.run.server.command) or ()))
    if not set(_OPTIONS) <= set(given):
        return None
    gpu = data.profiles[cell.run.gpu_profile_id].gpu
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
    labels = {f"simulated_{name}": "simulated" for name in _METRICS}
    columns = " ".join(f"{name} simulated_{name}" for name in _METRICS)
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
    for metric, label in zip(_METRICS, ("Failed (fraction)", "Token latency (ms)"), strict=False):
        for name, own in blocks.groupby("phase"):
            curves = [
                Curve("measured", own["block"], own[metric]),
                Curve("simulated", own["block"], own[f"simulated_{metric}"]),
            ]
            heading = f"Sweep of {name}" if metric == _METRICS[0] else ""
            panels.append(Panel(heading, axis, Axis(label, low=0), curves))
    n_columns = blocks["phase"].nunique()
    return part(title, text, panels, table, n_columns=n_columns, **SMALL_PANELS)
