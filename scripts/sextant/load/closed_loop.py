"""Closed-loop load: n users, each sending its next request when the last has ended."""

import asyncio
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import pyarrow as pa
import uvloop

from sextant.load.client import Connection, Outcome, PreparedRequest, Target, prepare
from sextant.workload import RequestModel
from sextant.workload.prompts import random_token_ids

_SAMPLING = ("temperature", "top_k", "top_p")
_LAG_PERIOD_S = 0.01
_PAUSE_AFTER_FAILURE_S = 0.1
# Requests prepared before a level starts, per user; more are prepared when they run out.
_PREPARED_PER_USER = 8
_PREPARED_AT_LEAST = 64

SCHEMA = pa.schema(
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


@dataclass
class LevelResult:
    """What one level measured. Times are seconds since `epoch_ns` of the monotonic clock."""

    level: int
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


class RequestSource:
    """Draws requests from a workload and encodes them; the same seed gives the same bytes."""

    def __init__(self, target: Target, model: RequestModel, vocab_size: int, seed: int) -> None:
        self._target, self._model, self._vocab_size = target, model, vocab_size
        self._seeds = itertools.count(seed)
        self._ready: Iterator[PreparedRequest] = iter(())
        self.n_prepared_late = 0

    def prepare(self, n: int) -> None:
        """Encode the next `n` requests; requests of earlier calls are dropped."""
        self._ready = iter(self._encode(n))
        self.n_prepared_late = 0

    def take(self) -> PreparedRequest:
        """Return the next request."""
        request = next(self._ready, None)
        if request is None:
            self._ready = iter(self._encode(_PREPARED_AT_LEAST))
            request = next(self._ready)
            self.n_prepared_late += _PREPARED_AT_LEAST
        return request

    def _encode(self, n: int) -> list[PreparedRequest]:
        seed = next(self._seeds)
        drawn: pd.DataFrame = self._model.sample(n, seed=seed)
        prompts = random_token_ids(drawn["input_tokens"].to_numpy(), self._vocab_size, seed=seed)
        return [
            prepare(self._target, prompt, int(request["output_tokens"]), _sampling(request))
            for prompt, request in zip(prompts, drawn.to_dict("records"), strict=True)
        ]


def _sampling(request: Mapping[str, Any]) -> dict[str, float]:
    """Return how a request samples its tokens: greedy unless its parameters say otherwise."""
    if request.get("is_greedy") is True:
        return {}
    return {
        name: request[name].item() if hasattr(request[name], "item") else request[name]
        for name in _SAMPLING
        if name in request and not pd.isna(request[name])
    }


def unsent_parameters(model: RequestModel) -> list[str]:
    """Return the parameters of a workload that a request to the server cannot carry."""
    sent = {"input_tokens", "output_tokens", "is_greedy", *_SAMPLING}
    return [name for name in model.parameters if name not in sent]


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
    return uvloop.run(_run_level(target, source, users, duration_s, timeout_s, epoch_ns))


async def _run_level(target, source, users, duration_s, timeout_s, epoch_ns) -> LevelResult:
    connections = [Connection(target) for _ in range(users)]
    source.prepare(max(_PREPARED_AT_LEAST, _PREPARED_PER_USER * users))
    lags_ms: list[float] = []
    watch = asyncio.ensure_future(_watch_lag(lags_ms))
    started_ns = time.monotonic_ns()
    outcomes = await _send_until(started_ns + int(duration_s * 1e9), connections, source, timeout_s)
    ended_ns = time.monotonic_ns()
    watch.cancel()
    for connection in connections:
        connection.close()
    lag = pd.Series(lags_ms or [0.0])
    return LevelResult(
        level=users,
        rows=[_row(users, user, request, out, epoch_ns) for user, request, out in outcomes],
        started_s=(started_ns - epoch_ns) / 1e9,
        ended_s=(ended_ns - epoch_ns) / 1e9,
        n_prepared_late=source.n_prepared_late,
        client_lag_ms={
            "median": float(lag.median()),
            "p99": float(lag.quantile(0.99)),
            "max": float(lag.max()),
        },
    )


async def _send_until(stop_ns, connections, source, timeout_s):
    ended: list[tuple[int, PreparedRequest, Outcome]] = []

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


async def _watch_lag(lags_ms: list[float]) -> None:
    while True:
        due = time.monotonic() + _LAG_PERIOD_S
        await asyncio.sleep(_LAG_PERIOD_S)
        lags_ms.append(max(0.0, time.monotonic() - due) * 1e3)


def _row(level: int, user: int, request: PreparedRequest, outcome: Outcome, epoch_ns: int) -> dict:
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
