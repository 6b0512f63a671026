"""The accounting of a server's processes."""

import contextlib
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from sextant.engine import gauges
from sextant.engine.gauges import SeriesEndedError, cpu_reader
from support import wait_for

BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
IDLE = "import time; print(flush=True); time.sleep(60)"
# A parent that does nothing and a child that holds 200 MB: the memory of both counts.
HELD = "held = bytearray(range(250)) * 800_000; import time; time.sleep(60)"
FAMILY = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', '{HELD}']).wait()"


@pytest.fixture
def child():
    """Start Python on a script; it ends, with its children, when the test does."""
    started = []

    def start(script: str) -> subprocess.Popen:
        command = [sys.executable, "-c", script]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(psutil.NoSuchProcess):
            for below in psutil.Process(process.pid).children(recursive=True):
                below.kill()
        with process:  # closes its pipes
            process.kill()


def used_s(*pids: int) -> float:
    times = [psutil.Process(pid).cpu_times() for pid in pids]
    return sum(its.user + its.system for its in times)


@pytest.fixture
def clock(monkeypatch) -> SimpleNamespace:
    """The clock of the accounting, which a test sets: how long work takes does not matter."""
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(gauges, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    return clock


@pytest.mark.parametrize(("n_busy", "n_cores"), [(1, 1), (2, 4)])
def test_utilization_is_the_part_of_the_cores_in_use(child, clock, n_busy, n_cores):
    busy = [child(BUSY).pid for _ in range(n_busy)]
    read = cpu_reader(busy, n_cores)
    before_s, _, after_s = used_s(*busy), read(), used_s(*busy)
    wait_for(lambda: used_s(*busy) > after_s + 0.3, "work")
    clock.now_s = 10.0
    least_s, row, most_s = used_s(*busy) - after_s, read(), used_s(*busy) - before_s
    assert row["device"] == "cpu"
    assert least_s - 0.02 <= row["utilization"] * 10 * n_cores <= most_s + 0.02


def test_what_started_between_two_readings_counts(child, clock):
    start = f"subprocess.Popen([sys.executable, '-c', {BUSY!r}]).wait()"
    parent = child(f"import subprocess, sys; sys.stdin.readline(); {start}")
    read = cpu_reader([parent.pid], 1)
    read()
    parent.stdin.close()
    below = wait_for(psutil.Process(parent.pid).children, "a child")
    wait_for(lambda: used_s(below[0].pid) > 0.3, "work")
    clock.now_s = 10.0
    assert read()["utilization"] * 10 > 0.3 - 0.02


def test_no_utilization_is_made_of_a_moment(child, clock):
    busy = child(BUSY).pid
    read = cpu_reader([busy], 1)
    read()
    first_s = used_s(busy)
    clock.now_s = 0.09
    assert set(read()) == {"device", "memory_used_gib"}
    wait_for(lambda: used_s(busy) > first_s + 0.3, "work")
    clock.now_s = 10.0
    # Counted from the first reading: what was too short to tell is not lost.
    assert read()["utilization"] * 10 > 0.3 - 0.02


def test_memory_of_children_counts(child):
    read = cpu_reader([child(FAMILY).pid], 1)
    wait_for(lambda: read()["memory_used_gib"] >= 200e6 / 2**30, "memory")
    assert read()["memory_used_gib"] < 1


def test_the_series_ends_with_the_last_server(child):
    first, last = child(IDLE).pid, child(IDLE).pid
    read = cpu_reader([first, last], 2)
    psutil.Process(first).kill()
    psutil.Process(first).wait()
    assert read()["memory_used_gib"] > 0
    psutil.Process(last).kill()
    psutil.Process(last).wait()
    with pytest.raises(SeriesEndedError, match="processes have ended"):
        read()
