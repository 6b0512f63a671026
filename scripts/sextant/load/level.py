"""A level of load, whatever its scenario: its rows, its clock and its client's lag."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pandas as pd
import pyarrow as pa
import uvloop

from sextant.load.client import Outcome, PreparedRequest
from sextant.load.source import RequestSource

_LAG_PERIOD_S = 0.01

REQUEST_SCHEMA = pa.schema(
    [
        pa.field("level", pa.int32()),
        pa.field("user", pa.int32()),
        pa.field("scheduled_s", pa.float64()),
        pa.field("sent_s", pa.float64()),
        pa.field("first_token_s", pa.float64()),
        pa.field("last_token_s", pa.float64()),
        pa.field("token_offsets_ms", pa.list_(pa.float32())),
        pa.field("input_tokens", pa.int32()),
        pa.field("output_tokens", pa.int32()),
        pa.field("requested_input_tokens", pa.int32()),
        pa.field("requested_output_tokens", pa.int32()),
        pa.field("status", pa.string()),
        pa.field("error", pa.string()),
    ]
)


Ended = tuple[int, PreparedRequest, Outcome]
"""Who sent a request (the user, or its place in the schedule), the request, what became of it."""


@dataclass
class LevelResult:
    """What one level measured. Times are seconds since `epoch_ns` of the monotonic clock."""

    level: int | None
    """Users, or the size of the batch; null for a schedule, which the run's provenance has."""
    rows: list[dict]
    started_s: float
    """First measured request was sent."""
    ended_s: float
    """The last measured request ended."""
    n_prepared_late: int
    """Requests encoded while the clock ran, because the prepared ones had run out."""
    client_lag_ms: dict[str, float] = field(default_factory=dict)
    """How late the client's own event loop was, median, p99 and maximum."""

    @property
    def duration_s(self) -> float:
        """Measured wall time, from the first measured send to the last measured end."""
        return self.ended_s - self.started_s


def run_level(
    level: int | None,
    source: RequestSource,
    n_prepared: int,
    send: Callable[[int], Awaitable[list[Ended]]],
    epoch_ns: int,
) -> LevelResult:
    """Prepare requests, then put load on a server by `send`, which gets the starting time (ns)."""
    source.prepare(n_prepared)
    return uvloop.run(_run_level(level, source, send, epoch_ns))


async def _run_level(level, source, send, epoch_ns) -> LevelResult:
    lags_ms: list[float] = []
    watch = asyncio.ensure_future(_watch_lag(lags_ms))
    started_ns = time.monotonic_ns()
    ended = await send(started_ns)
    ended_ns = time.monotonic_ns()
    watch.cancel()
    lag = pd.Series(lags_ms or [0.0])
    return LevelResult(
        level=level,
        rows=[_row(level, user, request, out, epoch_ns) for user, request, out in ended],
        started_s=(started_ns - epoch_ns) / 1e9,
        ended_s=(ended_ns - epoch_ns) / 1e9,
        n_prepared_late=source.n_prepared_late,
        client_lag_ms={
            "median": float(lag.median()),
            "p99": float(lag.quantile(0.99)),
            "max": float(lag.max()),
        },
    )


async def _watch_lag(lags_ms: list[float]) -> None:
    while True:
        due = time.monotonic() + _LAG_PERIOD_S
        await asyncio.sleep(_LAG_PERIOD_S)
        lags_ms.append(max(0.0, time.monotonic() - due) * 1e3)


def _row(
    level: int | None, user: int, request: PreparedRequest, outcome: Outcome, epoch_ns: int
) -> dict:
    times_ns = outcome.token_times_ns
    return {
        "level": level,
        "user": user,
        "scheduled_s": (outcome.scheduled_ns - epoch_ns) / 1e9,
        "sent_s": (outcome.sent_ns - epoch_ns) / 1e9 if outcome.sent_ns else None,
        "first_token_s": (times_ns[0] - epoch_ns) / 1e9 if times_ns else None,
        "last_token_s": (times_ns[-1] - epoch_ns) / 1e9 if times_ns else None,
        "token_offsets_ms": [(at - outcome.sent_ns) / 1e6 for at in times_ns],
        "input_tokens": outcome.input_tokens,
        "output_tokens": outcome.output_tokens,
        "requested_input_tokens": request.input_tokens,
        "requested_output_tokens": request.output_tokens,
        "status": outcome.status,
        "error": outcome.error,
    }
