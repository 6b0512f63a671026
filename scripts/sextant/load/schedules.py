"""Closed-loop load (n users, one request each at a time) and open-loop load (requests when due)."""

import asyncio
import resource
import time
from array import array
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sextant.base.errors import InputError
from sextant.load.client import Connection, Exchange, open_all
from sextant.load.measure import Alarm, LevelResult, LoadRun, LoadTargets
from sextant.load.source import PreparedRequest, RequestSource
from sextant.workload.requests import Turns

_PAUSE_AFTER_FAILURE_S = 0.1
# Requests prepared before a level starts; more are prepared while it runs.
_PREPARED_PER_USER = 8
_PREPARED_AT_LEAST = 64
# Most connections opened before the clock starts; others are opened when they are needed.
_MOST_OPENED = 256
# What a level needs beside its connections: the event loop, timers, the telemetry's pipes.
_OWN_DESCRIPTORS = 16
# Servers close idle connections (uvicorn after 5 s): after a longer rest a new one is opened.
_MOST_IDLE_NS = 2_000_000_000
# Requests due in the first second are prepared before the clock starts, and at least 512.
_FIRST_S = 1.0
_PREPARED_FOR_SCHEDULE = 512


def run_closed_loop(
    targets: LoadTargets,
    source: RequestSource,
    users: int,
    duration_s: float,
    *,
    cooldown_s: float = 0.0,
) -> LevelResult:
    """Load replicas with `users` concurrent users; user i sends to replica i modulo their number.

    Requests that start within `duration_s` are measured and run to their end: choose a duration
    much longer than one request. Until the last measured request has ended, for `cooldown_s` at
    most, users go on to send requests that are not measured.
    """
    _check_descriptors(users)
    source.prepare(max(_PREPARED_AT_LEAST, _PREPARED_PER_USER * users))

    load = _ClosedLoop(targets, source)
    n_replicas = len(targets.addresses)
    load.users = {load.connection(user % n_replicas): user for user in range(users)}
    load.duration_ns = int(duration_s * 1e9)
    load.cooldown_ns = int(cooldown_s * 1e9)
    return load.measure(users)


def _check_descriptors(n_connections: int) -> None:
    """Raise InputError if the hard limit on open files is too low for a level."""
    n_open = len(list(Path("/proc/self/fd").iterdir()))
    n_needed = n_open + n_connections + _OWN_DESCRIPTORS
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and n_needed > most:
        needed = f"a level of {n_connections} connections needs about {n_needed} file descriptors"
        problem = f"{needed}, the limit of this process is {most} (RLIMIT_NOFILE)"
        fix = f"raise it (`ulimit -n {n_needed}`, by root or in limits.conf), or lower the level"
        raise InputError(problem, field="levels", fix=fix)


class _ClosedLoop(LoadRun):
    users: dict[Connection, int]
    duration_ns: int
    cooldown_ns: int

    async def open(self) -> None:
        await open_all(list(self.users))

    async def run(self, started_ns: int) -> None:
        self._stop_ns = started_ns + self.duration_ns
        self._n_active, self._done = len(self.users), asyncio.Event()
        self.work_later()
        for connection in self.users:
            self._send_next(connection, started_ns)
        await self._done.wait()

    def close(self) -> None:
        for connection in self.users:
            connection.close()

    def _send_next(self, connection: Connection, ready_ns: int) -> None:
        """Send a user's next request, or let the user go."""
        left_out = None
        if ready_ns >= self._stop_ns:
            is_over = ready_ns >= self._stop_ns + self.cooldown_ns
            if is_over or not self.n_in_flight:
                self._leave()
                return
            left_out = "cooldown"
        connection.start(self.take(self.users[connection], ready_ns, ready_ns, left_out))

    def on_end(self, connection: Connection, exchange: Exchange) -> None:
        now_ns = exchange.times.ended_ns
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


@dataclass(frozen=True)
class ArrivalSchedule:
    """When requests of an open loop are due, and which of them are measured."""

    arrival_s: np.ndarray  # (n_requests,) seconds from the start, ascending
    warmup_s: float = 0.0  # a request that is due earlier is sent but not measured
    duration_s: float | None = None
    """Measured time after the warm-up; later requests are sent but not measured. None: no end."""
    max_in_flight: int | None = None  # further requests wait until one has ended; None: no limit
    turns: Turns | None = None
    """Requests that wait for the answer to another one. They are measured as `arrival_s` says, and
    are not sent if that answer fails."""

    @property
    def measured_s(self) -> tuple[float, float]:
        """First and last moment in which a request that is due is measured."""
        end_s = np.inf if self.duration_s is None else self.warmup_s + self.duration_s
        return self.warmup_s, end_s

    @property
    def most_under_way(self) -> int:
        """The most requests that may be under way at once."""
        return self.max_in_flight or len(self.arrival_s)


def run_open_loop(
    targets: LoadTargets, source: RequestSource, schedule: ArrivalSchedule, level: float = 0.0
) -> LevelResult:
    """Send each request when it is due.

    A row's `user` is the request's index in the schedule; request i goes to replica i modulo the
    number of replicas. Latencies count from when a request was due (`scheduled_s`), so neither a
    late client nor a queue hides waiting. When the last measured request has ended, nothing more is
    sent. Level 0 stands for no level.
    """
    arrivals = np.asarray(schedule.arrival_s, float)
    # Connections that are opened before the clock starts, or all that are due at 0.
    n_at_once = max(int(np.count_nonzero(arrivals <= 0)), min(len(arrivals), _MOST_OPENED))
    _check_descriptors(min(n_at_once, schedule.max_in_flight or n_at_once))

    roots = None if schedule.turns is None else np.flatnonzero(schedule.turns.parent < 0).tolist()
    firsts = arrivals if roots is None else arrivals[roots]
    n_first = int(np.searchsorted(firsts, _FIRST_S, side="right"))
    n_ahead = min(len(firsts), max(_PREPARED_FOR_SCHEDULE, n_first))
    source.prepare(n_ahead, len(firsts), roots)

    load = _OpenLoop(targets, source)
    if schedule.turns is not None:
        load = _Sessions(targets, source)
        load.turns = schedule.turns
    load.follow(schedule, arrivals)
    return load.measure(level, schedule.warmup_s)


class _OpenLoop(LoadRun):
    """A schedule of requests, and the connections that they share."""

    def follow(self, schedule: ArrivalSchedule, arrivals: np.ndarray) -> None:
        """Take the schedule; `arrivals` are its times as floats."""
        self._after_start_ns = np.rint(arrivals * 1e9).astype(np.int64)
        self._first, self._last = np.searchsorted(arrivals, schedule.measured_s).tolist()
        self._indices: Sequence[int] = range(len(arrivals))  # in the order of sending
        # Since when each slot that the limit allows has been free; without one, a slot a request.
        self._slots_ns = deque([0] * schedule.most_under_way)
        self._is_limited = schedule.max_in_flight is not None
        self._idle: list[list[Connection]] = [[] for _ in self.addresses]
        self._n_under_way = self._next = 0
        self._is_sending_soon = False

    async def open(self) -> None:
        n_opened = min(len(self._after_start_ns), len(self._slots_ns), _MOST_OPENED)
        opened = [self.connection(index % len(self.addresses)) for index in range(n_opened)]
        await open_all(opened)
        for connection in opened:
            self._idle[connection.replica].append(connection)

    async def run(self, started_ns: int) -> None:
        self._due_ns = array("q", (self._after_start_ns + started_ns).tobytes())
        self._done, self._alarm = asyncio.Event(), Alarm(self._send_due)
        self.work_later()
        self._send_due()
        await self._done.wait()
        self._alarm.close()

    def close(self) -> None:
        for connections in self._idle:
            for connection in connections:
                connection.close()

    def _send_due(self) -> None:
        """Send one request if it is due and the limit allows; see that the rest goes in time."""
        if self._slots_ns and not self._is_over():
            due_ns = self._due_ns[self._next]
            if due_ns > time.monotonic_ns():
                self._alarm.set(due_ns)
                return
            self._send(due_ns)
            if not self._is_sending_soon:
                self._is_sending_soon = True
                # After a look at the sockets, so that what arrives is stamped.
                asyncio.get_running_loop().call_soon(self._send_more)
        if self._is_over() and not self._n_under_way:
            self._done.set()

    def _send_more(self) -> None:
        self._is_sending_soon = False
        if not self._done.is_set():
            self._send_due()

    def _is_over(self) -> bool:
        """Whether nothing is left to send: a cool-down ends with the last measured request."""
        is_late = self._next >= self._last and not self.n_in_flight
        return is_late or self._next >= len(self._due_ns)

    def _send(self, due_ns: int) -> None:
        index = self._indices[self._next]
        self._next += 1
        left_out = None
        if not self._first <= index < self._last:
            left_out = "warmup" if index < self._first else "cooldown"
        ready_ns = max(due_ns, self._slots_ns.popleft())
        exchange = self.take(index, due_ns, ready_ns, left_out)
        self._n_under_way += 1
        idle = self._idle[index % len(self.addresses)]
        if idle and time.monotonic_ns() - idle[-1].idle_since_ns >= _MOST_IDLE_NS:
            while idle:  # connections below it rested even longer
                idle.pop().close()
        connection = idle.pop() if idle else self.connection(index % len(self.addresses))
        connection.start(exchange)

    def on_end(self, connection: Connection, exchange: Exchange) -> None:
        if self._is_limited:
            self._slots_ns.append(exchange.times.ended_ns)
        self._n_under_way -= 1
        self._idle[connection.replica].append(connection)
        self._send_due()


class _Sessions(_OpenLoop):
    """A schedule to which turns are added when the answers that they wait for were judged."""

    turns: Turns

    async def open(self) -> None:
        parent = self.turns.parent
        session = self.turns.session
        roots = np.flatnonzero(parent < 0)
        self._after_start_ns = self._after_start_ns[roots]
        self._indices = self._order = roots.tolist()
        self._think_ns = np.rint(self.turns.think_s * 1e9).astype(np.int64).tolist()
        self._waiting = defaultdict[int, list[int]](list)
        for turn in np.flatnonzero(parent >= 0).tolist():
            self._waiting[int(parent[turn])].append(turn)
        self._encoded = dict[int, PreparedRequest]()  # encoded while a user thinks
        # Requests that were neither sent nor given up: all, and the measured ones.
        self._n_left = len(parent)
        self._n_measured_left = self._last - self._first
        self.sessions = {
            "n_sessions": len(np.unique(session[session >= 0])),
            "n_turns": self._n_left - len(roots),
            "n_not_sent": 0,
        }
        await super().open()

    def _send_due(self) -> None:
        if self._next < len(self._due_ns) or self._is_over():
            super()._send_due()

    def _is_over(self) -> bool:
        return not self._n_left or not (self._n_measured_left or self.n_in_flight)

    def _leave(self, index: int) -> None:
        self._n_left -= 1
        self._n_measured_left -= self._first <= index < self._last

    def take(
        self, user: int, scheduled_ns: int, ready_ns: int, left_out: str | None = None
    ) -> Exchange:
        """Return the exchange of the request with this index."""
        self._leave(user)
        if turn := self._encoded.pop(user, None):
            self._source.put_first(turn)
        return super().take(user, scheduled_ns, ready_ns, left_out)

    def _judge(self, exchange: Exchange) -> None:
        super()._judge(exchange)
        turns = self._waiting.pop(exchange.user, [])
        if exchange.status == "ok":
            for turn in turns:
                self._encoded[turn] = self._source.one(turn)
                due_ns = exchange.times.ended_ns + self._think_ns[turn]
                at = bisect_right(self._due_ns, due_ns, self._next)
                self._due_ns.insert(at, due_ns)
                self._order.insert(at, turn)
            return
        while turns:  # and the turns that wait for these
            turn = turns.pop()
            self._leave(turn)
            self.sessions["n_not_sent"] += 1
            turns += self._waiting.pop(turn, [])

    def _work(self) -> None:
        super()._work()
        if not self._done.is_set():
            self._send_due()
