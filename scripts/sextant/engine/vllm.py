"""vLLM: its servers' start and certain end, and what they say when they fail."""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from sextant import PROJECT
from sextant.base.errors import InputError
from sextant.base.network import remove_key, reserve_port, without_keys
from sextant.base.scratch import share
from sextant.engine.devices import FreeMemory, gpus, limited_processes, n_oom_kills
from sextant.engine.http import VLLM_METRICS, MetricNames, Target, fetch, get
from sextant.engine.protocol import ServerError, ServerSpec
from sextant.engine.vllm_command import (
    MODEL_NAME,
    check_extra_arguments,
    command,
    environment,
    failed_allocation,
    is_disk_full,
    killed_sign,
    out_of_memory_sign,
    profiled_blocks,
)
from sextant.experiment.servers import EngineSettings
from sextant.facts.gpu import GIB
from sextant.points.verdict import MemoryFacts

LOG_TAIL_LINES = 20
# Run by its path: it needs nothing of this package, which need not be installed.
KEEPER = PROJECT / "scripts/sextant/base/keeper.py"
# A server that has just failed a request needs a moment to end and to log why.
_SETTLE_S = 2.0
# Less than a thread's stack: what fails with so little left, in whatever words, lacked memory.
_USED_UP_BYTES = 8 * 2**20


@dataclass
class VLLMServer:
    """A vLLM server that is running; use it as a context manager so that it always ends."""

    spec: ServerSpec
    settings: EngineSettings
    log_path: Path
    _held_port: socket.socket = field(default_factory=reserve_port, repr=False)
    api_key: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)
    _keeper: subprocess.Popen[bytes] | None = field(default=None, repr=False)
    _log: BinaryIO = field(init=False, repr=False)
    _free: FreeMemory | None = None
    _idle_free_bytes: int | None = None
    _is_stopped: bool = False
    _n_oom_kills: int | None = None
    started_s: float = 0.0
    start_duration_s: float = 0.0

    def __post_init__(self) -> None:
        self.port: int = self._held_port.getsockname()[1]

    @property
    def target(self) -> Target:
        """Its address on loopback, and the key that it asks for."""
        return Target(f"http://127.0.0.1:{self.port}", MODEL_NAME, self.api_key)

    @property
    def command(self) -> list[str]:
        """The exact command line."""
        return command(self.spec, self.settings, self.port)

    @property
    def batch_weight_tokens(self) -> int:
        """The most tokens in flight."""
        return self.spec.batch_weight_tokens

    @property
    def device_indices(self) -> tuple[int | str, ...]:
        """The GPUs or cores that it uses."""
        return self.spec.device_indices

    @property
    def pids(self) -> tuple[int, ...]:
        """Process id of the keeper, whose descendants are the server."""
        return (self._started.pid,)

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._keeper is not None, "the server was not started"
        return self._keeper

    def __enter__(self) -> "VLLMServer":
        self.start()
        return self

    def start(self) -> None:
        """Start the server and wait until it is healthy.

        Raises:
            ServerError: it died or was not healthy within the time limit, or another server
                answers in its place.
            InputError: the interpreter is missing.
        """
        if not shutil.which(self.settings.python):
            fix = "run 'make .venv-vllm/.ready', or set engine.python in the configuration"
            raise InputError(f"no interpreter {self.settings.python}", fix=fix)
        cpus = ",".join(map(str, self.spec.cores or ())) or "-"
        limit_gib = self.spec.memory_limit_gib
        limit_bytes = None if limit_gib is None else round(limit_gib * GIB)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.started_s, self._n_oom_kills = time.monotonic(), n_oom_kills()
        # Kept open: a second job of the same cell, which waits for this one, deletes its logs.
        self._log = self.log_path.open("w+b", buffering=0)
        scratch = self.spec.scratch
        # While the keeper lives, so does the folder that its server writes to.
        with share(scratch) if scratch else contextlib.nullcontext() as kept:
            self._keeper = subprocess.Popen(
                [sys.executable, str(KEEPER), cpus, str(limit_bytes or "-"), *self.command],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=environment(self.spec, self.api_key),
                # A group, not a session: Linux schedules sessions against each other, and a
                # server that spins in one of its own stalls the client's for seconds.
                process_group=0,
                pass_fds=[kept.fileno()] if kept else [],
            )
        # Watched is what can run out; without a limit, a CPU's memory is shared with everything.
        if self.spec.devices.kind == "gpu":
            self._free = FreeMemory(gpus(self.spec.device_indices))
        elif limit_bytes is not None:
            self._free = FreeMemory(limited_processes(self._started.pid, limit_bytes))
        if self._free:
            self._free.start()
        try:
            self._wait_until_healthy()
        except BaseException:
            self.stop()
            raise
        self.start_duration_s = time.monotonic() - self.started_s
        self._idle_free_bytes = self._free.look() if self._free else None

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the server; returns when no process of it is left."""
        self.let_go()
        if self._keeper is None:
            return
        try:
            self._keeper.wait()
        finally:
            self._keeper.wait()  # a signal that ends the job may have ended the wait above
            remove_key(self._log, self.api_key)
            self._held_port.close()

    def let_go(self) -> None:
        """Have the server end, which takes it a moment (`stop`)."""
        self.stop_watching_memory()
        self._is_stopped = True
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.close()

    def stop_watching_memory(self) -> None:
        """Leave the server alone before its latencies are measured."""
        if self._free is not None:
            self._free.stop()

    def memory(self) -> MemoryFacts:
        """Return what is known of memory since this start."""
        text = self._log_text()
        free_bytes = self._free.least_bytes if self._free else None
        allocation, blocks = failed_allocation(text), profiled_blocks(text)
        lacking_bytes = None
        if allocation:
            tried_bytes, left = allocation
            # A host's allocator does not say what was left: take what was seen last.
            left = free_bytes if left is None else left
            lacking_bytes = None if left is None else max(0, tried_bytes - left)
        return MemoryFacts(
            idle_free_bytes=self._idle_free_bytes,
            free_bytes=free_bytes,
            lacking_bytes=lacking_bytes,
            # vLLM keeps one block for itself.
            profiled_tokens=None
            if blocks is None
            else max(0, blocks - 1) * self.settings.block_size_tokens,
        )

    def _log_text(self) -> str:
        # The file is this start's own: it was emptied before the server began to write.
        said = os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0)
        return without_keys(said.decode(errors="replace"), [self.api_key])

    def is_alive(self) -> bool:
        """Return whether the server's process still runs."""
        return self._keeper is not None and self._keeper.poll() is None

    def _wait_until_healthy(self) -> None:
        deadline = self.started_s + self.settings.start_timeout_s
        while time.monotonic() < deadline:
            if not self.is_alive():
                raise self.error(f"the server ended with status {self._started.returncode}")
            if self.is_healthy():
                # It takes our key and no other, or somebody else's would be measured.
                keys = (self.api_key, "another key")
                statuses = [self._get("/v1/models", key)[0] for key in keys]
                if statuses == [200, 401]:
                    return
                if None not in statuses:
                    raise self.error(f"another server answers on port {self.port}")
            time.sleep(0.1)
        problem = f"the server was not healthy within {self.settings.start_timeout_s:g} s"
        fix = "raise engine.start_timeout_s, unless its log has an error"
        raise self.error(f"{problem}. Fix: {fix}")

    def version(self) -> str | None:
        """Return the version of vLLM that runs, None if the server does not report it."""
        status, content = self._get("/version")
        return json.loads(content)["version"] if status == 200 else None

    def is_healthy(self) -> bool:
        """Return whether the engine behind the API server says that it is well."""
        return self._get("/health")[0] == 200

    def metrics(self) -> str:
        """Return the server's Prometheus text; raises `OSError` if it does not answer."""
        return fetch(self.target.base_url)

    def _get(self, path: str, api_key: str | None = None) -> tuple[int | None, str]:
        return get(replace(self.target, api_key=api_key), path)

    def error(self, message: str) -> ServerError:
        """Build the error for a server that failed, with the end of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._started.wait(_SETTLE_S)
        text = self._log_text()
        sign = out_of_memory_sign(f"{text}\n{message}")
        killed = killed_sign(text)
        if not self._is_stopped and not self.is_alive() and self._started.returncode == 256 - 9:
            killed = "the server was killed (SIGKILL)"
        if sign is None and killed:
            # For want of memory, if the kernel says so or does not count.
            before, now = self._n_oom_kills, n_oom_kills()
            sign = killed if now is None or before is None or now > before else None
            message += f": {killed}" if sign is None else ""
        if is_disk_full(text) and self.spec.scratch:
            message += f" (no room in {self.spec.scratch}: set TMPDIR to a folder with more)"
        return ServerError(
            # At the log's end vLLM's processes complain about each other: name the first cause.
            f"{message}: {sign}" if sign and sign not in message else message,
            "\n".join(text.splitlines()[-LOG_TAIL_LINES:]),
            is_out_of_memory=bool(sign) or self._ended_at_its_limit(),
            memory=self.memory(),
        )

    def _ended_at_its_limit(self) -> bool:
        if self._is_stopped or self.spec.memory_limit_gib is None or self.is_healthy():
            return False
        left = self._free.least_bytes if self._free else None
        return left is not None and left < _USED_UP_BYTES


@contextlib.contextmanager
def _running(servers: Sequence[VLLMServer], one_by_one: bool) -> Iterator[None]:
    """Start servers; enter the context once all are healthy; end all of them after it.

    With `one_by_one` each starts when the one before it is healthy.

    Raises:
        ServerError: one of them failed to start.
        InputError: the interpreter is missing.
    """
    pool = ThreadPoolExecutor(1 if one_by_one else len(servers))
    # Backwards, and each of them whatever happens in another, as by a signal that ends the job.
    with contextlib.ExitStack() as stack:
        stack.callback(_stop, servers)  # one that was about to start when the others were stopped
        stack.callback(pool.shutdown)
        stack.callback(_stop, servers)
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        starts = [pool.submit(server.start) for server in servers]
        for start in as_completed(starts):
            start.result()
        yield


def _stop(servers: Sequence[VLLMServer]) -> None:
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.callback(server.stop)
        for server in servers:
            server.let_go()  # all of them first: an end takes seconds


class VLLM:
    """Servers of the environment `engine.python`, a process each; see `protocol.Engine`."""

    starts_servers = True
    metric_names: tuple[MetricNames, ...] = (VLLM_METRICS,)

    def check(self, settings: EngineSettings, file: str | Path) -> list[str]:
        """Check the extra arguments; warn of those that run code of others."""
        found = check_extra_arguments(settings.extra_arguments, file)
        return [f"{argument} lets the server run code that others wrote" for argument in found]

    @contextlib.contextmanager
    def serve(
        self, specs: Sequence[ServerSpec], settings: EngineSettings, log_path: Path
    ) -> Iterator[list[VLLMServer]]:
        """Start a server per spec; see `Engine.serve`.

        Servers on the same devices start one after another: each looks at the memory that is
        free while it starts.
        """
        logs = [log_path.with_suffix(f".{n}{log_path.suffix}") for n in range(1, len(specs))]
        pairs = zip(specs, [log_path, *logs], strict=True)
        servers = [VLLMServer(spec, settings, log) for spec, log in pairs]
        shares_devices = len({spec.device_indices for spec in specs}) < len(specs)
        with _running(servers, one_by_one=shares_devices):
            yield servers
