"""Closed-loop load: n users, each sending its next request when the last has ended."""

import asyncio
import time

from sextant.load.client import Connection, Target
from sextant.load.level import Ended, LevelResult, run_level
from sextant.load.source import PREPARED_AT_LEAST, RequestSource

_PAUSE_AFTER_FAILURE_S = 0.1
# Requests prepared before a level starts, per user; more are prepared when they run out.
_PREPARED_PER_USER = 8


def run_closed_loop(
    target: Target,
    source: RequestSource,
    users: int,
    duration_s: float,
    timeout_s: float,
    epoch_ns: int,
) -> LevelResult:
    """Load a server with `users` concurrent users; no user starts a request after `duration_s`.

    Requests in flight then run to their end, so every row is a whole request and output
    tokens over `LevelResult.duration_s` is the throughput. The ramp-down counts: make
    `duration_s` long against one request.
    """

    async def send(started_ns: int) -> list[Ended]:
        connections = [Connection(target) for _ in range(users)]
        stop_ns = started_ns + int(duration_s * 1e9)
        ended = await _send_until(stop_ns, connections, source, timeout_s)
        for connection in connections:
            connection.close()
        return ended

    n_prepared = max(PREPARED_AT_LEAST, _PREPARED_PER_USER * users)
    return run_level(users, source, n_prepared, send, epoch_ns)


async def _send_until(stop_ns, connections, source, timeout_s):
    ended: list[Ended] = []

    async def user_loop(user: int, connection: Connection) -> None:
        while (scheduled_ns := time.monotonic_ns()) < stop_ns:
            request = source.take()
            outcome = await connection.send(request, scheduled_ns, timeout_s)
            ended.append((user, request, outcome))
            if outcome.status != "ok":  # do not spin on a server that is gone or refuses
                if time.monotonic_ns() + _PAUSE_AFTER_FAILURE_S * 1e9 >= stop_ns:
                    return  # a pause beyond the end would count as measured time
                await asyncio.sleep(_PAUSE_AFTER_FAILURE_S)

    await asyncio.gather(*(user_loop(*pair) for pair in enumerate(connections)))
    return ended
