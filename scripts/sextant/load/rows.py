"""The requests that ended: rows of a temporary file, which is gone when this process ends.

Memory does not grow with the duration of a load: rows are written and read in pieces.
"""

import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from sextant.base.errors import InputError
from sextant.load.client import Exchange
from sextant.load.quantiles import exact_statistics

if TYPE_CHECKING:
    import pyarrow as pa

_LENGTH_BYTES = 4
_MOST_TOKENS, _MOST_ROWS = 1 << 16, 1 << 13
"""Of a piece of the rows, which takes about 6 MB when it is read."""


class _Row(NamedTuple):
    """A request that ended, as the file holds it. Times are of the monotonic clock; 0: none."""

    request_id: str
    replica: int
    user: int
    scheduled_ns: int
    sent_ns: int
    first_token_ns: int
    last_token_ns: int
    input_tokens: int | None
    output_tokens: int | None
    requested_input_tokens: int
    requested_output_tokens: int
    status: str
    error: str | None
    token_offsets_ms: bytes  # float32

    @property
    def n_tokens(self) -> int:
        """Output tokens that have a time."""
        return len(self.token_offsets_ms) // 4


_decode_row = msgspec.msgpack.Decoder(_Row).decode


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
            http_status = exchange.head.http_status
            kind = f"HTTP {http_status}" if is_http else exchange.status.replace("_", " ")
            self.failures[kind] += 1
            self.first_failure = self.first_failure or exchange.error
        request = exchange.request
        times = exchange.times
        row = _Row(
            request_id=request.request_id,
            replica=exchange.replica,
            user=exchange.user,
            scheduled_ns=times.scheduled_ns,
            sent_ns=times.sent_ns,
            first_token_ns=times.first_token_ns,
            last_token_ns=times.last_token_ns,
            input_tokens=exchange.input_tokens,
            output_tokens=exchange.output_tokens,
            requested_input_tokens=request.input_tokens,
            requested_output_tokens=request.output_tokens,
            status=exchange.status,
            error=exchange.error,
            token_offsets_ms=exchange.token_offsets_ms.tobytes(),
        )
        data = msgspec.msgpack.encode(row)
        with _naming_folder():
            self._file.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)

    def _pieces(self) -> Iterator[list[_Row]]:
        """Yield the rows, some thousands at once."""
        with _naming_folder():
            self._file.seek(0)
        rows = list[_Row]()
        n_tokens = 0
        while length := self._file.read(_LENGTH_BYTES):
            data = self._file.read(int.from_bytes(length, "little"))
            rows.append(_decode_row(data))
            n_tokens += rows[-1].n_tokens
            if n_tokens >= _MOST_TOKENS or len(rows) >= _MOST_ROWS:
                yield rows
                rows = []
                n_tokens = 0
        if rows:
            yield rows

    def batches(self, level: float, epoch_ns: int) -> Iterator["pa.RecordBatch"]:
        """Yield the rows by `points.cell_files.REQUEST_SCHEMA`, in seconds since `epoch_ns`."""
        # As JSON, since Arrow imports pandas to make a column of lists.
        from sextant.engine.watcher import read_gauge_rows
        from sextant.points.cell_files import REQUEST_SCHEMA

        for rows in self._pieces():
            lines = bytearray()
            for row in rows:
                columns: dict[str, Any] = row._asdict()
                for name in ("scheduled", "sent", "first_token", "last_token"):
                    at_ns = columns.pop(f"{name}_ns")
                    columns[f"{name}_s"] = (at_ns - epoch_ns) / 1e9 if at_ns else None
                columns["token_offsets_ms"] = np.frombuffer(
                    row.token_offsets_ms, np.float32
                ).tolist()
                lines += msgspec.json.encode(columns) + b"\n"
            yield from read_gauge_rows(bytes(lines), REQUEST_SCHEMA, level).to_batches()

    def latencies(self, *, is_due: bool) -> Iterator[dict[str, np.ndarray]]:
        """Yield the latencies of good answers in ms, by the names of `points.metrics`, in pieces.

        `itl_ms` has all gaps between tokens, the others a value per answer: NaN where it has none.
        With `is_due` they count from when requests were due, else from when they were sent.
        """
        for rows in self._pieces():
            good = [row for row in rows if row.status == "ok"]
            starts_ns = [row.scheduled_ns if is_due else row.sent_ns for row in good]
            start_ns = np.array(starts_ns, np.int64)
            ttft_ms = (np.array([row.first_token_ns for row in good], np.int64) - start_ns) / 1e6
            e2e_ms = (np.array([row.last_token_ns for row in good], np.int64) - start_ns) / 1e6
            n_in = np.array([row.input_tokens for row in good], float)
            n_out = np.array([row.output_tokens for row in good], float)
            offsets_ms = np.frombuffer(b"".join(row.token_offsets_ms for row in good), np.float32)
            answer = np.repeat(np.arange(len(good)), [row.n_tokens for row in good])
            gaps_ms = np.diff(offsets_ms.astype(float))
            yield {
                "ttft_ms": ttft_ms,
                "nttft_ms": ttft_ms / n_in,
                "itl_ms": gaps_ms[answer[1:] == answer[:-1]],
                "tpot_ms": (e2e_ms - ttft_ms) / np.where(n_out > 1, n_out - 1, np.nan),
                "e2e_ms": e2e_ms,
            }

    def statistics(
        self, names: Collection[str], fractions: Mapping[str, float], *, is_due: bool
    ) -> dict[str, dict[str, float | None]]:
        """Return mean and named quantiles of some of the `latencies`; None without values."""
        return exact_statistics(lambda: self.latencies(is_due=is_due), names, fractions)


@contextmanager
def _naming_folder() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        problem = f"no room for the requests that ended ({error.strerror})"
        fix = "set TMPDIR to a folder with more"
        raise InputError(problem, file=tempfile.gettempdir(), fix=fix) from None
