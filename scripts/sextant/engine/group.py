"""The servers of a cell: replicas that start, answer and end together."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sextant.engine.command import ServerSpec
from sextant.engine.vllm import Server
from sextant.experiment.engine_settings import EngineSettings


def replica_log(log_path: Path, number: int) -> Path:
    """Return where replica `number` logs; the first has the cell's own file."""
    return log_path.with_suffix(f".{number}{log_path.suffix}") if number else log_path


@contextmanager
def running_servers(
    specs: Sequence[ServerSpec], settings: EngineSettings, log_path: Path
) -> Iterator[list[Server]]:
    """Start a server per spec and yield them once all are healthy; end all of them.

    Servers on the same devices start one after another: each looks at the memory that is
    free while it starts.

    Raises:
        ServerError: one of them failed to start.
        InputError: the interpreter is missing.
    """
    servers = [
        Server(spec, settings, replica_log(log_path, number)) for number, spec in enumerate(specs)
    ]
    shares_devices = len({spec.device_indices for spec in specs}) < len(specs)
    pool = ThreadPoolExecutor(1 if shares_devices else len(specs))
    # Backwards, and each of them whatever happens in another, as by a signal that ends the job.
    with ExitStack() as stack:
        stack.callback(_stop, servers)  # one that was about to start when the others were stopped
        stack.callback(pool.shutdown)
        stack.callback(_stop, servers)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        starts = [pool.submit(server.__enter__) for server in servers]
        for start in as_completed(starts):
            start.result()
        yield servers


def _stop(servers: Sequence[Server]) -> None:
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
        for server in servers:
            server.let_go()  # all of them first: an end takes seconds
