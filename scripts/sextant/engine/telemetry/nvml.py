"""NVIDIA devices as NVML sees them.

What NVML gives on a MIG instance is its memory; power, energy, clocks, temperature and
throttling are the whole GPU's, and utilization has neither (nvmlDeviceGetUtilizationRates).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pynvml

from sextant.engine.devices import nvml_handle
from sextant.engine.telemetry.series import SeriesEndedError
from sextant.facts.gpu import GIB, MIG_PREFIX

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
