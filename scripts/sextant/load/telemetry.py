"""Device telemetry over time: NVML for GPUs, the operating system's accounting for CPUs.

What a device cannot report is null, never zero.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable

import psutil
import pyarrow as pa
import pynvml

from sextant.gpu import GIB

log = logging.getLogger(__name__)

SCHEMA = pa.schema(
    [
        pa.field("level", pa.int32()),
        pa.field("time_s", pa.float64()),
        pa.field("device", pa.string()),
        pa.field("power_w", pa.float64()),
        pa.field("energy_j", pa.float64()),
        pa.field("utilization", pa.float64()),
        pa.field("memory_used_gib", pa.float64()),
        pa.field("sm_clock_mhz", pa.float64()),
        pa.field("temperature_c", pa.float64()),
    ]
)
Reader = Callable[[], list[dict]]


def cpu_reader(pid: int, n_cores: int) -> Reader:
    """Return a reader of the CPU time and memory that a server's processes use.

    `utilization` is the fraction of `n_cores` in use since the last reading.
    """
    known: dict[int, psutil.Process] = {}

    def read() -> list[dict]:
        parent = psutil.Process(pid)
        busy, memory = 0.0, 0
        for process in [parent, *parent.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                # cpu_percent compares with the last call on the same object
                process = known.setdefault(process.pid, process)
                busy += process.cpu_percent() / 100
                memory += process.memory_info().rss
        return [
            {
                "device": "cpu",
                "utilization": busy / n_cores,
                "memory_used_gib": memory / GIB,
            }
        ]

    return read


def nvml_reader(devices: tuple[int, ...]) -> Reader:
    """Return a reader of the given GPUs; fields that a GPU does not support are null.

    Without NVML every field is null and a warning says so: latencies do not need it.
    """
    try:
        pynvml.nvmlInit()
        handles = {index: pynvml.nvmlDeviceGetHandleByIndex(index) for index in devices}
    except pynvml.NVMLError as error:
        log.warning("no telemetry of GPUs %s: NVML says %s", devices, error)
        return lambda: [{"device": f"gpu{index}"} for index in devices]
    fields: dict[str, Callable] = {
        "power_w": lambda h: pynvml.nvmlDeviceGetPowerUsage(h) / 1e3,
        "energy_j": lambda h: pynvml.nvmlDeviceGetTotalEnergyConsumption(h) / 1e3,
        "utilization": lambda h: pynvml.nvmlDeviceGetUtilizationRates(h).gpu / 100,
        "memory_used_gib": lambda h: pynvml.nvmlDeviceGetMemoryInfo(h).used / GIB,
        "sm_clock_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, pynvml.NVML_CLOCK_SM),
        "temperature_c": lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
    }

    def read() -> list[dict]:
        rows = []
        for index, handle in handles.items():
            row: dict = {"device": f"gpu{index}"}
            for name, get in fields.items():
                with contextlib.suppress(pynvml.NVMLError):
                    row[name] = float(get(handle))
            rows.append(row)
        return rows

    return read


class Sampler(threading.Thread):
    """Samples a reader once a period until it is stopped."""

    def __init__(self, reader: Reader, level: int, epoch_ns: int, period_s: float = 0.5) -> None:
        super().__init__(daemon=True)
        self._reader, self._level, self._epoch_ns = reader, level, epoch_ns
        self._period_s = period_s
        self._stopped = threading.Event()
        self.rows: list[dict] = []

    def run(self) -> None:
        """Sample (called by `start`); a device that is lost ends the series."""
        with contextlib.suppress(psutil.Error, pynvml.NVMLError):
            self._reader()  # the first reading of CPU time has nothing to compare with
            is_last = False
            while not is_last:  # the last reading comes at the end, so that counters are whole
                is_last = self._stopped.wait(self._period_s)
                at_s = (time.monotonic_ns() - self._epoch_ns) / 1e9
                common = {"level": self._level, "time_s": at_s}
                self.rows += [common | row for row in self._reader()]

    def stop(self) -> list[dict]:
        """Stop sampling and return the rows."""
        self._stopped.set()
        self.join()
        return self.rows
