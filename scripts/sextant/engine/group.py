"""The servers of a cell: replicas that start, answer and end together."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol


class Startable(Protocol):
    """A server that starts and ends."""

    def start(self) -> None:
        """Start it; return when it is healthy."""

    def let_go(self) -> None:
        """Have it end, which takes it a moment."""

    def stop(self) -> None:
        """End it; return when no process of it is left."""


def replica_log(log_path: Path, number: int) -> Path:
    """Return where replica `number` logs; the first has the cell's own file."""
    return log_path.with_suffix(f".{number}{log_path.suffix}") if number else log_path


@contextmanager
def running(servers: Sequence[Startable], one_by_one: bool) -> Iterator[None]:
    """Start servers; enter the context once all are healthy; end all of them after it.

    With `one_by_one` each starts when the one before it is healthy.

    Raises:
        ServerError: one of them failed to start.
        InputError: the interpreter is missing.
    """
    pool = ThreadPoolExecutor(1 if one_by_one else len(servers))
    # Backwards, and each of them whatever happens in another, as by a signal that ends the job.
    with ExitStack() as stack:
        stack.callback(_stop, servers)  # one that was about to start when the others were stopped
        stack.callback(pool.shutdown)
        stack.callback(_stop, servers)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        starts = [pool.submit(server.start) for server in servers]
        for start in as_completed(starts):
            start.result()
        yield


def _stop(servers: Sequence[Startable]) -> None:
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
        for server in servers:
            server.let_go()  # all of them first: an end takes seconds
