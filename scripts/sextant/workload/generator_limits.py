"""Where generated arrivals end, and what parameters of theirs are refused."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from sextant.base.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MAX_REQUESTS = 100_000_000


def extent(n: int | None, duration_s: float | None, rate_rps: float) -> tuple[int, float]:
    """Return the most requests and the end, one of which may be missing."""
    if n is None and duration_s is None:
        fix = "give n, the number of requests, or duration_s"
        raise InputError("the arrivals have no end", field="n", fix=fix)
    ends = {"n": n, "duration_s": duration_s}
    check_positive(**{name: end for name, end in ends.items() if end is not None})
    if n is not None and n != int(n):
        raise InputError(f"{n} is not a whole number", field="n", fix="give the number of requests")
    most = MAX_REQUESTS + 1 if n is None else int(n)
    end_s = np.inf if duration_s is None else float(duration_s)
    # Without a rate nothing is known of how many a duration has.
    expected = ([] if n is None else [n]) + ([end_s * rate_rps] if rate_rps else [])
    check_size(min(expected, default=0.0))
    return most, end_s


def cut(times: np.ndarray, most: int, end_s: float) -> np.ndarray:
    """Return the first `most` of the times that lie before `end_s`."""
    return times[: min(most, int(np.searchsorted(times, end_s)))]


def check_positive(**numbers: float) -> None:
    """Refuse what is not above 0, or not finite; only a duration may be infinite."""
    for name, value in numbers.items():
        is_end = name == "duration_s"
        if not (value > 0 and (is_end or math.isfinite(value))):
            fix = "give a finite number above 0"
            raise InputError(f"{value} is out of range", field=name, fix=fix)


def check_reached(over: str, u: float, **numbers: float) -> None:
    """Refuse a shape or scale that a variation takes to 0 or below at `u`."""
    for name, value in numbers.items():
        if not value > 0:
            where = f"at {u:g} s" if over == "time" else f"at step {u:g}"
            fix = "end the arrivals before, or change the coefficients"
            raise InputError(f"it is {value:g} {where}", field=name, fix=fix)


def check_size(n: float) -> None:
    """Refuse more requests than anybody means to draw."""
    if n > MAX_REQUESTS:
        fix = "give a shorter duration or a lower rate"
        raise InputError(f"{n:.3g} requests are too many", field="duration_s", fix=fix)


def check_windows(windows: pd.DataFrame) -> tuple[np.ndarray, ...]:
    """Return start (from 0), duration, requests and shape of each window."""
    wanted = ("start_s", "duration_s", "n_requests", "alpha")
    missing = [name for name in wanted if name not in windows]
    if missing or windows.empty:
        fix = f"give rows with {', '.join(wanted)}"
        raise InputError("no windows to mirror", field=(missing or wanted)[0], fix=fix)
    start_s, lasting_s, n_requests, alpha = (windows[name].to_numpy(float) for name in wanted)
    alpha = np.where(np.isnan(alpha), 1.0, alpha)
    for name, values, lowest in zip(
        wanted[1:], (lasting_s, n_requests, alpha), (0.0, 0.0, np.finfo(float).tiny), strict=True
    ):
        if not np.all(np.isfinite(values) & (values >= lowest)):
            problem, fix = "a window's value is out of range", "give finite numbers from 0 on"
            raise InputError(problem, field=name, fix=fix)
    # Rounding may let a window end a little after the next one's start.
    if not np.all(np.diff(start_s) >= lasting_s[:-1] * (1 - 1e-9)):
        fix = "give the windows of one LLM and service, in the order of time"
        raise InputError("windows overlap", field="start_s", fix=fix)
    return start_s - start_s[0], lasting_s, n_requests, alpha
