"""A job's scratch folder goes with the job, whatever ends it."""

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sextant.base import caretaker
from sextant.base.errors import InputError
from sextant.base.scratch import scratch_folder, share
from support import PATIENCE_S, time_limit, wait_for

# A job with a scratch folder, an unfinished result and a child that shares the folder.
JOB = """
import os, subprocess, sys, time
from pathlib import Path
from sextant.base.scratch import scratch_folder, share
results = Path(sys.argv[1])
with scratch_folder(results) as folder:
    (folder / "cache" / "deep").mkdir(parents=True)
    (results / "partial").mkdir()
    for name in (f"run.{os.getpid()}", "other.1"):
        (results / "partial" / f".{name}.partial.json").touch()
    (results / ".lock").touch()
    script = "import sys, time; time.sleep(float(sys.argv[1]))"
    with share(folder) as lock:
        child = subprocess.Popen([sys.executable, "-c", script, sys.argv[2]],
                                 pass_fds=[lock.fileno()], stdout=subprocess.DEVNULL)
    print(folder, child.pid, flush=True)
    time.sleep(600)
"""

# A job that is killed when its folder has just been made, before anything keeps it.
KILLED_EARLY = """
import fcntl, os, signal, sys
from pathlib import Path
from sextant.base.scratch import scratch_folder
fcntl.flock = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
with scratch_folder(Path(sys.argv[1])):
    pass
"""


@pytest.fixture
def place(monkeypatch) -> Iterator[Path]:
    """A node's disk: a folder with a short path, since those of sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="sx-") as folder:
        monkeypatch.setenv("SLURM_TMPDIR", folder)
        yield Path(folder)


def start(results: Path, child_s: float) -> tuple[subprocess.Popen, Path, int]:
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(results), str(child_s)], stdout=subprocess.PIPE, text=True
    )
    folder, child = job.stdout.readline().split()
    return job, Path(folder), int(child)


def test_the_folder_is_the_blocks(place, tmp_path):
    others = psutil.Process().children()  # what other tests of this process keep
    with scratch_folder(tmp_path) as first, scratch_folder(tmp_path) as second:
        assert first.parent == second.parent == place and first != second
        (first / "model").mkdir()
        started = set(psutil.Process().children()).difference(others)
        assert len(started) == 2
    assert list(place.iterdir()) == []
    assert not any(process.is_running() for process in started)
    with pytest.raises(ZeroDivisionError), scratch_folder(tmp_path):
        _ = 1 / 0
    assert list(place.iterdir()) == []


def test_a_job_that_is_killed_leaves_neither_scratch_nor_half_files(place, tmp_path):
    job, folder, child = start(tmp_path, 600)
    job.kill()
    job.wait()
    job.stdout.close()
    left = tmp_path / "partial"
    wait_for(lambda: len(list(left.iterdir())) == 1, "a half file is left")
    assert [path.name for path in left.iterdir()] == [".other.1.partial.json"]  # another job's
    wait_for(lambda: not (tmp_path / ".lock").exists(), "the lock is left")
    assert (folder / "cache" / "deep").exists()  # a server may still write
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: not folder.exists(), "the scratch folder is left")
    assert list(place.iterdir()) == []


def test_a_job_that_is_killed_as_it_makes_its_folder_leaves_none(place, tmp_path):
    (tmp_path / ".lock").touch()
    job = subprocess.run([sys.executable, "-c", KILLED_EARLY, str(tmp_path)])
    assert job.returncode == -signal.SIGKILL
    wait_for(lambda: not (tmp_path / ".lock").exists(), "the lock is left")
    wait_for(lambda: not list(place.iterdir()), "the scratch folder is left")


def test_a_job_that_is_ended_as_it_takes_its_lock_is_not_held_up(place, tmp_path, monkeypatch):
    take = fcntl.flock

    def end(*arguments: int) -> None:
        take(*arguments)
        raise SystemExit(143)  # as SIGTERM does, at any moment

    monkeypatch.setattr("fcntl.flock", end)
    began_s = time.monotonic()
    with pytest.raises(SystemExit), scratch_folder(tmp_path):
        pass
    assert list(place.iterdir()) == [] and time.monotonic() < began_s + 9


def test_a_folder_that_is_being_made_is_not_tidied_up(place, tmp_path, monkeypatch):
    take = fcntl.flock

    def tidy_first(*arguments: int) -> None:
        monkeypatch.setattr("fcntl.flock", take)
        with scratch_folder(tmp_path):
            pass
        take(*arguments)

    monkeypatch.setattr("fcntl.flock", tidy_first)
    with scratch_folder(tmp_path) as folder, share(folder), share(folder):
        assert list(place.iterdir()) == [folder]


def test_what_a_node_that_went_down_left_is_removed_by_the_next_job(place, tmp_path):
    job, folder, child = start(tmp_path, 600)
    (its_caretaker,) = (p for p in psutil.Process(job.pid).children() if p.pid != child)
    with scratch_folder(tmp_path):
        assert folder.exists()  # its job lives
    for process in (its_caretaker, job):
        process.kill()
    job.wait()
    job.stdout.close()
    with scratch_folder(tmp_path):
        assert folder.exists()  # its server lives
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: not psutil.pid_exists(child), "the child is left")
    with scratch_folder(tmp_path) as mine:
        assert list(place.iterdir()) == [mine]


def test_a_disk_that_is_full_missing_or_deep_is_named(place, tmp_path, monkeypatch):
    usage = type("usage", (), {"free": 2**20})
    with monkeypatch.context() as full:
        full.setattr("shutil.disk_usage", lambda _: usage)
        with (
            pytest.raises(InputError, match=rf"{place}: scratch is full: 1 MiB .*TMPDIR"),
            scratch_folder(tmp_path),
        ):
            pass
    assert list(place.iterdir()) == []
    monkeypatch.setenv("SLURM_TMPDIR", str(place / "none"))
    with (
        pytest.raises(InputError, match=r"none: no scratch folder .*No such file"),
        scratch_folder(tmp_path),
    ):
        pass
    deep = place / ("d" * 60)
    deep.mkdir()
    monkeypatch.setenv("SLURM_TMPDIR", str(deep))
    with pytest.raises(InputError, match="too long for sockets"), scratch_folder(tmp_path):
        pass
    assert list(deep.iterdir()) == []


def test_the_caretaker_does_not_wait_for_a_pipe(tmp_path):
    """Somebody else may make the folder first: its name is on the caretaker's command line."""
    (tmp_path / "scratch").mkdir()
    os.mkfifo(tmp_path / "scratch" / "lock")
    command = [sys.executable, "-I", "-S", str(Path(caretaker.__file__))]
    command += [str(tmp_path / "scratch"), str(tmp_path), "1"]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True, timeout=PATIENCE_S)


def test_what_another_user_put_there_is_left_alone(place, tmp_path, monkeypatch):
    """A pipe called `lock` would be waited for; a link could lead to a folder of ours; a folder of
    the user may only look like scratch."""
    pipe, linked, alike, theirs = (place / f"sextant-0123abc{n}" for n in range(4))
    ours = tmp_path / "ours"
    for folder in (pipe, linked, alike, theirs, ours):
        folder.mkdir()
    os.mkfifo(pipe / "lock")
    (ours / "lock").touch()
    (linked / "lock").symlink_to(ours / "lock")
    (alike / "lock").write_text("mine")
    (place / "sextant-0123abc9").symlink_to(ours)
    before = {path.name for path in place.iterdir()}
    with time_limit(PATIENCE_S), scratch_folder(tmp_path):
        pass
    (theirs / "lock").write_text("a scratch folder of Sextant, removed when its job has ended\n")
    monkeypatch.setattr("os.getuid", lambda: theirs.stat().st_uid + 1)
    with scratch_folder(tmp_path):
        pass
    assert {path.name for path in place.iterdir()} == before
    assert (ours / "lock").exists()
