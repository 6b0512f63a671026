"""The process that watches a level: processor time, NVML, DCGM and servers, each in a thread.

Run as `python -m sextant.engine.gauges` with the plan (`watcher.WatchPlan`) as the first line of
standard input. Rows go, a JSON object a line, to the files of the plan. A line on standard output
says that every source was read once. The process ends when standard input closes, hence when its
parent ends.
"""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import psutil
import pynvml

from sextant.engine.devices import nvml_handle
from sextant.engine.http import MetricNames, fetch_response, samples, server_gauges
from sextant.facts.gpu import GIB, MIG_PREFIX

GPU_PERIOD_S = 0.1
# The system accounts CPU time in steps of 10 ms, and asking for it costs some ms.
CPU_PERIOD_S = 0.5
HTTP_PERIOD_S = 1.0
# Over less time a quotient of CPU times would be noise.
_SHORTEST_INTERVAL_S = 0.1
_LAST_READING_S = 2.0
# Bits of nvmlClocksEventReasons in words, from the lowest on.
_REASONS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost"),
    *("sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"),
    *("display_clock_setting", "board_limit", "reliability"),
)
# A device or driver that gives this answer once will give it again.
_UNSUPPORTED = {
    *(pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND),
    *(pynvml.NVML_ERROR_NO_PERMISSION, pynvml.NVML_ERROR_INVALID_ARGUMENT),
    *(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH, pynvml.NVML_ERROR_DEPRECATED),
}
_LOST = {
    *(pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND),
    *(pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNINITIALIZED),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
}
_DCGM = {"sm_active": "DCGM_FI_PROF_SM_ACTIVE", "sm_occupancy": "DCGM_FI_PROF_SM_OCCUPANCY"}

Row = dict[str, str | float]
Rows = Callable[[], list[dict[str, Any]]]
Warn = Callable[[str], None]


class SeriesEndedError(Exception):
    """Nothing more will come from a source; the message says which and why."""


@dataclass
class Series:
    """A source that is read once a period; a reading that is late leaves a gap."""

    read: Rows
    period_s: float
    file: int  # descriptor of the file for the rows
    is_read_at_end: bool = False  # counters are whole only if they are read once more at the end
    begun: threading.Event = field(default_factory=threading.Event)

    def run(self, stopped: threading.Event) -> None:
        """Read until `stopped`; sets `begun` after the first reading, even a failed one."""
        started_s = time.monotonic()
        try:
            while not stopped.is_set():
                _write_rows(self.file, self.read())
                self.begun.set()
                elapsed_s = time.monotonic() - started_s
                stopped.wait((int(elapsed_s / self.period_s) + 1) * self.period_s - elapsed_s)
            if self.is_read_at_end:
                _write_rows(self.file, self.read())
        finally:
            self.begun.set()


def _write_rows(file: int, rows: Sequence[dict[str, Any]]) -> None:
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    os.write(file, lines.encode())  # one call, so that lines of several threads do not mix


def cpu_reader(pids: Sequence[int], n_cores: int) -> Callable[[], dict[str, Any]]:
    """Return a reader of the CPU time and memory that processes and all below them use.

    `utilization` is the fraction of `n_cores` in use since the last reading that had one. The first
    reading, and one less than 0.1 s later, has none. SeriesEndedError: no process is left.
    """
    last_used_s: dict[tuple[int, float], float] | None = None
    last_at_s = 0.0

    def read() -> dict[str, Any]:
        nonlocal last_used_s, last_at_s
        now_s = time.monotonic()
        memory = 0
        processes = list[psutil.Process]()
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                parent = psutil.Process(pid)
                processes += [parent, *parent.children(recursive=True)]
        used_s = {}
        for process in processes:
            with contextlib.suppress(psutil.Error), process.oneshot():
                times = process.cpu_times()
                memory += process.memory_info().rss
                used_s[process.pid, process.create_time()] = times.user + times.system
        if not used_s:
            raise SeriesEndedError("the server's processes have ended")
        row = {"device": "cpu", "memory_used_gib": memory / GIB}
        elapsed_s = now_s - last_at_s
        if last_used_s is not None:
            if elapsed_s < _SHORTEST_INTERVAL_S:
                return row
            # What started since the last reading has used all its time since then.
            busy_s = sum(seconds - last_used_s.get(key, 0.0) for key, seconds in used_s.items())
            row["utilization"] = busy_s / elapsed_s / n_cores
        last_used_s = used_s
        last_at_s = now_s
        return row

    return read


def _throttling(handle: object) -> Row:
    try:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError_FunctionNotFound:  # a driver before 535 knows the older name
        bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    bits_set = [bit for bit in range(bits.bit_length()) if bits >> bit & 1]
    reasons = dict(enumerate(_REASONS))
    return {"throttle_reasons": ",".join(reasons.get(bit, hex(1 << bit)) for bit in bits_set)}


def _utilization(handle: object) -> Row:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization": rates.gpu / 100, "memory_utilization": rates.memory / 100}


def _memory(handle: object) -> Row:
    return {"memory_used_gib": pynvml.nvmlDeviceGetMemoryInfo(handle).used / GIB}


_OF_GPU = pynvml.NVML_TEMPERATURE_GPU
# In the order of reading: power and energy are closest to the row's time.
_WHOLE_GPU: tuple[Callable[[object], Row], ...] = (
    lambda gpu: {"power_w": pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3},
    lambda gpu: {"energy_j": pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3},
    _utilization,
    _memory,
    lambda gpu: {"sm_clock_mhz": pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)},
    lambda gpu: {"temperature_c": pynvml.nvmlDeviceGetTemperature(gpu, _OF_GPU)},
    _throttling,
)


@dataclass
class Gpu:
    """A GPU or MIG instance, with the fields that it has not refused so far."""

    name: str  # `gpu<NVML index>`, or the UUID of a MIG instance
    handle: object
    readers: list[Callable[[object], Row]]
    uuid: str | None = None  # UUID of the GPU; of a MIG instance, that of the GPU it is a part of
    instance_id: str = ""  # empty: it is a whole GPU

    def read(self) -> Row:
        """Return what the device reports now, if it does; SeriesEndedError: it is lost."""
        row: Row = {"device": self.name}
        for reader in tuple(self.readers):
            try:
                row |= reader(self.handle)
            except pynvml.NVMLError as error:
                if error.value in _LOST:
                    raise SeriesEndedError(f"{self.name} is lost ({error})") from error
                if error.value in _UNSUPPORTED:
                    self.readers.remove(reader)
        return row

    def has_labels(self, labels: dict[str, str]) -> bool:
        """Return whether DCGM's labels are this device's: its UUID, or its index without one."""
        if labels.get("GPU_I_ID", "") != self.instance_id:
            return False
        if self.uuid and labels.get("UUID"):
            return labels["UUID"] == self.uuid
        return f"gpu{labels.get('gpu')}" == self.name


def open_gpus(selectors: Sequence[int | str], warn: Warn) -> tuple[list[Gpu], list[Gpu]]:
    """Return the devices with these NVML indices, GPU UUIDs and MIG UUIDs.

    The GPU of a MIG instance follows it, once. The second list has the ones unknown to NVML.
    """
    gpus = dict[str, Gpu]()
    unknown = dict[int | str, Gpu]()
    for selector in selectors:
        uuid = None if isinstance(selector, int) else selector
        unknown[selector] = Gpu(uuid or f"gpu{selector}", None, [], uuid)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        warn(f"no telemetry of GPUs {', '.join(map(str, selectors))}: NVML says {error}")
        return [], list(unknown.values())
    for selector in selectors:
        try:
            handle = nvml_handle(selector)
            is_instance = str(selector).startswith(MIG_PREFIX)
            whole = handle
            if is_instance:
                whole = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            name = f"gpu{pynvml.nvmlDeviceGetIndex(whole)}"
            gpu = Gpu(name, whole, list(_WHOLE_GPU), pynvml.nvmlDeviceGetUUID(whole))
            if is_instance:
                warn(f"power, energy, clock and temperature of {selector} are those of all {name}")
                instance_id = str(pynvml.nvmlDeviceGetGpuInstanceId(handle))
                uuid = str(selector)
                gpus[uuid] = Gpu(uuid, handle, [_memory], gpu.uuid, instance_id)
            gpus[name] = gpu
            del unknown[selector]
        except pynvml.NVMLError as error:
            warn(f"no telemetry of GPU {selector}: NVML says {error}")
    return list(gpus.values()), list(unknown.values())


def dcgm_reader(url: str, gpus: Sequence[Gpu], warn: Warn) -> Rows:
    """Return a reader of `sm_active` and `sm_occupancy` (fractions) of these devices. `url` is the
    exporter's, with or without `/metrics`. The first failure or answer without them warns."""
    base_url = url.removesuffix("/").removesuffix("/metrics")
    warned: set[str] = set()

    def warn_once(kind: str, message: str) -> None:
        if kind not in warned:
            warned.add(kind)
            warn(f"dcgm-exporter at {url} {message}")

    def read() -> list[dict[str, Any]]:
        try:
            text = fetch_response(base_url)
        except OSError as error:
            warn_once("silent", f"does not answer: {error}")
            return []
        rows: list[Row] = [{"device": gpu.name} for gpu in gpus]
        for (name, metric), (row, gpu) in product(_DCGM.items(), zip(rows, gpus, strict=True)):
            for labels, value in samples(text, metric):
                # Outside of 0 to 1 are DCGM's marks for a value that it does not have.
                if gpu.has_labels(labels) and 0 <= value <= 1:
                    row[name] = value
        if lacking := [it for name, it in _DCGM.items() if not any(name in row for row in rows)]:
            warn_once("lacking", f"has no {', '.join(lacking)} of our GPUs")
        return [row for row in rows if len(row) > 1]

    return read


def all_series(plan: dict[str, Any], clock: Callable[[], float], warn: Warn) -> list[Series]:
    """Return the series of everything that the plan names; `clock` gives the rows their times."""
    file = plan["telemetry_file"]
    metric_names = [MetricNames(**names) for names in plan["metric_names"]]

    def timed(read: Callable[[], dict[str, Any]], period_s: float) -> Series:
        return Series(lambda: [{"time_s": clock(), **read()}], period_s, file, is_read_at_end=True)

    def server_rows(replica: int, url: str) -> list[dict[str, Any]]:
        try:
            text = fetch_response(url)
        except OSError:  # an unanswered request gives no row
            return []
        return [{"replica": replica, "time_s": clock(), **server_gauges(text, metric_names)}]

    series = [
        Series(partial(server_rows, *server), HTTP_PERIOD_S, plan["server_file"])
        for server in enumerate(plan["server_urls"])
    ]
    if not plan["devices"]:  # the servers run elsewhere
        return series
    if plan["kind"] == "cpu":
        return [*series, timed(cpu_reader(plan["pids"], len(plan["devices"])), CPU_PERIOD_S)]
    gpus, unknown = open_gpus(plan["devices"], warn)
    # A row without values says that the device was there and not measured.
    _write_rows(file, [{"time_s": clock(), "device": gpu.name} for gpu in unknown])
    series += [timed(gpu.read, GPU_PERIOD_S) for gpu in gpus]
    if plan["dcgm_url"]:
        read = dcgm_reader(plan["dcgm_url"], gpus + unknown, warn)
        series.append(
            Series(lambda: [{"time_s": clock(), **row} for row in read()], HTTP_PERIOD_S, file)
        )
    return series


def main() -> None:
    """Watch until standard input closes."""
    plan = json.loads(sys.stdin.buffer.readline())
    stopped = threading.Event()

    def clock() -> float:
        return (time.monotonic_ns() - plan["epoch_ns"]) / 1e9

    def warn(message: str) -> None:
        print(f"{message} (at {clock():.1f} s)", file=sys.stderr, flush=True)

    def follow(series: Series) -> None:
        try:
            series.run(stopped)
        except SeriesEndedError as error:
            warn(f"{error}: its series ends")
        except Exception as error:  # the other series go on
            warn(f"a series ended: {error!r}")

    def announce() -> None:
        for series in every:
            series.begun.wait()
        print("watching", flush=True)

    every = all_series(plan, clock, warn)
    threads = [threading.Thread(target=follow, args=(series,), daemon=True) for series in every]
    for thread in (*threads, threading.Thread(target=announce, daemon=True)):
        thread.start()
    sys.stdin.buffer.read()
    stopped.set()
    deadline_s = time.monotonic() + _LAST_READING_S
    for thread in threads:
        thread.join(max(deadline_s - time.monotonic(), 0.0))
    sys.stderr.flush()
    # At once: a thread that hangs in the driver may hold its locks.
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        sys.exit(f"telemetry failed: {error!r}")
