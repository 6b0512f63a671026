"""What a page needs to answer again for another load, other limits, prices and GPU profiles.

`what_if.js` decides from it as `sextant.decide.decision` and `sextant.advice.options` do from the
draws. A draw's latencies matter only through which limits they keep, so the page holds, by draw and
load, the first of the limits on offer that is kept: exact, and much smaller than latencies.
"""

import base64
import gzip
import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from sextant.advice.options import FAIR, LISTED, SAFE
from sextant.advice.predicted import Forecast
from sextant.characterizations.points import TARGETS
from sextant.decide.decision import MOST_COUNTS, RATE_STEPS, REWARD, in_steps
from sextant.experiment.slo import METRICS

_WIDEST = 4.0
"""Limits go from the asked one over this factor to the asked one times it, loads further."""
_WIDEST_LOAD = 20.0
_DIGITS = 4


def what_if(made: Forecast, risk: float | None) -> dict[str, Any]:
    """Return what the page's controls offer, and what its script decides from; JSON can hold it.

    Args:
        made: the draws, of the same loads on every GPU profile.
        risk: as it was asked for.
    """
    slo, lengths = made.slo, made.lengths[0]
    names, users = (np.unique(made.draws.X[of]) for of in ("gpu_profile_id", "users"))
    samples_ms = made.draws.samples_ms.reshape(-1, len(names), len(users), len(TARGETS))
    latencies = slo.latencies(samples_ms, lengths)
    medians = {name: np.median(values, axis=0) for name, values in latencies.items()}
    limits, curves = [], []
    for name, (limit_ms, percentile) in slo.limits.items():
        offered = _two_digits(limit_ms, _WIDEST)
        # A load is served if all smaller ones are too, so the worst of these counts.
        worst = np.maximum.accumulate(latencies[name], axis=2)
        curves.append(np.searchsorted(offered, worst))
        words = {"key": name, "label": METRICS[name], "percentile": percentile}
        limits.append(words | {"value": limit_ms, "offered": offered})
    steps_from = carried = None
    if slo.users is None:
        most = np.maximum.accumulate(slo.carried(users, samples_ms, lengths), axis=2)
        steps = in_steps(most).astype(int)
        steps_from = int(steps.min())
        curves.append(steps - steps_from)
        medians_ms = np.median(samples_ms, axis=0)
        carried = np.maximum.accumulate(slo.carried(users, medians_ms, lengths), axis=1).tolist()
    loads = _two_digits(slo.load, _WIDEST_LOAD)
    if slo.users is not None:
        loads = sorted({round(load) for load in loads if load >= 1})
    profiles = {name: made.subject.profiles[name].usd_per_hour for name in names.tolist()}
    return {
        "is_rate": slo.users is None,
        "load": {"value": slo.load if slo.load % 1 else int(slo.load), "offered": loads},
        "risk": risk,
        "limits": limits,
        "profiles": profiles,
        "users": users.tolist(),
        "medians_ms": {name: _short(values) for name, values in medians.items()},
        "carried": carried,
        "broken": _own_points(made),
        "n_draws": len(samples_ms),
        "steps_from": steps_from,
        "rate_steps": RATE_STEPS,
        "most_counts": MOST_COUNTS,
        "worth": 1 + REWARD,
        "fair": FAIR,
        "safe": SAFE,
        "listed": LISTED,
        "curves": _packed(curves),
    }


def _two_digits(asked: float, widest: float) -> list[float]:
    """Return the numbers of two digits around the asked one, and the asked one."""
    low, high = np.log10([asked / widest, asked * widest])
    decades = range(int(np.floor(low)), int(np.floor(high)) + 1)
    found = {float(f"{digits}e{decade - 1}") for decade in decades for digits in range(10, 100)}
    return sorted({each for each in found if asked / widest <= each <= asked * widest} | {asked})


def _own_points(made: Forecast) -> list[dict[str, Any]]:
    """Return what was measured of the LLM: no load from one that breaks a limit on is met."""
    if made.own is None:
        return []
    points = made.own.points
    latencies = made.slo.latencies(points[TARGETS].to_numpy(float), made.lengths[0])
    return [
        {
            "profile": row["gpu_profile_id"],
            "users": int(row["users"]),
            "ms": [_known(values[place]) for values in latencies.values()],
        }
        for place, row in enumerate(points.to_dict("records"))
    ]


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _short(values: np.ndarray) -> list[list[float]]:
    return [[float(f"{value:.{_DIGITS}g}") for value in row] for row in values]


def _packed(curves: Iterable[np.ndarray]) -> str:
    """Pack curves that rise over the loads, each (draws, profiles, loads), small whole numbers.

    Kept are their rises, as (curves, profiles, loads, draws): all low bytes, then all high ones.
    """
    stacked = np.stack([*curves]).transpose(0, 2, 3, 1)
    rises = np.diff(stacked, axis=2, prepend=0).astype("<u2")
    planes = (rises & 255).astype("u1").tobytes() + (rises >> 8).astype("u1").tobytes()
    return base64.b64encode(gzip.compress(planes, mtime=0)).decode()


def as_script_data(data: Any) -> str:
    """Return JSON that can stand in a `<script>`: it has no `<`."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
