"""vLLM: its servers' start and certain end, and what they say when they fail."""

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from sextant.base.errors import InputError
from sextant.base.network import remove_key, reserve_port, without_keys
from sextant.base.resources import PACKAGE
from sextant.base.scratch import share
from sextant.engine import vllm_command
from sextant.engine.devices import FreeMemory, gpus, limited_processes, n_oom_kills
from sextant.engine.http import VLLM_METRICS, MetricNames, ServerAddress, fetch_response, get
from sextant.engine.protocol import RunningServer, ServerError, ServerSpec
from sextant.experiment.servers import EngineSettings
from sextant.facts.gpu import GIB
from sextant.points.verdict import MemoryFacts

LOG_TAIL_LINES = 20
# Run by its path: it needs nothing of this package, which need not be installed.
KEEPER = PACKAGE / "base" / "keeper.py"
# A server that has just failed a request needs a moment to end and to log why.
_SETTLE_S = 2.0
# Less than a thread's stack: what fails with so little left, in whatever words, lacked memory.
_USED_UP_BYTES = 8 * 2**20


class VLLMServer(RunningServer):
    """A vLLM server that is running; use it as a context manager so that it always ends."""

    def __init__(self, spec: ServerSpec, settings: EngineSettings, log_path: Path) -> None:
        self.spec, self.settings, self.log_path = spec, settings, log_path
        self.api_key, self._held_port = secrets.token_hex(16), reserve_port()
        self.port: int = self._held_port.getsockname()[1]
        super().__init__(
            ServerAddress(f"http://127.0.0.1:{self.port}", vllm_command.MODEL_NAME, self.api_key),
            vllm_command.command(spec, settings, self.port),
            batch_weight_tokens=spec.batch_weight_tokens,
            device_indices=spec.device_indices,
        )
        self._keeper: subprocess.Popen[bytes] | None = None
        self._free: FreeMemory | None = None
        self._idle_free_bytes: int | None = None
        self._is_stopped = False

    def __enter__(self) -> "VLLMServer":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it is healthy. ServerError: it died, was not healthy in
        time, or another server answers in its place; InputError: the interpreter is missing."""
        if not shutil.which(self.settings.python):
            fix = "run 'make .venv-vllm/.ready', or set engine.python in the configuration"
            raise InputError(f"no interpreter {self.settings.python}", fix=fix)
        cpus = ",".join(map(str, self.spec.cores or ())) or "-"
        limit_gib = self.spec.memory_limit_gib
        limit_bytes = None if limit_gib is None else round(limit_gib * GIB)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        started_s, self._n_oom_kills = time.monotonic(), n_oom_kills()
        # Kept open: a second job of the same cell, which waits for this one, deletes its logs.
        self._log = self.log_path.open("w+b", buffering=0)
        scratch = self.spec.scratch
        # While the keeper lives, so does the folder that its server writes to.
        with share(scratch) if scratch else contextlib.nullcontext() as kept:
            self._keeper = subprocess.Popen(
                [sys.executable, str(KEEPER), cpus, str(limit_bytes or "-"), *(self.command or ())],
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=vllm_command.environment(self.spec, self.api_key, self.settings.compile_cache),
                # A group, not a session: Linux schedules sessions against each other, and a
                # server that spins in one of its own stalls the client's for seconds.
                process_group=0,
                pass_fds=[kept.fileno()] if kept else [],
            )
        self.pids = (self._keeper.pid,)  # the server is below it
        # Watched is what can run out; without a limit, a CPU's memory is shared with everything.
        if self.spec.devices.kind == "gpu":
            self._free = FreeMemory(gpus(self.spec.device_indices))
        elif limit_bytes is not None:
            self._free = FreeMemory(limited_processes(self._keeper.pid, limit_bytes))
        if self._free:
            self._free.start()
        try:
            self._wait_until_healthy(started_s + self.settings.start_timeout_s)
        except BaseException:
            self.stop()
            raise
        self.start_duration_s = time.monotonic() - started_s
        self._idle_free_bytes = self._free.look() if self._free else None

    def stop(self) -> None:
        """End the server; returns when no process of it is left."""
        self.let_go()
        if self._keeper is not None:
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
        blocks = vllm_command.profiled_blocks(text)
        lacking_bytes = None
        if allocation := vllm_command.failed_allocation(text):
            tried_bytes, left = allocation
            # A host's allocator does not say what was left: take what was seen last.
            left = free_bytes if left is None else left
            lacking_bytes = None if left is None else max(0, tried_bytes - left)
        return MemoryFacts(
            idle_free_bytes=self._idle_free_bytes,
            free_bytes=free_bytes,
            lacking_bytes=lacking_bytes,
            # vLLM keeps one block for itself.
            profiled_tokens=blocks and max(0, blocks - 1) * self.settings.block_size_tokens,
        )

    def _log_text(self) -> str:
        # The file is this start's own: it was emptied before the server began to write.
        said = os.pread(self._log.fileno(), os.fstat(self._log.fileno()).st_size, 0)
        return without_keys(said.decode(errors="replace"), [self.api_key])

    def is_alive(self) -> bool:
        """Return whether the server's process still runs."""
        return self._keeper is not None and self._keeper.poll() is None

    def _wait_until_healthy(self, deadline_s: float) -> None:
        while time.monotonic() < deadline_s:
            if not self.is_alive():
                status = self._keeper.returncode if self._keeper else None
                raise self.error(f"the server ended with status {status}")
            if self.is_healthy():
                # It takes our key and no other, or somebody else's would be measured.
                keys = (self.api_key, "another key")
                targets = [replace(self.target, api_key=key) for key in keys]
                statuses = [get(target, "/v1/models")[0] for target in targets]
                if statuses == [200, 401]:
                    return
                if None not in statuses:
                    raise self.error(f"another server answers on port {self.port}")
            time.sleep(0.1)
        problem = f"the server was not healthy within {self.settings.start_timeout_s:g} s"
        fix = "raise engine.start_timeout_s, unless its log has an error"
        raise self.error(f"{problem}. Fix: {fix}")

    def is_healthy(self) -> bool:
        """Return whether the engine behind the API server says that it is well."""
        return get(replace(self.target, api_key=None), "/health")[0] == 200

    def metrics(self) -> str:
        """Return the server's Prometheus text; raises `OSError` if it does not answer."""
        return fetch_response(self.target.base_url)

    def error(self, message: str) -> ServerError:
        """Build the error for a server that failed, with the end of its log."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if self._keeper:
                self._keeper.wait(_SETTLE_S)
        text = self._log_text()
        sign = vllm_command.out_of_memory_sign(f"{text}\n{message}")
        killed = vllm_command.killed_sign(text)
        if not self._is_stopped and self._keeper and self._keeper.poll() == 256 - 9:
            killed = "the server was killed (SIGKILL)"
        if sign is None and killed:
            # For want of memory, if the kernel says so or does not count.
            before = self._n_oom_kills
            now = n_oom_kills()
            sign = killed if now is None or before is None or now > before else None
            message += f": {killed}" if sign is None else ""
        if vllm_command.is_disk_full(text) and self.spec.scratch:
            message += f" (no room in {self.spec.scratch}: set TMPDIR to a folder with more)"
        is_out_of_memory = bool(sign)
        is_gone = not (sign or self._is_stopped or self.is_healthy())
        if is_gone and self._free and self.spec.memory_limit_gib is not None:
            left = self._free.least_bytes
            is_out_of_memory = left is not None and left < _USED_UP_BYTES
        return ServerError(
            # At the log's end vLLM's processes complain about each other: name the first cause.
            f"{message}: {sign}" if sign and sign not in message else message,
            "\n".join(text.splitlines()[-LOG_TAIL_LINES:]),
            is_out_of_memory=is_out_of_memory,
            memory=self.memory(),
        )


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
        loading = vllm_command.check_extra_arguments(settings.extra_arguments, file)
        return [f"{argument} lets the server run code that others wrote" for argument in loading]

    @contextlib.contextmanager
    def serve(
        self, specs: Sequence[ServerSpec], settings: EngineSettings, log_path: Path
    ) -> Iterator[list[VLLMServer]]:
        """Start a server per spec (see `Engine.serve`); of those on the same devices one after the
        other, since each looks at the memory that is free while it starts."""
        logs = [log_path.with_suffix(f".{n}{log_path.suffix}") for n in range(1, len(specs))]
        pairs = zip(specs, [log_path, *logs], strict=True)
        servers = [VLLMServer(spec, settings, log) for spec, log in pairs]
        pool = ThreadPoolExecutor(len({spec.device_indices for spec in specs}))
        # Backwards, and each whatever happens in another, as by a signal that ends the job.
        with contextlib.ExitStack() as stack:
            stack.callback(_stop, servers)  # what was about to start when the others were stopped
            stack.callback(pool.shutdown)
            stack.callback(_stop, servers)
            stack.callback(pool.shutdown, wait=False, cancel_futures=True)
            for start in as_completed([pool.submit(server.start) for server in servers]):
                start.result()
            yield servers
