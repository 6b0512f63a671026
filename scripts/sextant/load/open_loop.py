"""Open-loop load: requests are sent when they are due, whatever became of those before.

Latency-critical inference is an arrival process, best effort the same with all arrivals at
once (Papaioannou and Doudali; BurstGPT, IV-C).
"""

import asyncio
import time

import numpy as np

from sextant.load.client import Connection, PreparedRequest, Target
from sextant.load.level import Ended, LevelResult, run_level
from sextant.load.source import RequestSource


def run_open_loop(
    target: Target,
    source: RequestSource,
    arrival_s: np.ndarray,
    timeout_s: float,
    epoch_ns: int,
    level: int | None = None,
) -> LevelResult:
    """Send one request at each of `arrival_s`, seconds from the start in ascending order.

    No request waits for another: each takes a connection that is free or opens one. A row's
    `user` is the request's place in the schedule, and `scheduled_s` when it was due: latencies
    of an open loop count from there, so that a client that is late hides nothing.
    """

    async def send(started_ns: int) -> list[Ended]:
        idle: list[Connection] = []

        async def send_one(place: int, due_ns: int, request: PreparedRequest) -> Ended:
            connection = idle.pop() if idle else Connection(target)
            outcome = await connection.send(request, due_ns, timeout_s)
            idle.append(connection)
            return place, request, outcome

        tasks = []
        schedule_ns = started_ns + np.rint(np.asarray(arrival_s) * 1e9).astype(np.int64)
        for place, due_ns in enumerate(schedule_ns.tolist()):
            request = source.take()
            # The loop's timers have whole milliseconds and may end early; nothing is sent early.
            while (wait_s := (due_ns - time.monotonic_ns()) / 1e9) > 0:
                await asyncio.sleep(wait_s)
            tasks.append(asyncio.ensure_future(send_one(place, due_ns, request)))
        ended = list(await asyncio.gather(*tasks))
        for connection in idle:
            connection.close()
        return ended

    return run_level(level, source, len(arrival_s), send, epoch_ns)
