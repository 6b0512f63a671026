"""A measuring run has its devices to itself, and says who else uses them."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pynvml
import pytest

from sextant.engine.device_locks import device_locks, n_other_processes
from support import wait_for

HOLDER = """
import sys, time
from sextant.engine.device_locks import device_locks
with device_locks("cpu", [1, 2]):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))


def test_a_second_run_on_the_same_core_waits_and_one_on_others_does_not(caplog):
    caplog.set_level("INFO")
    first = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "held\n"
    with device_locks("cpu", [0, 3]):
        pass
    assert not caplog.records
    has_it = threading.Event()

    def second() -> None:
        with device_locks("cpu", [0, 2]):
            has_it.set()

    thread = threading.Thread(target=second)
    thread.start()
    wait_for(lambda: bool(caplog.records), "a word of the second run")
    assert not has_it.is_set()
    first.kill()  # a lock ends with its process, however it ends
    first.wait()
    first.stdout.close()
    thread.join()
    assert has_it.is_set()
    (record,) = caplog.records
    assert record.getMessage() == "another run measures on core-2; waiting for its end"


def test_where_no_lock_can_be_made_a_warning_says_so(tmp_path, caplog):
    (tmp_path / f"sextant-devices-{os.getuid()}").symlink_to(tmp_path)
    with device_locks("cpu", [0]):
        pass
    assert "core-0 cannot be locked" in caplog.text


def test_processes_of_others_on_a_gpu_are_counted(monkeypatch):
    running = {0: [os.getpid(), 11], 1: [11, 12]}
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
    monkeypatch.setattr(
        pynvml,
        "nvmlDeviceGetComputeRunningProcesses",
        lambda handle: [SimpleNamespace(pid=pid) for pid in running[handle]],
    )
    assert n_other_processes([0], [os.getpid()]) == 1
    assert n_other_processes([0, 1], [os.getpid()]) == 2
    assert n_other_processes([], [os.getpid()]) is None

    def fail() -> None:
        raise pynvml.NVMLError(1)

    monkeypatch.setattr(pynvml, "nvmlInit", fail)
    assert n_other_processes([0], []) is None
