"""Calls back at a moment of the monotonic clock, more exactly than the event loop's timers.

The loop counts in whole milliseconds; a timer of the kernel (timerfd) that it watches as it
watches a socket comes within some ten microseconds.
"""

import asyncio
import ctypes
import os
import time
from collections.abc import Callable

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
