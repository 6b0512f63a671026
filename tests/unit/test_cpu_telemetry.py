"""The accounting of a server's processes."""

import contextlib
import subprocess
import sys
import time

import psutil
import pytest

from sextant.telemetry.cpu import cpu_reader
from sextant.telemetry.series import SeriesEndedError

BUSY = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
IDLE = "import time; time.sleep(60)"
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


def used_s(pid: int) -> float:
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


@pytest.mark.parametrize(("n_busy", "n_cores"), [(1, 1), (2, 4)])
def test_utilization_is_the_part_of_the_cores_in_use(child, n_busy, n_cores):
    pids = [child(BUSY) for _ in range(n_busy)]
    read = cpu_reader(pids, n_cores)

    def moment() -> tuple[float, float]:
        return time.monotonic(), sum(map(used_s, pids))

    before, _, after = moment(), read(), moment()
    time.sleep(1.0)
    before_last, row, after_last = moment(), read(), moment()
    # What they got of a machine that others use too is what the system accounts to them: at
    # least from after the first reading to before the last, at most the other way round.
    least = (before_last[1] - after[1]) / (after_last[0] - before[0])
    most = (after_last[1] - before[1]) / (before_last[0] - after[0])
    assert least > 0.02 and row["device"] == "cpu"
    assert least / n_cores - 0.01 <= row["utilization"] <= most / n_cores + 0.01


def test_the_first_reading_has_nothing_to_compare_with(child):
    assert "utilization" not in cpu_reader([child(BUSY)], 1)()


def test_what_started_between_two_readings_counts(child):
    parent = child(
        "import subprocess, sys, time; time.sleep(1); "
        f"subprocess.Popen([sys.executable, '-c', {BUSY!r}]).wait()"
    )
    read = cpu_reader([parent], 1)
    read()
    deadline = time.monotonic() + 20
    while not any(used_s(p.pid) > 0.5 for p in psutil.Process(parent).children()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert read()["utilization"] > 0.1


def test_no_utilization_is_made_of_a_moment(child):
    read = cpu_reader([child(BUSY)], 1)
    read()
    assert set(read()) == {"device", "memory_used_gib"}
    time.sleep(0.5)
    # Counted from the first reading: what was too short to tell is not lost.
    assert 0.05 < read()["utilization"] < 1.1


def test_an_idle_process_uses_none(child):
    read = cpu_reader([child(IDLE)], 1)
    time.sleep(0.3)
    read()
    time.sleep(0.3)
    assert read()["utilization"] < 0.1


def test_memory_of_children_counts(child):
    read = cpu_reader([child(FAMILY)], 1)
    deadline = time.monotonic() + 20
    while read()["memory_used_gib"] < 200e6 / 2**30:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert read()["memory_used_gib"] < 1


def test_the_series_ends_with_the_last_server(child):
    first, last = child(IDLE), child(IDLE)
    read = cpu_reader([first, last], 2)
    psutil.Process(first).kill()
    psutil.Process(first).wait()
    assert read()["memory_used_gib"] > 0
    psutil.Process(last).kill()
    psutil.Process(last).wait()
    with pytest.raises(SeriesEndedError, match="processes have ended"):
        read()
