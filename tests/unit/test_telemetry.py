"""Telemetry: what devices report is recorded in its unit, what they cannot is null."""

import contextlib
import logging
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pyarrow as pa
import pynvml
import pytest

from sextant.load import telemetry

BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
# A parent that does nothing and a child that holds 200 MB: the memory of both counts.
FAMILY = (
    "import subprocess, sys, time; "
    "subprocess.Popen([sys.executable, '-c', "
    "'held = bytearray(range(250)) * 800_000; import time; time.sleep(60)']).wait()"
)


@pytest.fixture
def child():
    """Start Python on a script; it ends, with its children, when the test does."""
    started = []

    def start(script: str) -> int:
        started.append(subprocess.Popen([sys.executable, "-c", script]))
        return started[-1].pid

    yield start
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for below in psutil.Process(process.pid).children(recursive=True):
                below.kill()
        process.kill()
        process.wait()


def until(condition, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_busy_process_uses_its_core(child):
    pid = child(BUSY)
    one, four = telemetry.cpu_reader(pid, 1), telemetry.cpu_reader(pid, 4)
    one(), four()
    before = psutil.Process(pid).cpu_times().user
    began = time.monotonic()
    time.sleep(0.5)
    (row,), (of_four,) = one(), four()
    # What it got of a machine that others use too is what the system accounts to it.
    used = (psutil.Process(pid).cpu_times().user - before) / (time.monotonic() - began)
    assert row["device"] == "cpu"
    assert used > 0.1 and row["utilization"] == pytest.approx(used, abs=0.25)
    assert of_four["utilization"] == pytest.approx(row["utilization"] / 4, abs=0.07)


def test_an_idle_process_uses_none(child):
    read = telemetry.cpu_reader(child("import time; time.sleep(60)"), 1)
    time.sleep(0.3)
    read()
    time.sleep(0.3)
    assert read()[0]["utilization"] < 0.1


def test_memory_of_children_counts(child):
    read = telemetry.cpu_reader(child(FAMILY), 1)
    until(lambda: read()[0]["memory_used_gib"] > 200e6 / 2**30)
    assert read()[0]["memory_used_gib"] < 1


def test_a_sampler_keeps_time_and_ends_with_the_process(child):
    pid = child("import time; time.sleep(60)")
    sampler = telemetry.Sampler(telemetry.cpu_reader(pid, 1), 4, time.monotonic_ns(), 0.05)
    sampler.start()
    until(lambda: len(sampler.rows) >= 3)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    sampler.join(20)
    assert not sampler.is_alive()
    table = pa.Table.from_pylist(sampler.stop(), schema=telemetry.SCHEMA).to_pandas()
    assert (table["level"] == 4).all() and table["time_s"].is_monotonic_increasing
    assert table["utilization"].notna().all()
    # A processor has no meter of its own here: unknown, not zero.
    assert table[["power_w", "energy_j", "sm_clock_mhz", "temperature_c"]].isna().all(axis=None)


def fake_nvml(monkeypatch, unsupported: frozenset[str] = frozenset()) -> None:
    """Replace NVML by two devices that report fixed numbers, in NVML's units."""
    values = {
        "nvmlDeviceGetPowerUsage": lambda h: 250_500 + h,
        "nvmlDeviceGetTotalEnergyConsumption": lambda h: 7_000_000,
        "nvmlDeviceGetUtilizationRates": lambda h: SimpleNamespace(gpu=75, memory=5),
        "nvmlDeviceGetMemoryInfo": lambda h: SimpleNamespace(used=3 * 2**29),
        "nvmlDeviceGetClockInfo": lambda h, kind: {pynvml.NVML_CLOCK_SM: 1410}[kind],
        "nvmlDeviceGetTemperature": lambda h, sensor: 61,
    }

    def refuse(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def handle(index):
        return index if index < 2 else refuse()

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", handle)
    for name, function in values.items():
        monkeypatch.setattr(pynvml, name, refuse if name in unsupported else function)


def test_gpus_report_in_our_units(monkeypatch):
    fake_nvml(monkeypatch)
    first, second = telemetry.nvml_reader((0, 1))()
    assert first == {
        "device": "gpu0",
        "power_w": 250.5,
        "energy_j": 7000.0,
        "utilization": 0.75,
        "memory_used_gib": 1.5,
        "sm_clock_mhz": 1410.0,
        "temperature_c": 61.0,
    }
    assert (second["device"], second["power_w"]) == ("gpu1", 250.501)


def test_what_a_gpu_cannot_report_is_null(monkeypatch):
    missing = frozenset({"nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetTemperature"})
    fake_nvml(monkeypatch, missing)
    rows = [{"level": 1, "time_s": 0.0} | row for row in telemetry.nvml_reader((0,))()]
    row = pa.Table.from_pylist(rows, schema=telemetry.SCHEMA).to_pylist()[0]
    assert (row["energy_j"], row["temperature_c"]) == (None, None)
    assert row["power_w"] == 250.5


@pytest.mark.parametrize("fault", ["no library", "no such device"])
def test_gpus_without_nvml_are_measured_all_the_same(monkeypatch, caplog, fault):
    fake_nvml(monkeypatch)
    if fault == "no library":

        def absent():
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

        monkeypatch.setattr(pynvml, "nvmlInit", absent)
    with caplog.at_level(logging.WARNING):
        read = telemetry.nvml_reader((1, 3))
    assert "no telemetry of GPUs (1, 3)" in caplog.text
    sampler = telemetry.Sampler(read, 2, time.monotonic_ns(), period_s=0.02)
    sampler.start()
    until(lambda: sampler.rows)
    table = pa.Table.from_pylist(sampler.stop(), schema=telemetry.SCHEMA).to_pandas()
    assert table["device"].tolist()[:2] == ["gpu1", "gpu3"]
    measured = [name for name in table if name not in ("level", "time_s", "device")]
    assert table[measured].isna().all(axis=None)
