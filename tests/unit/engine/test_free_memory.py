"""What a server leaves of its memory: NVML of our own, and processes of known size."""

import subprocess
import sys
import time

import pytest

from fake_nvml import use_fake_nvml, use_no_nvml
from sextant.engine.devices import FreeMemory, limited_processes

MIB = 2**20


def free_bytes(*devices: int | str) -> str:
    script = f"from sextant.engine.devices import gpus; print(gpus({[*devices]})())"
    command = [sys.executable, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_the_fullest_gpu_counts(monkeypatch):
    use_fake_nvml(monkeypatch, mig=1)
    # Of 40 GiB a GPU uses 1.5, an instance 1.
    assert free_bytes(0) == free_bytes("GPU-0") == str(38_912 * MIB + 512 * MIB)
    assert free_bytes("MIG-1-0") == str(39 * 1024 * MIB)
    assert free_bytes("MIG-1-0", 0) == free_bytes(0)


def test_what_nvml_does_not_tell_is_unknown(monkeypatch, tmp_path):
    use_fake_nvml(monkeypatch, unsupported="MemoryInfo")
    assert free_bytes(0) == "None"
    monkeypatch.delenv("FAKE_NVML_UNSUPPORTED")
    assert free_bytes(0, 7) == "None"  # there are two
    use_no_nvml(monkeypatch, tmp_path)
    assert free_bytes(0) == "None"


# A parent with two children, one of which takes 64 MiB, without touching them, when it is told.
FAMILY = """
import os, subprocess, sys, time
wait = "import sys; sys.stdin.readline(); "
take = "taken = bytearray(64 << 20); print('taken', flush=True); "
first = subprocess.Popen([sys.executable, "-c", wait], stdin=subprocess.PIPE)
second = subprocess.Popen([sys.executable, "-c", wait + take + wait])
second.wait()
"""


@pytest.fixture
def family():
    with subprocess.Popen(
        [sys.executable, "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        yield parent
        parent.kill()


def test_the_largest_process_below_counts(family):
    read = limited_processes(family.pid, 512 * MIB)
    while read() is None:
        time.sleep(0.01)
    watch = FreeMemory(read)
    watch.start()
    time.sleep(0.3)
    before = watch.look()
    family.stdin.write(b"\n")
    family.stdin.flush()
    assert family.stdout.readline() == b"taken\n"
    after = watch.look()
    assert 64 * MIB <= before - after < 66 * MIB
    assert 400 * MIB < after < 448 * MIB
    family.stdin.write(b"\n")
    family.stdin.flush()
    family.wait(20)
    watch.stop()
    watch.stop()
    assert watch.look() is None  # nobody is left to look at
    assert watch.least_bytes <= after
