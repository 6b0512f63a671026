"""The process that watches a level: it records what there is, and ends when it should."""

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from fake_nvml import use_fake_nvml, use_no_nvml
from sextant.engine import gauges
from sextant.engine.gauges import GPU_PERIOD_S, HTTP_PERIOD_S
from sextant.engine.watcher import Watched, Watcher, WatchPlan, read_gauge_rows
from sextant.points.cell_files import SERVER_SCHEMA, TELEMETRY_SCHEMA
from stub_server import StubServer, answer_text
from support import wait_for

MEASURED = [n for n in TELEMETRY_SCHEMA.names if n not in ("level", "time_s", "device")]
LOST_AT = re.compile(r"\(at ([0-9.]+) s\)$")
VLLM = 'vllm:num_requests_running{engine="0"} 3\nvllm:kv_cache_usage_perc{engine="0"} 0.5\n'


def watched_until(
    look: Callable[[Watched], object], plan: WatchPlan, level: float = 4, *, what: str = "rows"
) -> Watched:
    """Watch until what there is so far has what a test waits for, however long that takes."""
    with Watcher(plan, time.monotonic_ns(), level) as watcher:
        wait_for(lambda: look(so_far(watcher)), what)
        return watcher.stop()


def watched_once(plan: WatchPlan, level: float = 4) -> Watched:
    """Watch until every source was read once."""
    return watched_until(lambda _: True, plan, level)


def so_far(watcher: Watcher) -> Watched:
    telemetry, server, errors = (
        # While a line is written, a file may be longer than what is there: the rest reads as zeros.
        os.pread(file, os.fstat(file).st_size, 0).partition(b"\0")[0]
        for file in (watcher._telemetry, watcher._server, watcher._errors)
    )
    return Watched(
        read_gauge_rows(telemetry, TELEMETRY_SCHEMA, 0),
        read_gauge_rows(server, SERVER_SCHEMA, 0),
        errors.decode().splitlines(),
    )


def rows_of(watched: Watched, device: str) -> list[dict]:
    return [row for row in watched.telemetry.to_pylist() if row["device"] == device]


def most_rows(rows: list[dict], period_s: float) -> float:
    """Return how many readings of a grid lie between the first and the last, and one at the end."""
    return (rows[-1]["time_s"] - rows[0]["time_s"]) / period_s + 2


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def test_gpus_report_in_our_units(monkeypatch):
    use_fake_nvml(monkeypatch)
    watched = watched_once(WatchPlan("gpu", (0, "GPU-1")), level=2.5)
    assert watched.warnings == [] and watched.telemetry.schema == TELEMETRY_SCHEMA
    first, second = rows_of(watched, "gpu0")[0], rows_of(watched, "gpu1")[0]
    assert first["time_s"] > 0 and 7000 < first["energy_j"] < 8000
    known = {"level": 2.5, "device": "gpu0", "power_w": 100.0, "utilization": 0.75}
    known |= {"memory_utilization": 0.05, "memory_used_gib": 1.5, "sm_clock_mhz": 1410.0}
    known |= {"temperature_c": 61.0, "throttle_reasons": "sw_power_cap,sw_thermal_slowdown"}
    known |= {name: first[name] for name in ("time_s", "energy_j")}
    assert first == known | {"sm_active": None, "sm_occupancy": None}
    # Nothing holds this one's clock, which is not the same as not to know.
    assert (second["power_w"], second["throttle_reasons"]) == (200.0, "")


class Grid:
    """A clock that stands still but for readings and waits, and the event that ends a series."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_readings: int) -> None:
        self.now_s, self.n_left, self.read_s = 0.0, n_readings, []
        monkeypatch.setattr(gauges, "time", SimpleNamespace(monotonic=lambda: self.now_s))

    def reading(self, takes_s: float) -> list[dict]:
        self.read_s.append(self.now_s)
        self.now_s += takes_s
        self.n_left -= 1
        return [{"time_s": self.now_s}]

    def is_set(self) -> bool:
        return self.n_left <= 0

    def wait(self, seconds: float) -> None:
        self.now_s += seconds


@pytest.mark.parametrize(
    ("takes_s", "read_s"),
    [
        (0.01, [0.0, 0.1, 0.2, 0.3, 0.4]),
        # Readings do not overlap and do not queue: the next one waits for its place on the grid.
        (0.35, [0.0, 0.4, 0.8, 1.2, 1.6]),
    ],
)
@pytest.mark.parametrize("is_read_at_end", [True, False])
def test_a_source_is_read_on_a_grid(monkeypatch, takes_s, read_s, is_read_at_end):
    grid = Grid(monkeypatch, n_readings=4)
    file = os.memfd_create("rows")
    one = gauges.Series(lambda: grid.reading(takes_s), GPU_PERIOD_S, file, is_read_at_end)
    one.run(grid)
    assert one.begun.is_set()
    assert grid.read_s == pytest.approx(read_s if is_read_at_end else read_s[:-1])
    assert os.pread(file, 9999, 0).count(b"\n") == len(grid.read_s)
    os.close(file)


def test_what_a_device_does_not_support_is_asked_once_and_null(monkeypatch, tmp_path):
    calls = tmp_path / "calls"
    unsupported = "TotalEnergyConsumption,ClocksThrottleReasons"
    use_fake_nvml(monkeypatch, unsupported=unsupported, log=calls)
    plan = WatchPlan("gpu", (0,))
    rows = rows_of(watched_until(lambda it: it.telemetry.num_rows > 3, plan), "gpu0")
    assert {(row["energy_j"], row["throttle_reasons"]) for row in rows} == {(None, None)}
    assert {row["power_w"] for row in rows} == {100.0}
    times = Counter(line.split()[0] for line in calls.read_text().splitlines())
    assert times["TotalEnergyConsumption"] == times["ClocksThrottleReasons"] == 1
    assert times["PowerUsage"] == len(rows) > 3


def test_a_lost_device_ends_its_own_series_only(monkeypatch):
    use_fake_nvml(monkeypatch, lost="1:0.5")

    def goes_on(watched: Watched) -> bool:
        lost = watched.warnings and float(LOST_AT.search(watched.warnings[0])[1])
        return bool(lost) and rows_of(watched, "gpu0")[-1]["time_s"] > lost + 0.1

    watched = watched_until(goes_on, WatchPlan("gpu", (0, 1)))
    (warning,) = watched.warnings
    assert warning.startswith("gpu1 is lost (GPU is lost): its series ends (at ")
    lost, other = rows_of(watched, "gpu1"), rows_of(watched, "gpu0")
    lost_s = float(LOST_AT.search(warning)[1])
    assert lost and lost[-1]["time_s"] < lost_s + 0.1 < other[-1]["time_s"]


def test_of_a_mig_instance_the_memory_is_its_own_and_the_rest_its_gpus(monkeypatch):
    use_fake_nvml(monkeypatch, mig=1)
    watched = watched_once(WatchPlan("gpu", ("MIG-1-0", "MIG-1-1")))
    assert set(watched.telemetry["device"].to_pylist()) == {"MIG-1-0", "MIG-1-1", "gpu1"}
    instance, gpu = rows_of(watched, "MIG-1-1")[0], rows_of(watched, "gpu1")[0]
    assert {name for name in MEASURED if instance[name] is not None} == {"memory_used_gib"}
    assert (instance["memory_used_gib"], gpu["memory_used_gib"], gpu["power_w"]) == (1, 1.5, 200)
    assert all("are those of all gpu1" in warning for warning in watched.warnings)


def test_without_nvml_there_are_nulls_and_one_warning(monkeypatch, tmp_path):
    use_no_nvml(monkeypatch, tmp_path)
    watched = watched_once(WatchPlan("gpu", (1, "GPU-3")))
    (warning,) = watched.warnings
    assert warning.startswith("no telemetry of GPUs 1, GPU-3: NVML says")
    rows = watched.telemetry.to_pylist()
    assert [row["device"] for row in rows] == ["gpu1", "GPU-3"]
    assert {row[name] for row in rows for name in MEASURED} == {None}


def test_a_device_that_nvml_does_not_know_is_named(monkeypatch):
    use_fake_nvml(monkeypatch)
    watched = watched_once(WatchPlan("gpu", (0, 7, "MIG-0-0")))
    told = [f"no telemetry of GPU {name}" for name in ("7", "MIG-0-0")]
    assert [warning.split(":")[0] for warning in watched.warnings] == told
    (unknown,) = rows_of(watched, "gpu7")
    assert unknown["power_w"] is None and rows_of(watched, "gpu0")[0]["power_w"] == 100


def test_servers_are_asked_each_second_and_a_dead_one_is_a_gap():
    with StubServer(answer_text(VLLM)) as server:
        dead = "http://127.0.0.1:9"
        plan = WatchPlan("cpu", (0,), (os.getpid(),), (server.url, dead, server.url))
        watched = watched_until(lambda it: it.server.num_rows >= 4, plan, level=8)
    assert watched.server.schema == SERVER_SCHEMA
    rows = watched.server.to_pylist()
    assert Counter(row["replica"] for row in rows).keys() == {0, 2}
    first_replica = [row for row in rows if row["replica"] == 0]
    assert len(first_replica) <= most_rows(first_replica, HTTP_PERIOD_S)
    first = rows[0]
    assert (first["level"], first["n_running"], first["kv_cache_usage"]) == (8, 3, 0.5)
    assert first["n_waiting"] is first["n_preemptions"] is None


def of_dcgm(watched: Watched) -> list[dict]:
    return [row for row in rows_of(watched, "gpu0") if row["sm_active"] is not None]


def test_dcgm_adds_sm_activity(monkeypatch):
    use_fake_nvml(monkeypatch)
    text = 'DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-0"} 0.25\n'
    text += 'DCGM_FI_PROF_SM_OCCUPANCY{gpu="0",UUID="GPU-0"} 0.125\n'
    with StubServer(answer_text(text)) as exporter:
        plan = WatchPlan("gpu", (0,), dcgm_url=f"{exporter.url}/metrics")
        watched = watched_until(lambda it: len(of_dcgm(it)) > 1, plan)
    rows = of_dcgm(watched)
    assert len(rows) <= most_rows(rows, HTTP_PERIOD_S) and watched.warnings == []
    known = {"sm_active": 0.25, "sm_occupancy": 0.125, "power_w": None}
    assert rows[0] == rows[0] | known


PARENT = """
import signal, time
# Ignored by what runs in a shell's background, as these tests may.
signal.signal(signal.SIGINT, signal.default_int_handler)
from sextant.engine.watcher import Watcher, WatchPlan
with Watcher(WatchPlan("gpu", (0,)), time.monotonic_ns(), 1) as watcher:
    print(watcher.process.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent(monkeypatch, number):
    use_fake_nvml(monkeypatch)
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    parent = subprocess.Popen([sys.executable, "-c", PARENT], **how)
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.send_signal(number)
    parent.wait(20)
    parent.stdout.close()
    wait_for(lambda: is_gone(pid), "its end")


def test_what_a_killed_process_had_sampled_is_kept(monkeypatch):
    use_fake_nvml(monkeypatch)
    with Watcher(WatchPlan("gpu", (0,)), time.monotonic_ns(), 1) as watcher:
        wait_for(lambda: so_far(watcher).telemetry.num_rows >= 2, "rows")
        os.kill(watcher.process.pid, signal.SIGKILL)
        watched = watcher.stop()
    assert len(rows_of(watched, "gpu0")) >= 2
    (warning,) = watched.warnings
    assert "ended with status -9" in warning


def test_a_device_that_hangs_keeps_nobody(monkeypatch):
    use_fake_nvml(monkeypatch, slow="1:60")
    monkeypatch.setattr("sextant.engine.watcher._START_LIMIT_S", 0.5)
    with Watcher(WatchPlan("gpu", (0, 1)), time.monotonic_ns(), 1) as watcher:
        wait_for(lambda: so_far(watcher).telemetry.num_rows, "rows")
        watched = watcher.stop()
    assert not psutil.pid_exists(watcher.process.pid)
    assert len(rows_of(watched, "gpu0")) >= 1 and rows_of(watched, "gpu1") == []
    assert watched.warnings == ["not every source was read within 0.5 s"]
