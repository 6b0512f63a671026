"""Exact timers for the load client, and how late its own event loop was."""

import asyncio
import ctypes
import os
import time
from array import array
from collections.abc import Callable, Sequence

import numpy as np

from sextant.points.metrics import SHAPING_FRACTION

_NS_PER_S = 1_000_000_000
_TFD_TIMER_ABSTIME = 1


class _Timerspec(ctypes.Structure):
    """`struct itimerspec`: period and first moment, each in seconds and nanoseconds."""

    _fields_ = [(name, ctypes.c_long) for name in ("period_s", "period_ns", "first_s", "first_ns")]


class Alarm:
    """An alarm that can be set again and again; made and used inside a running loop."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._libc, self._ring = ctypes.CDLL(None, use_errno=True), ring
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer")
        asyncio.get_running_loop().add_reader(self._fd, self._on_time)

    def set(self, at_ns: int, period_ns: int = 0) -> None:
        """Ring at this moment, soon if it has passed, and each period after it if there is one."""
        first, period = divmod(max(at_ns, 1), _NS_PER_S), divmod(period_ns, _NS_PER_S)
        spec = _Timerspec(*period, *first)
        if self._libc.timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, ctypes.byref(spec), None):
            raise OSError(ctypes.get_errno(), "the timer cannot be set")

    def close(self) -> None:
        """Never ring again."""
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _on_time(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # it was set again meanwhile
            return
        self._ring()


_PERIOD_NS = 10_000_000


class LagWatch:
    """Records, each 10 ms, how late the event loop gets to what is due."""

    def __init__(self) -> None:
        self.lags_ms = array("f")
        self._due_ns = time.monotonic_ns() + _PERIOD_NS
        self._alarm = Alarm(self._tick)
        self._alarm.set(self._due_ns, _PERIOD_NS)

    def _tick(self) -> None:
        now_ns = time.monotonic_ns()
        while self._due_ns <= now_ns:  # moments that a long stall passed over were late too
            self.lags_ms.append((now_ns - self._due_ns) / 1e6)
            self._due_ns += _PERIOD_NS

    def stop(self) -> None:
        """Record no more."""
        self._alarm.close()


def quantiles_ms(values_ms: Sequence[float] | np.ndarray) -> dict[str, float | None]:
    """Return median, p99 and maximum, null without values."""
    values = np.asarray(values_ms, dtype=float)
    if not len(values):
        return {"median": None, "p99": None, "max": None}
    median, p99 = np.quantile(values, (0.5, 0.99)).tolist()
    return {"median": median, "p99": p99, "max": float(values.max())}


def lag_warning(
    client_lag_ms: dict[str, float | None],
    send_lag_ms: dict[str, float | None],
    median_itl_ms: float | None,
    median_ttft_ms: float | None,
) -> str | None:
    """Return a warning if the client's own lag could have shaped the result, else None.

    The rule: p99 of the event loop's lag is above a tenth of the median ITL, or p99 of the lag
    of sending above a tenth of the median TTFT.
    """
    late = "the load client was late and could have shaped the result: "
    found = [
        f"{name} of {lag_ms:.2g} ms (p99) against the median {of} of {latency_ms:.3g} ms"
        for name, lag_ms, of, latency_ms in (
            ("client lag", client_lag_ms["p99"], "ITL", median_itl_ms),
            ("send lag", send_lag_ms["p99"], "TTFT", median_ttft_ms),
        )
        if lag_ms is not None and latency_ms is not None and lag_ms > SHAPING_FRACTION * latency_ms
    ]
    return late + "; ".join(found) if found else None
