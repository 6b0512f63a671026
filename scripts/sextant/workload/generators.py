"""Arrival times drawn from a seed; none is rescaled, and no gap is cut, to hit a target.

Every generator returns float64 seconds from 0, ascending. It stops after `n` requests or before
`duration_s`, whichever comes first; `arrival_times` finds it by name.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.workload.drawing import Seed
from sextant.workload.generator_limits import (
    check_positive,
    check_reached,
    check_size,
    check_windows,
    cut,
    extent,
)

_BLOCK = 1 << 14


def constant(
    rate_rps: float, *, n: int | None = None, duration_s: float | None = None
) -> np.ndarray:
    """Return arrivals at 0 and then every 1 / `rate_rps` seconds.

    Raises:
        InputError: a rate that is not positive, or no end.
    """
    check_positive(rate_rps=rate_rps)
    most, end_s = extent(n, duration_s, rate_rps)
    n_drawn = min(most, math.ceil(min(end_s * rate_rps, most)) + 1)
    return cut(np.arange(n_drawn) / rate_rps, most, end_s)


def poisson(
    rate_rps: float, *, n: int | None = None, duration_s: float | None = None, seed: Seed = 0
) -> np.ndarray:
    """Return arrivals that are independent of each other: `gamma` with alpha 1."""
    return gamma(1.0, rate_rps, n=n, duration_s=duration_s, seed=seed)


def gamma(
    alpha: float,
    rate_rps: float,
    *,
    n: int | None = None,
    duration_s: float | None = None,
    seed: Seed = 0,
) -> np.ndarray:
    """Return arrivals with independent Gamma gaps of mean 1 / `rate_rps` (BurstGPT, IV-A).

    Time 0 is any moment of a process that has long been running, no arrival of it: the first
    arrival is the rest of a gap that is under way. The requests of a duration are therefore
    rate · duration on average, whatever the burstiness; from an arrival on they would be
    (1/alpha + 1) / 2 more.

    Args:
        alpha: shape. The same number as vLLM's `--burstiness` and AIPerf's
            `--arrival-smoothness`; Vidur's `cv` is 1 / √alpha. 1 is Poisson, less is burstier.
        rate_rps: requests per second.
        n: most requests.
        duration_s: end of the arrivals.
        seed: a longer run of the same seed begins with the same arrivals.

    Raises:
        InputError: a parameter that is not positive, or no end.
    """
    check_positive(alpha=alpha, rate_rps=rate_rps)
    most, end_s = extent(n, duration_s, rate_rps)
    rng, beta_s = np.random.default_rng(seed), 1 / (alpha * rate_rps)
    times = [np.array([_rest_of_gap(rng, alpha) / rate_rps])]
    n_drawn = 1
    while n_drawn < most and times[-1][-1] < end_s:
        times.append(times[-1][-1] + np.cumsum(rng.gamma(alpha, beta_s, _BLOCK)))
        n_drawn += _BLOCK
    return cut(np.concatenate(times), most, end_s)


def piecewise(
    windows: pd.DataFrame,
    *,
    beta_factor: float = 1.0,
    n: int | None = None,
    duration_s: float | None = None,
    seed: Seed = 0,
) -> np.ndarray:
    """Mirror the windows of a trace, at its scale or another (BurstGPT, IV-A.1).

    Each window keeps its duration and shape and has its counted rate, divided by
    `beta_factor`: its scale is duration / (requests · alpha) · beta_factor. (The `beta_s` of
    the fit is not used: a window's inner gaps are shorter than its mean, the more so the
    fewer requests it has.) A window without a fit, alpha null, is Poisson at its counted
    rate; one without a request stays empty. A gap that is under way at the end of a window
    goes on in the next one at that one's pace, so that no window begins with an arrival.

    Args:
        windows: rows of `windows.fit_windows` of one LLM and service, from any one on, or the
            user's own: `start_s` (ascending), `duration_s`, `n_requests` and `alpha`. Times
            count from the first row's start.
        beta_factor: factor on every scale; 0.5 gives twice the rate.
        n: most requests; there are fewer if the windows end before.
        duration_s: end of the arrivals, by default that of the last window.
        seed: seed of the draws.

    Raises:
        InputError: a column is missing, windows overlap, or a value is out of range.
    """
    check_positive(beta_factor=beta_factor)
    start_s, lasting_s, weight, alpha = check_windows(windows)
    expected = weight / beta_factor
    check_size(float(expected.sum()))
    rng = np.random.default_rng(seed)
    times = [np.zeros(0)]
    # In units of the mean gap, where all windows have the pace 1.
    wait = _rest_of_gap(rng, alpha[0])
    for begin_s, own_s, units, shape in zip(start_s, lasting_s, expected, alpha, strict=True):
        points = np.array([wait])
        while points[-1] < units:
            n_drawn = int(units - points[-1]) + 16
            drawn = rng.gamma(shape, 1 / shape, n_drawn)
            points = np.concatenate([points, points[-1] + np.cumsum(drawn)])
        n_inside = int(np.searchsorted(points, units))
        wait = points[n_inside] - units
        times.append(begin_s + points[:n_inside] * (own_s / units if units else 0.0))
    most, end_s = extent(n, np.inf if duration_s is None else duration_s, 0.0)
    return cut(np.concatenate(times), most, end_s)


def varying(
    alpha: Sequence[float],
    beta_s: Sequence[float],
    *,
    over: str = "time",
    every: int = 1,
    n: int | None = None,
    duration_s: float | None = None,
    seed: Seed = 0,
) -> np.ndarray:
    """Return Gamma gaps whose shape and scale change as the user says (BurstGPT, IV-A.2).

    After every `every` requests the shape becomes a0 + a1·u + a2·u² and the scale b0 + b1·u,
    with u the seconds passed (`over="time"`) or the steps taken (`over="steps"`). The study's
    own change after each 200 requests (V) is over="steps", every=200. The first arrival is
    one gap after 0.

    Args:
        alpha: a0, a1, a2.
        beta_s: b0, b1, seconds.
        over: what u is, `time` or `steps`.
        every: requests from one change to the next.
        n: most requests.
        duration_s: end of the arrivals.
        seed: seed of the draws.

    Raises:
        InputError: wrong numbers of coefficients, no end, or a shape or scale that is not
            positive at some u that is reached.
    """
    for name, given, wanted in (("alpha", alpha, 3), ("beta_s", beta_s, 2)):
        if len(given) != wanted:
            fix = "alpha is quadratic (a0, a1, a2), beta_s is linear (b0, b1)"
            raise InputError(f"{len(given)} coefficients, not {wanted}", field=name, fix=fix)
    if over not in ("time", "steps"):
        raise InputError(f"{over!r} is unknown", field="over", fix="give time or steps")
    check_positive(every=every)
    most, end_s = extent(n, duration_s, 0.0)
    rng = np.random.default_rng(seed)
    times, now_s, step = [np.zeros(0)], 0.0, 0
    while step * every < most and now_s < end_s:
        u = now_s if over == "time" else float(step)
        shape, scale_s = alpha[0] + u * (alpha[1] + u * alpha[2]), beta_s[0] + u * beta_s[1]
        check_reached(over, u, alpha=shape, beta_s=scale_s)
        times.append(now_s + np.cumsum(rng.gamma(shape, scale_s, every)))
        now_s, step = float(times[-1][-1]), step + 1
        check_size(step * every)
    return cut(np.concatenate(times), most, end_s)


def replay(
    arrival_s: np.ndarray | Sequence[float],
    *,
    time_factor: float = 1.0,
    n: int | None = None,
    duration_s: float | None = None,
) -> np.ndarray:
    """Return a trace's own arrivals from its first on, their gaps times `time_factor`.

    Args:
        arrival_s: arrival times in ascending order, seconds.
        time_factor: 0.5 replays in half the time, at twice the rate.
        n: most requests.
        duration_s: end of the replayed arrivals, after the factor.

    Raises:
        InputError: a factor that is not positive, or times that do not ascend.
    """
    check_positive(time_factor=time_factor)
    arrival_s = np.asarray(arrival_s, float)
    if not (np.all(np.isfinite(arrival_s)) and np.all(np.diff(arrival_s) >= 0)):
        fix = "give the arrivals of a normalised trace"
        raise InputError("the times do not ascend", field="arrival_s", fix=fix)
    most, end_s = extent(n, np.inf if duration_s is None else duration_s, 0.0)
    return cut((arrival_s - arrival_s[:1]) * time_factor, most, end_s)


def at_once(*, n: int) -> np.ndarray:
    """Return `n` arrivals at 0: a rate of `inf` in other tools.

    Raises:
        InputError: n below 1.
    """
    most, _ = extent(n, None, 0.0)
    return np.zeros(most)


GENERATORS: dict[str, Callable[..., np.ndarray]] = {
    "constant": constant,
    "poisson": poisson,
    "gamma": gamma,
    "piecewise": piecewise,
    "varying": varying,
    "replay": replay,
    "at_once": at_once,
}


def arrival_times(
    kind: str,
    parameters: Mapping[str, Any],
    *,
    n: int | None = None,
    duration_s: float | None = None,
    seed: Seed = 0,
) -> np.ndarray:
    """Return the arrivals of the generator called `kind`.

    Args:
        kind: a name in `GENERATORS`.
        parameters: its own parameters, by name.
        n: most requests.
        duration_s: end of the arrivals.
        seed: seed of the draws; without effect where nothing is drawn.

    Raises:
        InputError: an unknown kind, a parameter that is unknown or missing, or one that the
            generator refuses.
    """
    if kind not in GENERATORS:
        fix = f"use one of {', '.join(GENERATORS)}"
        raise InputError(f"unknown arrivals {kind!r}", field="kind", fix=fix)
    known = inspect.signature(GENERATORS[kind]).parameters
    ends = {"n": n, "duration_s": duration_s}
    given = {**parameters, **{name: end for name, end in ends.items() if end is not None}}
    fix = f"{kind} takes {', '.join(name for name in known if name != 'seed')}"
    for name in given:
        if name not in known or name == "seed":
            raise InputError(f"{kind} arrivals have no such parameter", field=name, fix=fix)
    for name, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and name not in given:
            raise InputError(f"{kind} arrivals need it", field=name, fix=fix)
    return GENERATORS[kind](**given, **({"seed": seed} if "seed" in known else {}))


def _rest_of_gap(rng: np.random.Generator, alpha: float) -> float:
    """Draw how long a gap of mean 1 still lasts, seen at any moment.

    A moment falls into a gap the more easily the longer it is; gaps weighted by length are
    Gamma-distributed with alpha + 1, and the moment lies anywhere in it.
    """
    return rng.random() * rng.gamma(alpha + 1, 1 / alpha)
