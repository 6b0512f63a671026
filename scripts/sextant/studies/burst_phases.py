"""Phases of a burst as measured: requests, tokens and KV cache, over time and by setting."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from sextant.points.cell_files import MeasuredCell

SWEEPS = ("alpha", "beta", "theta")
SMALL_PANELS: Mapping[str, Any] = {"height_in": 1.7, "has_points": False}  # one column per phase
MAX_SLICES = 40  # most equal parts of a phase's time in its curves over time
_REQUESTS_PER_SLICE = 5  # on average, at least: a slice without a request has no latency
_COLUMNS = (
    *("level", "scheduled_s", "sent_s", "first_token_s", "last_token_s", "token_offsets_ms"),
    *("output_tokens", "requested_input_tokens", "requested_output_tokens", "status"),
)


@dataclass(frozen=True)
class Phase:
    """A phase as it was measured. Times are seconds from its start.

    The paper does not define its token latency. Here it is a request's latency over its output
    tokens, the normalized latency of vLLM's paper (Kwon et al., SOSP 2023, 6.1). All latencies
    count from when a request was due.
    """

    facts: Mapping[str, Any]  # what `run.json` says of it, see `sextant.bench.burst.run_phases`
    duration_s: float  # to the last request's end
    requests: pd.DataFrame  # as `requests_of_phase` returns them, by time
    token_s: np.ndarray  # when each output token of the served requests came, ascending
    kv_usage: pd.DataFrame  # `time_s, usage`, mean over the replicas, 0 to 1
    timeout_s: float | None  # time limit of a request

    @property
    def name(self) -> str:
        """Name in `sextant.bench.burst.PHASES`."""
        return self.facts["name"]

    @cached_property
    def averages(self) -> dict[str, float]:
        """Averages over the phase, NaN: not known. `max_kv_usage` is by the server's readings."""
        is_failed = self.requests["is_failed"]
        mean_usage = self.facts["mean_kv_cache_usage"]
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
        """Return spans of time with the measures of their requests.

        `places` has, for each request, the number of its span.
        """
        rows = []
        for index, (start_s, end_s) in enumerate(spans[["start_s", "end_s"]].to_numpy()):
            requests = self.requests[places == index]
            n_tokens = np.diff(np.searchsorted(self.token_s, [start_s, end_s]))[0]
            is_within = self.kv_usage["time_s"].between(start_s, end_s)
            row = {
                "n_requests": len(requests),
                "failure_rate": requests["is_failed"].mean() if len(requests) else np.nan,
                "throughput_tok_s": n_tokens / (end_s - start_s) if end_s > start_s else np.nan,
                "mean_kv_usage": self.kv_usage.loc[is_within, "usage"].mean(),
            }
            rows.append(row | latencies(requests))

        return spans.join(pd.DataFrame(rows))


def phases(cell: MeasuredCell) -> Iterator[Phase]:
    """Yield the phases of a cell by level: none if it is infeasible or of another scenario."""
    rows = cell.requests(list(_COLUMNS))
    server = cell.server()
    for level in sorted(cell.run.levels, key=lambda run: run.level):
        rows_of_level = rows[rows["level"] == level.level].sort_values("scheduled_s", kind="stable")
        if rows_of_level.empty or not level.phase:
            continue
        rows_of_level = rows_of_level.reset_index(drop=True)
        start_s = level.started_s or 0.0
        duration_s = level.duration_s or 0.0
        ok = rows_of_level[rows_of_level["status"] == "ok"]
        offsets_s = ok["token_offsets_ms"].explode().dropna().astype(float) / 1e3
        token_s = np.sort(offsets_s + ok["sent_s"].loc[offsets_s.index] - start_s)
        read = server[(server["level"] == level.level) & server["kv_cache_usage"].notna()]
        usage = pd.DataFrame({"time_s": read["time_s"] - start_s, "usage": read["kv_cache_usage"]})
        usage = usage[usage["time_s"].between(0, duration_s)]
        usage = usage.sort_values("time_s", ignore_index=True)
        requests = requests_of_phase(rows_of_level, start_s, level.phase)
        yield Phase(level.phase, duration_s, requests, token_s, usage, level.conditions.timeout_s)


def requests_of_phase(rows: pd.DataFrame, start_s: float, facts: Mapping[str, Any]) -> pd.DataFrame:
    """Return the requests of a phase that began at `start_s`.

    Columns: `due_s, setting` (index in `facts["settings"]`), `is_failed, requested_input_tokens,
    requested_output_tokens`; and, null if failed, `output_tokens, token_latency_ms, ttft_ms,
    decode_ms` (first to last token), `n_gaps`.
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
    token_latency = requests["token_latency_ms"]
    n_gaps = requests["n_gaps"].sum()
    return {
        "mean_token_latency_ms": float(token_latency.mean()),
        "p90_token_latency_ms": float(token_latency.quantile(0.9)),
        "mean_ttft_ms": float(requests["ttft_ms"].mean()),
        "mean_itl_ms": float(requests["decode_ms"].sum() / n_gaps) if n_gaps else np.nan,
    }
