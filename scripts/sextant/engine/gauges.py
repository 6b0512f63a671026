"""What is read while a level runs: process accounting, NVML, DCGM, each on a grid of times."""

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import psutil
import pynvml

from sextant.engine.devices import nvml_handle
from sextant.engine.http import fetch, samples
from sextant.facts.gpu import GIB, MIG_PREFIX


class SeriesEndedError(Exception):
    """Nothing more will come from a source; the message says which and why."""


@dataclass
class Series:
    """A source that is read once a period; a reading that is late leaves a gap."""

    read: Callable[[], list[dict]]
    period_s: float
    file: int
    """Descriptor of the file for the rows."""
    is_read_at_end: bool = False
    """Counters are whole only if they are read once more at the end."""

    def run(self, stopped: threading.Event, begun: threading.Event) -> None:
        """Read until `stopped`; sets `begun` after the first reading, even a failed one."""
        started_s, n_due = time.monotonic(), 0
        try:
            while not stopped.is_set():
                write_rows(self.file, self.read())
                begun.set()
                elapsed_s = time.monotonic() - started_s
                n_due = int(elapsed_s / self.period_s) + 1
                stopped.wait(n_due * self.period_s - elapsed_s)
            if self.is_read_at_end:
                write_rows(self.file, self.read())
        finally:
            begun.set()


def write_rows(file: int, rows: Sequence[dict]) -> None:
    """Append rows to a file, a JSON object a line."""
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    os.write(file, lines.encode())  # one call, so that lines of several threads do not mix


# The system accounts CPU time in steps of 10 ms: over less time a quotient would be noise.
_SHORTEST_INTERVAL_S = 0.1


def cpu_reader(pids: Sequence[int], n_cores: int) -> Callable[[], dict]:
    """Return a reader of the CPU time and memory that processes and all below them use.

    `utilization` is the fraction of `n_cores` in use since the last reading that had one, null in
    the first and where that is less than 0.1 s ago; `memory_used_gib` is the sum of resident sets.
    The reader raises SeriesEndedError when none of the processes is left.
    """
    known_s: dict[tuple[int, float], float] | None = None
    known_at_s = 0.0

    def read() -> dict:
        nonlocal known_s, known_at_s
        now_s = time.monotonic()
        used_s, memory = _usage(pids)
        if not used_s:
            raise SeriesEndedError("the server's processes have ended")
        row = {"device": "cpu", "memory_used_gib": memory / GIB}
        if known_s is not None:
            elapsed_s = now_s - known_at_s
            if elapsed_s < _SHORTEST_INTERVAL_S:
                return row
            # What started since the last reading has used all its time since then.
            busy_s = sum(seconds - known_s.get(key, 0.0) for key, seconds in used_s.items())
            row["utilization"] = busy_s / elapsed_s / n_cores
        known_s, known_at_s = used_s, now_s
        return row

    return read


def _usage(pids: Sequence[int]) -> tuple[dict[tuple[int, float], float], int]:
    """Return the CPU seconds of each process, by pid and start, and their memory in bytes."""
    used_s, memory, processes = {}, 0, list[psutil.Process]()
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            parent = psutil.Process(pid)
            processes += [parent, *parent.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.Error), process.oneshot():
            times = process.cpu_times()
            memory += process.memory_info().rss
            used_s[process.pid, process.create_time()] = times.user + times.system
    return used_s, memory


# Bits of nvmlClocksEventReasons, in words.
_REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}
# A device or driver that gives this answer once will give it again.
_UNSUPPORTED = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_INVALID_ARGUMENT,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    pynvml.NVML_ERROR_DEPRECATED,
}
_LOST = {
    pynvml.NVML_ERROR_GPU_IS_LOST,
    pynvml.NVML_ERROR_GPU_NOT_FOUND,
    pynvml.NVML_ERROR_RESET_REQUIRED,
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
}

Row = dict[str, str | float]
Reader = Callable[[object], Row]


def _throttling(handle: object) -> Row:
    try:
        bits = pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except pynvml.NVMLError_FunctionNotFound:  # a driver before 535 knows the older name
        bits = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return {"throttle_reasons": reason_names(bits)}


def _utilization(handle: object) -> Row:
    rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
    return {"utilization": rates.gpu / 100, "memory_utilization": rates.memory / 100}


def _value(name: str, read: Callable[[object], float]) -> Reader:
    return lambda handle: {name: float(read(handle))}


_MEMORY = _value("memory_used_gib", lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used / GIB)
# In the order of reading: power and energy are closest to the row's time.
_WHOLE_GPU = (
    _value("power_w", lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1e3),
    _value("energy_j", lambda gpu: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1e3),
    _utilization,
    _MEMORY,
    _value("sm_clock_mhz", lambda gpu: pynvml.nvmlDeviceGetClockInfo(gpu, pynvml.NVML_CLOCK_SM)),
    _value(
        "temperature_c",
        lambda gpu: pynvml.nvmlDeviceGetTemperature(gpu, pynvml.NVML_TEMPERATURE_GPU),
    ),
    _throttling,
)


def reason_names(bits: int) -> str:
    """Return the names of throttle reasons, with commas between; "" if nothing holds the clock."""
    single = [1 << position for position in range(bits.bit_length()) if bits >> position & 1]
    return ",".join(_REASONS.get(bit, hex(bit)) for bit in single)


@dataclass
class Gpu:
    """A GPU or MIG instance, with the fields that it has not refused so far."""

    name: str
    """`gpu<NVML index>`, or the UUID of a MIG instance."""
    handle: object
    readers: list[Reader]
    uuid: str | None = None
    """UUID of the GPU; of a MIG instance, that of the GPU it is a part of."""
    instance_id: int | None = None

    def read(self) -> Row:
        """Return what the device reports now; a field without an answer is left out. Raises
        SeriesEndedError if the device is lost.
        """
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


def open_gpus(
    selectors: Sequence[int | str], warn: Callable[[str], None]
) -> tuple[list[Gpu], list[Gpu]]:
    """Return the devices of these NVML indices, GPU UUIDs and MIG UUIDs, and those that NVML does
    not know. A MIG instance brings the GPU it is a part of along, once.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        warn(f"no telemetry of GPUs {', '.join(map(str, selectors))}: NVML says {error}")
        return [], [_unknown(selector) for selector in selectors]
    gpus: dict[str, Gpu] = {}
    unknown = []
    for selector in selectors:
        try:
            gpus |= {gpu.name: gpu for gpu in _open(selector, warn)}
        except pynvml.NVMLError as error:
            warn(f"no telemetry of GPU {selector}: NVML says {error}")
            unknown.append(_unknown(selector))
    return list(gpus.values()), unknown


def _unknown(selector: int | str) -> Gpu:
    if isinstance(selector, int):
        return Gpu(f"gpu{selector}", None, [])
    return Gpu(selector, None, [], uuid=selector)


def _open(selector: int | str, warn: Callable[[str], None]) -> list[Gpu]:
    handle = nvml_handle(selector)
    if isinstance(selector, int) or not selector.startswith(MIG_PREFIX):
        return [_whole(handle)]
    gpu = _whole(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle))
    warn(f"power, energy, clock and temperature of {selector} are those of all {gpu.name}")
    instance_id = pynvml.nvmlDeviceGetGpuInstanceId(handle)
    return [Gpu(selector, handle, [_MEMORY], gpu.uuid, instance_id), gpu]


def _whole(handle: object) -> Gpu:
    name = f"gpu{pynvml.nvmlDeviceGetIndex(handle)}"
    return Gpu(name, handle, list(_WHOLE_GPU), pynvml.nvmlDeviceGetUUID(handle))


_FIELDS = {"sm_active": "DCGM_FI_PROF_SM_ACTIVE", "sm_occupancy": "DCGM_FI_PROF_SM_OCCUPANCY"}


def dcgm_reader(
    url: str, gpus: Sequence[Gpu], warn: Callable[[str], None]
) -> Callable[[], list[dict]]:
    """Return a reader of `sm_active` and `sm_occupancy` (fractions) of these devices.

    `url` is the exporter's, with or without `/metrics`. Without an answer there are no rows;
    the first such failure, and the first answer without these fields, give a warning.
    """
    base_url = url.removesuffix("/").removesuffix("/metrics")
    warned: set[str] = set()

    def warn_once(kind: str, message: str) -> None:
        if kind not in warned:
            warned.add(kind)
            warn(message)

    def read() -> list[dict]:
        try:
            text = fetch(base_url)
        except OSError as error:
            warn_once("silent", f"dcgm-exporter at {url} does not answer: {error}")
            return []
        rows: list[Row] = [{"device": gpu.name} for gpu in gpus]
        for (name, field), (row, gpu) in product(_FIELDS.items(), zip(rows, gpus, strict=True)):
            for labels, value in samples(text, field):
                # Outside of 0 to 1 are DCGM's marks for a value that it does not have.
                if _is_of(labels, gpu) and 0 <= value <= 1:
                    row[name] = value
        lacking = [field for name, field in _FIELDS.items() if not any(name in r for r in rows)]
        if lacking:
            warn_once("lacking", f"dcgm-exporter at {url} has no {', '.join(lacking)} of our GPUs")
        return [row for row in rows if len(row) > 1]

    return read


def _is_of(labels: dict[str, str], gpu: Gpu) -> bool:
    """Return whether a series is of this device: by UUID, by index where one is not known."""
    instance = labels.get("GPU_I_ID") or None
    if instance != (None if gpu.instance_id is None else str(gpu.instance_id)):
        return False
    if gpu.uuid and labels.get("UUID"):
        return labels["UUID"] == gpu.uuid
    return f"gpu{labels.get('gpu')}" == gpu.name
