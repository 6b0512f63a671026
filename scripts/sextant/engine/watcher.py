"""Starts the process that watches a level, and collects what it sampled."""

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
from dataclasses import asdict, dataclass

import numpy as np
import pyarrow as pa
import pyarrow.json

from sextant.base.resources import PACKAGE
from sextant.engine.http import VLLM_METRICS, MetricNames
from sextant.points.cell_files import SERVER_SCHEMA, TELEMETRY_SCHEMA

log = logging.getLogger(__name__)

# NVML takes a second or more to start where no other process holds the driver.
_START_LIMIT_S = 10.0
# More than the process itself waits for a last reading that hangs.
_STOP_LIMIT_S = 4.0
_SCRIPTS = PACKAGE.parent


@dataclass(frozen=True)
class WatchPlan:
    """What to watch during a level: devices of the job, servers, DCGM."""

    kind: str  # `gpu`, or `cpu` for the processor time of the servers' processes
    devices: tuple[int | str, ...]
    """NVML indices and UUIDs of GPUs or MIG instances; on a CPU, the cores of all servers."""
    pids: tuple[int, ...] = ()  # on a CPU: the processes that count, with all below them
    server_urls: tuple[str, ...] = ()  # base URL of each replica
    metric_names: tuple[MetricNames, ...] = (VLLM_METRICS,)  # what servers may call theirs
    dcgm_url: str | None = None


@dataclass(frozen=True)
class Watched:
    """What was sampled, with times in seconds since the cell's epoch."""

    telemetry: pa.Table  # rows of `TELEMETRY_SCHEMA`
    server: pa.Table  # rows of `SERVER_SCHEMA`
    warnings: list[str]  # what could not be read, or ended early, and when


class Watcher:
    """A process that watches one level; a context manager, so that it always ends. It is entered
    when every source was read once, or after 10 s. Telemetry never fails a measurement: what
    cannot be read is a warning of `stop`."""

    def __init__(self, plan: WatchPlan, epoch_ns: int, level: float) -> None:
        self._level = level
        self._watched: Watched | None = None
        self._warnings: list[str] = []
        # Files in memory: nothing is lost to a full disk, and nothing stays behind.
        self._telemetry, self._server, self._errors = (
            os.memfd_create(name) for name in ("telemetry", "server", "errors")
        )
        files = {"telemetry_file": self._telemetry, "server_file": self._server}
        path = os.pathsep.join(filter(None, (str(_SCRIPTS), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "sextant.engine.gauges"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            pass_fds=tuple(files.values()),
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,  # Ctrl-C is the parent's to handle
        )
        assert self.process.stdin and self.process.stdout, "both are pipes"
        self._stdin, self._stdout = self.process.stdin, self.process.stdout
        line = json.dumps({**asdict(plan), **files, "epoch_ns": epoch_ns}) + "\n"
        with contextlib.suppress(BrokenPipeError):
            self._stdin.write(line.encode())
            self._stdin.flush()

    def __enter__(self) -> "Watcher":
        ready = select.poll()  # unlike select, it knows more than 1,024 file descriptors
        ready.register(self._stdout, select.POLLIN)
        try:
            if not ready.poll(_START_LIMIT_S * 1e3):
                self._warnings.append(f"not every source was read within {_START_LIMIT_S:g} s")
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> Watched:
        """End the process and return what it sampled, also if it died before."""
        if self._watched is not None:
            return self._watched
        with contextlib.suppress(BrokenPipeError):
            self._stdin.close()
        try:
            self.process.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stdout.close()
        files = (self._telemetry, self._server, self._errors)
        contents = []
        for file in files:
            contents.append(os.pread(file, os.fstat(file).st_size, 0))
            os.close(file)
        warnings = [*self._warnings, *contents[2].decode(errors="replace").splitlines()]
        if status := self.process.returncode:
            problem = f"the telemetry process ended with status {status}"
            warnings.append(f"{problem}; what it sampled is kept")
        for warning in warnings:
            log.warning("level %g: %s", self._level, warning)
        telemetry = read_gauge_rows(contents[0], TELEMETRY_SCHEMA, self._level)
        server = read_gauge_rows(contents[1], SERVER_SCHEMA, self._level)
        self._watched = Watched(telemetry, server, warnings)
        return self._watched


def read_gauge_rows(lines: bytes, schema: pa.Schema, level: float) -> pa.Table:
    """Return the table of JSON lines, without a last one that a killed process did not finish."""
    whole = lines[: lines.rfind(b"\n") + 1]
    if not whole:
        return schema.empty_table()
    read_schema = pa.schema([field for field in schema if field.name != "level"])
    # One block needs no threads, whose memory would stay.
    reading = pa.json.ReadOptions(use_threads=False, block_size=len(whole))
    parsing = pa.json.ParseOptions(read_schema)
    rows = pa.json.read_json(pa.BufferReader(whole), reading, parsing)
    # Not `pa.repeat`, which would import pandas.
    level_buffer = pa.py_buffer(np.full(len(rows), float(level)))
    levels = pa.Array.from_buffers(pa.float64(), len(rows), [None, level_buffer])
    return rows.append_column("level", levels).select(schema.names).cast(schema)
