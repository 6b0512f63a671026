"""The numbers of a simulation: latencies, rates, and how busy and full the servers were."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sextant.base.errors import InputError
from sextant.points.cells.metrics import STATISTICS, keeps, statistics
from sextant.simulate.run import Simulation
from sextant.simulate.world import OK

INTERVAL = (0.05, 0.95)
"""Quantiles over the draws of a law: a 90% interval."""


def summarise(
    simulation: Simulation, limits_ms: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the numbers of the requests that came after the warm-up.

    Latencies are those of requests that were answered; gaps between tokens (`itl_ms`) are within
    0.25%, and those of requests that gave up later are among them. Rates are over the time from the
    end of the warm-up to the last answer or arrival.

    Args:
        simulation: what became of the requests.
        limits_ms: limits that each request has to keep to count as goodput, of `ttft_ms`,
            `nttft_ms`, `itl_ms` (the mean of its own gaps, which is its TPOT), `tpot_ms` and
            `e2e_ms`; without any, all that are answered count.

    Raises:
        InputError: no request came after the warm-up, or a limit is of another latency.
    """
    s, counted = simulation, simulation.is_counted
    if not counted.any():
        fix = "shorten the warm-up, or give more requests"
        raise InputError("no request came after the warm-up", field="warmup_s", fix=fix)
    is_ok = counted & (s.status == OK)
    each_ms = {
        "ttft_ms": s.ttft_s[is_ok] * 1e3,
        "tpot_ms": s.tpot_s[is_ok] * 1e3,
        "e2e_ms": s.e2e_s[is_ok] * 1e3,
    }
    own_ms = {"nttft_ms": each_ms["ttft_ms"] / s.input_tokens[is_ok], "itl_ms": each_ms["tpot_ms"]}
    span_s = max(s.end_s - s.warmup_s, 1e-9)
    time_s = span_s * s.n_replicas
    gaps_ms = {name: s.gap_s(share) * 1e3 for name, share in STATISTICS.items()}
    return {
        "ttft_ms": statistics(each_ms["ttft_ms"]),
        "itl_ms": {"mean": s.mean_gap_s * 1e3, **gaps_ms},
        "tpot_ms": statistics(each_ms["tpot_ms"]),
        "e2e_ms": statistics(each_ms["e2e_ms"]),
        "throughput_tok_s": float(s.output_tokens[is_ok].sum() / span_s),
        "request_rate_rps": float(is_ok.sum() / span_s),
        "failed_fraction": float(1 - is_ok.sum() / counted.sum()),
        "goodput_rps": float(keeps(each_ms | own_ms, limits_ms or {}).sum() / span_s),
        "kv_used_fraction": s.kv_block_s / (s.n_blocks * time_s),
        "kv_used_fraction_max": s.most_blocks / s.n_blocks,
        "preemptions": int(s.preemptions[counted].sum()),
        "utilisation": min(s.busy_s / time_s, 1.0),
        "cached_fraction": float(
            s.cached_tokens[is_ok].sum() / max(s.input_tokens[is_ok].sum(), 1)
        ),
        "n_requests": int(counted.sum()),
    }


def intervals(summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the 90% interval over draws of each number of `summarise`, in the same shape."""
    found: dict[str, Any] = {}
    for name, value in summaries[0].items():
        of_name = [summary[name] for summary in summaries]
        if isinstance(value, Mapping):
            found[name] = intervals(of_name)
        else:
            found[name] = [
                float(bound) for bound in np.quantile(np.array(of_name, float), INTERVAL)
            ]
    return found
