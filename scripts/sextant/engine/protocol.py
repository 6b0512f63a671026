"""What the benchmark needs of an engine, and of a server of it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sextant.engine.http import MetricNames, Target
from sextant.experiment.servers import EngineSettings
from sextant.facts.gpu import Devices
from sextant.points.verdict import MemoryFacts


@dataclass(frozen=True)
class ServerSpec:
    """One server to start: an LLM on a GPU profile with a batch weight."""

    model: Path
    """Folder with `config.json`, and weights unless `load_format` is `dummy`."""
    load_format: str
    devices: Devices
    batch_weight_tokens: int
    kv_bytes_per_token: int
    max_request_tokens: int
    device_indices: tuple[int | str, ...]
    """Indices or UUIDs of the GPUs, or indices of the CPU cores, that the server may use."""
    seed: int
    memory_share: float = 1.0
    """Fraction of the usable device memory; the rest belongs to other servers on it."""
    cpu_indices: tuple[int, ...] | None = None
    """CPU cores that the server may use; None for all, or on CPU cores for its devices."""
    memory_limit_gib: float | None = None
    """Limit of the private host memory of each of the server's processes."""
    scratch: Path | None = None
    """Folder for its caches and temporary files (`scratch_folder`); None for the engine's own."""

    @property
    def cores(self) -> tuple[int, ...] | None:
        """The CPU cores the server is bound to, if it is to any."""
        if self.cpu_indices is None and self.devices.kind == "cpu":
            return tuple(int(index) for index in self.device_indices)
        return self.cpu_indices


class ServerError(RuntimeError):
    """A server did not start or died; the message ends with its last log lines, if it has a log."""

    def __init__(
        self,
        message: str,
        log: str = "",
        is_out_of_memory: bool = False,
        memory: MemoryFacts = MemoryFacts(),  # noqa: B008 (it is frozen)
    ) -> None:
        super().__init__(f"{message}; last lines of its log:\n{log}" if log else message)
        self.is_out_of_memory = is_out_of_memory
        self.memory = memory


class Server(Protocol):
    """A server that answers `/v1/completions`."""

    @property
    def target(self) -> Target:
        """Where and as what it is asked."""

    @property
    def command(self) -> list[str] | None:
        """The command that started it; None if somebody else did."""

    @property
    def start_duration_s(self) -> float | None:
        """Seconds from its command until it was healthy; None if somebody else started it."""

    @property
    def batch_weight_tokens(self) -> int | None:
        """The most tokens in flight; None if unknown."""

    @property
    def device_indices(self) -> tuple[int | str, ...]:
        """The devices of this machine that it uses, which telemetry watches."""

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of this machine that it consists of, with all below them."""

    def version(self) -> str | None:
        """Return the engine's version, None if the server does not report it."""

    def is_healthy(self) -> bool:
        """Return whether the server and the engine behind it can serve requests."""

    def metrics(self) -> str:
        """Return its Prometheus text, empty if it has none; raises `OSError` if it is gone."""

    def memory(self) -> MemoryFacts:
        """Return what is known of memory since this start."""

    def stop_watching_memory(self) -> None:
        """Leave the server alone before its latencies are measured."""

    def error(self, message: str) -> ServerError:
        """Return the error for a server that failed: did it end for want of memory?"""


class Engine(Protocol):
    """What serves. A new engine is one file with a class like this, and one row in `registry`."""

    @property
    def starts_servers(self) -> bool:
        """Whether it starts servers: then memory facts decide, and the batch weight is tuned."""

    @property
    def metric_names(self) -> tuple[MetricNames, ...]:
        """What its servers may call their metrics."""

    def check(self, settings: EngineSettings, file: str | Path) -> list[str]:
        """Check the `engine` part of a configuration; return warnings.

        Raises InputError: a setting that this engine cannot have.
        """

    def serve(
        self, specs: Sequence[ServerSpec], settings: EngineSettings, log_path: Path
    ) -> AbstractContextManager[Sequence[Server]]:
        """Return servers that are ready when the context begins and have ended after it.

        Args:
            specs: a server each to start; none for an engine that starts no servers.
            log_path: where the first server logs (the others: `<stem>.<n><suffix>`).

        Raises:
            ServerError: a server did not start, for want of memory or for another reason.
            InputError: a setting is wrong in a way that shows only now.
        """
