"""What a deployment costs, how far it is from its limits, and what it bears with a replica less."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from sextant.decide.sizing import size_replicas
from sextant.facts.gpu import HOURS_PER_MONTH, token_prices
from sextant.facts.slo import ENDS, SLO
from sextant.points.frame import LENGTHS, TARGETS, is_refused, limited, replica_load


def measure_headroom(
    curve: pd.DataFrame, slo: SLO, replicas: int, usd_per_hour: float, rate_rps: float | None = None
) -> dict[str, Any]:
    """Return what is to be known of replicas that share the load of an SLO.

    `users_per_replica` share a replica; its latencies are those at `level_users`, the next load
    that the curve has. `limits` has of each limit `metric, limit_ms, percentile, latency_ms, lo_ms,
    hi_ms` (90% interval, None: not known), `headroom` (1 - latency / limit), `load` (the most that
    the replicas carry within it) and `is_most_tried` (no more was tried than `most_users_tried` a
    replica). `load` and `is_most_tried` beside them are of all limits, `is_open` says that a
    latency has no upper end, so that a probability is a lower bound; `without_one` is the same of
    one replica less, with `is_kept`, None of a single replica. `usd_per_month` is of 730 hours,
    `usd_per_million_tokens` of input and output alike, at `requests_per_s`: `rate_rps`, else the
    SLO's rate, what was measured at that level, or by Little's law; None where requests' lengths
    are not known, as `most_requests_per_s`, the rate at the most load.

    `curve` is of one LLM on one GPU profile, by rising `users`: `nttft_ms, itl_ms` and their bounds
    at the SLO's percentiles, the mean lengths of requests, `request_rate_rps` (NaN where it was not
    measured), and of measured points what `points.frame.judged` adds. Its first point has to meet
    the SLO. `usd_per_hour` is of all replicas, `rate_rps` what they serve, if it is known.
    """
    users, lengths = curve["users"].to_numpy(), curve[LENGTHS].to_numpy(float)
    carried, is_allowed = replica_load(curve, slo), ~is_refused(curve, slo)
    share = slo.load / replicas
    needed = np.maximum.accumulate(np.where(np.isfinite(carried), carried, 0.0))
    level = min(int(np.searchsorted(needed, share * (1 - 1e-9))), len(users) - 1)
    each = min(int(np.ceil(share)), int(users[level])) if slo.users is not None else users[level]
    limits, most = [], len(users)
    low, high = (limited(curve, slo, end) for end in ENDS)
    for metric, values in limited(curve, slo).items():
        limit_ms, percentile = slo.limits[metric]
        n_met = int(np.logical_and.accumulate((values <= limit_ms) & is_allowed).sum())
        most = min(most, n_met)
        row = {
            "metric": metric,
            "limit_ms": limit_ms,
            "percentile": percentile,
            "latency_ms": values[level],
            "lo_ms": low[metric][level],
            "hi_ms": high[metric][level],
            "headroom": 1 - values[level] / limit_ms,
            "load": replicas * float(carried[:n_met].max(initial=0)),
            "is_most_tried": n_met == len(users),
            "most_users_tried": int(users[-1]),
        }
        limits.append({name: _known(value) for name, value in row.items()})
    of_one, left = float(carried[:most].max(initial=0)), replicas - 1
    is_kept = bool(size_replicas(slo.load, of_one) <= left)
    without = {"replicas": left, "load": left * of_one, "is_kept": is_kept}

    def rate_of(place: int) -> float:
        """Return the requests a second of a replica at a level: measured, or by Little's law."""
        at = curve.iloc[place]
        if (measured := float(at["request_rate_rps"])) > 0:
            return measured
        e2e_ms = slo.request_ms(at[TARGETS].to_numpy(float), lengths[place])
        return 1e3 * float(at["users"]) / float(e2e_ms)

    rate = rate_rps or slo.request_rate_rps or slo.load * rate_of(level) / users[level]
    most_rps = of_one if slo.users is None else rate_of(max(most - 1, 0))
    return {
        "users_per_replica": int(each),
        "level_users": int(users[level]),
        "limits": limits,
        "load": replicas * of_one,
        "is_most_tried": most == len(users),
        "is_open": any(row["hi_ms"] is None and row["lo_ms"] is not None for row in limits),
        "without_one": without if left else None,
        "requests_per_s": _known(float(rate)),
        "most_requests_per_s": _known(replicas * most_rps),
        "usd_per_hour": usd_per_hour,
        "usd_per_month": HOURS_PER_MONTH * usd_per_hour,
        "usd_per_million_tokens": _known(token_prices(usd_per_hour, rate, lengths[level])[0]),
    }


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value


def compare_options(chosen: Mapping[str, Any], option: Mapping[str, Any]) -> dict[str, Any]:
    """Return another option with `extra_usd_per_hour`, what it costs more in all, and
    `wins_below_usd_per_hour`, the price of one of its replicas below which it is cheaper."""
    names = ("gpu_profile_id", "replicas", "users_per_replica", "usd_per_hour")
    return {
        **{name: option[name] for name in names},
        # Rounded, as the prices are: 0.3 - 0.1 is not 0.2.
        "extra_usd_per_hour": round(option["usd_per_hour"] - chosen["usd_per_hour"], 9),
        "wins_below_usd_per_hour": round(chosen["usd_per_hour"] / option["replicas"], 9),
    }
