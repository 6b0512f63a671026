"""Closed-loop load: n users, each sending its next request when the last has ended."""

import asyncio
from collections.abc import Sequence

from sextant.engine.http import Target
from sextant.load.client import Connection, Exchange, open_all
from sextant.load.measure import LevelResult, Recorder, run_level
from sextant.load.source import Source

_PAUSE_AFTER_FAILURE_S = 0.1
# Requests prepared before a level starts, per user; more are prepared while it runs.
_PREPARED_PER_USER = 8
_PREPARED_AT_LEAST = 64


def run_closed_loop(
    targets: Sequence[Target],
    source: Source,
    users: int,
    duration_s: float,
    timeout_s: float,
    epoch_ns: int,
    *,
    cooldown_s: float = 0.0,
) -> LevelResult:
    """Load replicas with `users` concurrent users; user i sends to replica i modulo their number.

    Requests that start within `duration_s` are measured and run to their end, so every row is a
    whole request and output tokens over `LevelResult.duration_s` is the throughput. The
    ramp-down counts: make `duration_s` long against one request. Until the measured ones have
    ended, but no longer than `cooldown_s`, users send requests that are not measured.
    """
    source.prepare(max(_PREPARED_AT_LEAST, _PREPARED_PER_USER * users))
    recorder = Recorder(source, targets)
    load = _ClosedLoop(recorder, targets, users, timeout_s, duration_s, cooldown_s)
    return run_level(users, source, recorder, load, epoch_ns)


class _ClosedLoop:
    """The users of a level."""

    def __init__(
        self,
        recorder: Recorder,
        targets: Sequence[Target],
        users: int,
        timeout_s: float,
        duration_s: float,
        cooldown_s: float,
    ) -> None:
        self._recorder = recorder
        self._duration_ns, self._cooldown_ns = int(duration_s * 1e9), int(cooldown_s * 1e9)
        self._users = {}
        for user in range(users):
            replica = user % len(targets)
            connection = Connection(
                targets[replica], replica, timeout_s, recorder.keep, self._on_end
            )
            self._users[connection] = user

    async def open(self) -> None:
        await open_all(list(self._users))

    async def run(self, started_ns: int) -> None:
        self._stop_ns = started_ns + self._duration_ns
        self._n_active, self._done = len(self._users), asyncio.Event()
        self._recorder.work_later()
        for connection in self._users:
            self._send_next(connection, started_ns)
        await self._done.wait()

    def close(self) -> None:
        for connection in self._users:
            connection.close()

    def time_left_s(self, elapsed_s: float, n_ended: int) -> float:
        return self._duration_ns / 1e9 - elapsed_s

    def _send_next(self, connection: Connection, ready_ns: int) -> None:
        """Send a user's next request, or let the user go."""
        left_out = None
        if ready_ns >= self._stop_ns:
            is_over = ready_ns >= self._stop_ns + self._cooldown_ns
            if is_over or not self._recorder.n_in_flight:
                self._leave()
                return
            left_out = "cooldown"
        user = self._users[connection]
        connection.start(self._recorder.take(user, ready_ns, ready_ns, left_out))

    def _on_end(self, connection: Connection, exchange: Exchange) -> None:
        now_ns = exchange.ended_ns
        if exchange.status == "ok":
            self._send_next(connection, now_ns)
            return
        # Do not spin on a server that is gone or refuses.
        next_ns = now_ns + int(_PAUSE_AFTER_FAILURE_S * 1e9)
        if next_ns >= self._stop_ns:
            self._leave()  # a pause beyond the end would count as measured time
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(_PAUSE_AFTER_FAILURE_S, self._send_next, connection, next_ns)

    def _leave(self) -> None:
        self._n_active -= 1
        if not self._n_active:
            self._done.set()
