"""The requests that ended: rows of a file without a name, which ends with this process.

So what a load keeps in memory does not grow with its duration: statistics are taken in pieces.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sextant.base.errors import InputError
from sextant.load.client import Exchange

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTH_BYTES = 4
_MOST_TOKENS, _MOST_ROWS = 1 << 20, 1 << 15  # of a piece: 4 MiB of times
_MOST_SORTED = 1 << 21  # values in memory
_COLUMNS = (
    *("request_id", "replica", "user", "scheduled_s", "sent_s", "first_token_s", "last_token_s"),
    *("input_tokens", "output_tokens", "requested_input_tokens", "requested_output_tokens"),
    *("status", "error"),
)


class RequestLog:
    """Requests that have ended, in the order in which they were added."""

    def __init__(self) -> None:
        # Closed with the last reference.
        self._file = tempfile.TemporaryFile(buffering=1 << 18)  # noqa: SIM115
        self.n_ok = self.n_failed = self.n_tokens = 0  # requests, and output tokens of good answers
        self.oddities: Counter[str] = Counter()  # of good answers (constants of `answer`)
        self.failures: Counter[str] = Counter()  # by HTTP status, or what else they were
        self.first_failure: str | None = None

    def add(self, exchange: Exchange) -> None:
        """Keep a request's outcome. Raises InputError if the disk is full."""
        if exchange.status == "ok":
            self.n_ok += 1
            self.n_tokens += exchange.output_tokens or 0
            self.oddities.update(exchange.oddities)
        else:
            self.n_failed += 1
            is_http = exchange.status == "http_error"
            kind = f"HTTP {exchange.http_status}" if is_http else exchange.status.replace("_", " ")
            self.failures[kind] += 1
            self.first_failure = self.first_failure or exchange.error
        request = exchange.request
        row = (
            *(request.request_id, exchange.replica, exchange.user),
            *(exchange.scheduled_ns, exchange.sent_ns),
            *(exchange.first_token_ns, exchange.last_token_ns),
            *(exchange.input_tokens, exchange.output_tokens),
            *(request.input_tokens, request.output_tokens),
            *(exchange.status, exchange.error, exchange.token_offsets_ms.tobytes()),
        )
        data = msgspec.msgpack.encode(row)
        with _naming_place():
            self._file.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)

    def _pieces(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield rows, some thousands at once; times in ns, the tokens' times as bytes last."""
        with _naming_place():
            self._file.seek(0)
        rows = list[tuple[Any, ...]]()
        n_tokens = 0
        while length := self._file.read(_LENGTH_BYTES):
            data = self._file.read(int.from_bytes(length, "little"))
            rows.append(msgspec.msgpack.decode(data, type=tuple))
            n_tokens += len(rows[-1][-1]) // 4
            if n_tokens >= _MOST_TOKENS or len(rows) >= _MOST_ROWS:
                yield rows
                rows = []
                n_tokens = 0
        if rows:
            yield rows

    def batches(self, level: float, epoch_ns: int) -> Iterator["pa.RecordBatch"]:
        """Yield the rows by `points.cell_files.REQUEST_SCHEMA`, in seconds since `epoch_ns`."""
        # Arrow reads JSON without pandas, which it imports to make a column of a list.
        from sextant.engine.watcher import read_gauge_rows
        from sextant.points.cell_files import REQUEST_SCHEMA

        for rows in self._pieces():
            lines = bytearray()
            for *values, offsets in rows:
                row: dict[str, Any] = dict(zip(_COLUMNS, values, strict=True))
                for name in (name for name in _COLUMNS if name.endswith("_s")):
                    row[name] = (row[name] - epoch_ns) / 1e9 if row[name] else None
                row["token_offsets_ms"] = np.frombuffer(offsets, np.float32).tolist()
                lines += msgspec.json.encode(row) + b"\n"
            yield from read_gauge_rows(bytes(lines), REQUEST_SCHEMA, level).to_batches()

    def latencies(self, *, is_due: bool) -> Iterator[dict[str, np.ndarray]]:
        """Yield the latencies of good answers in ms, as `points.metrics` has them, piece by piece:
        `itl_ms` of all gaps, NaN of what an answer does not have. With `is_due` they count from
        when requests were due, else from when they were sent."""
        for rows in self._pieces():
            good = [row for row in rows if row[-3] == "ok"]
            times_ns = np.array([row[3:7] for row in good], np.int64).reshape(-1, 4)
            n_in, n_out = np.array([row[7:9] for row in good], float).reshape(-1, 2).T
            start_ns = times_ns[:, 0 if is_due else 1]
            ttft_ms, e2e_ms = ((times_ns[:, end] - start_ns) / 1e6 for end in (2, 3))
            offsets_ms = np.frombuffer(b"".join(row[-1] for row in good), np.float32)
            answer = np.repeat(np.arange(len(good)), [len(row[-1]) // 4 for row in good])
            gaps_ms = np.diff(offsets_ms.astype(float))
            yield {
                "ttft_ms": ttft_ms,
                "nttft_ms": ttft_ms / n_in,
                "itl_ms": gaps_ms[answer[1:] == answer[:-1]],
                "tpot_ms": (e2e_ms - ttft_ms) / np.where(n_out > 1, n_out - 1, np.nan),
                "e2e_ms": e2e_ms,
            }

    def statistics(
        self, name: str, fractions: Mapping[str, float], *, is_due: bool
    ) -> dict[str, float | None]:
        """Return the mean and the named quantiles of one of the `latencies`, None without any; of
        more than two million tokens those of a random sample of so many."""
        rng = np.random.default_rng(0)
        kept = list[np.ndarray]()
        total = 0.0
        n = 0
        share = min(1.0, _MOST_SORTED / max(1, self.n_tokens))
        for values in self.latencies(is_due=is_due):
            known = values[name][~np.isnan(values[name])]
            total = total + float(np.sum(known))
            n = n + len(known)
            kept.append(known[rng.random(len(known)) < share] if share < 1 else known)
        if n == 0:
            return dict.fromkeys(("mean", *fractions))
        found = np.quantile(np.concatenate(kept), [*fractions.values()]).tolist()
        return {"mean": total / n, **dict(zip(fractions, found, strict=True))}


@contextmanager
def _naming_place() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"no room for the requests that ended ({error.strerror})"
        fix = "set TMPDIR to a folder with more"
        raise InputError(problem, file=tempfile.gettempdir(), fix=fix) from None
