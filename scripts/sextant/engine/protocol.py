"""What the benchmark needs of an engine, and of a server of it."""

import json
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sextant.base.errors import printable
from sextant.engine.http import GET_TIMEOUT_S, MOST_METRICS_BYTES, MetricNames, ServerAddress, get
from sextant.experiment.servers import EngineSettings
from sextant.facts.gpu import Devices
from sextant.points.verdict import MemoryFacts

_VERSION_PATHS = ("/version", "/get_server_info", "/info")  # where vLLM, SGLang and TGI say it
_MOST_LETTERS = 100
OTHER_FORM = (ValueError, KeyError, TypeError, RecursionError)
"""What reading raises where a server answers in another form than was expected."""


@dataclass(frozen=True)
class ServerSpec:
    """One server to start: an LLM on a GPU profile with a batch weight."""

    model: Path  # folder with `config.json`, and weights unless `load_format` is `dummy`
    load_format: str
    devices: Devices
    batch_weight_tokens: int
    kv_bytes_per_token: int
    max_request_tokens: int
    device_indices: tuple[int | str, ...]
    """Indices or UUIDs of the GPUs, or indices of the CPU cores, that the server may use."""
    seed: int
    memory_share: float = 1.0  # of the usable device memory; the rest is other servers'
    cpu_indices: tuple[int, ...] | None = None
    """CPU cores that the server may use; None for all, or on CPU cores for its devices."""
    memory_limit_gib: float | None = None  # of private host memory, for each of its processes
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


@dataclass
class RunningServer:
    """A server that answers `/v1/completions`: here, one that somebody else started."""

    target: ServerAddress
    command: list[str] | None = None  # the command that started it; None if somebody else did
    start_duration_s: float | None = None
    """Seconds from its command until it was healthy; None if somebody else started it."""
    batch_weight_tokens: int | None = None  # the most tokens in flight; None if unknown
    device_indices: tuple[int | str, ...] = ()  # its devices here, which telemetry watches
    pids: tuple[int, ...] = ()  # its processes on this machine, with all below them

    def version(self) -> str | None:
        """Return the engine's version, None if the server does not report it in time."""
        end_s = time.monotonic() + GET_TIMEOUT_S
        for path in _VERSION_PATHS:
            status, content = get(self.target, path, timeout_s=max(end_s - time.monotonic(), 0.01))
            if status == 200:
                with suppress(*OTHER_FORM):
                    said = json.loads(content)["version"]
                    if isinstance(said, str | int | float):
                        text = str(said).encode(errors="replace").decode()
                        return printable(text)[:_MOST_LETTERS]
        return None

    def is_healthy(self) -> bool:
        """Return whether the server answers without an error; it may have no `/health`."""
        status, _ = get(self.target, "/health")
        return status is not None and status < 500

    def metrics(self) -> str:
        """Return its Prometheus text, empty if it has none; OSError if it does not answer."""
        status, text = get(self.target, "/metrics", most_bytes=MOST_METRICS_BYTES)
        if status is None:
            raise ConnectionError(f"{self.target.base_url} does not answer")
        return text if status == 200 else ""

    def memory(self) -> MemoryFacts:
        """Return what is known of memory since this start."""
        return MemoryFacts()

    def stop_watching_memory(self) -> None:
        """Leave the server alone before its latencies are measured."""

    def error(self, message: str) -> ServerError:
        """Return the error for a server that failed: did it end for want of memory?"""
        return ServerError(f"{self.target.base_url}: {message}")


class Engine(Protocol):
    """What serves. A new engine is one file with a class like this, and one row in `registry`."""

    starts_servers: bool  # whether it does: then memory facts decide, and the batch weight is tuned
    metric_names: tuple[MetricNames, ...]  # what its servers may call their metrics

    def check(self, settings: EngineSettings, file: str | Path) -> list[str]:
        """Check a configuration's `engine`; return warnings. InputError: it cannot have that."""

    def serve(
        self, specs: Sequence[ServerSpec], settings: EngineSettings, log_path: Path
    ) -> AbstractContextManager[Sequence[RunningServer]]:
        """Return servers, one a spec (an engine that starts none gets no specs), that are ready
        when the context begins and have ended after it. The first logs to `log_path`, the others to
        `<stem>.<n><suffix>`. ServerError: one did not start; InputError: a setting is wrong."""
