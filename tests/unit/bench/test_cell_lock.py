"""One job at a time measures a cell."""

import errno
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import support
from sextant.base.scratch import cell_lock

HOLDER = """
import sys, time
from pathlib import Path
from sextant.base.scratch import cell_lock
with cell_lock(Path(sys.argv[1])) as has_waited:
    print(has_waited, flush=True)
    time.sleep(600)
"""


def hold(folder: Path) -> subprocess.Popen:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "False\n"
    return holder


def test_a_lock_that_nobody_holds_is_had_at_once_and_leaves_nothing(tmp_path):
    with cell_lock(tmp_path) as has_waited:
        assert not has_waited
        assert (tmp_path / ".lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_a_second_job_waits_says_so_and_goes_on_when_the_first_is_killed(tmp_path, caplog):
    caplog.set_level("INFO")
    first = hold(tmp_path)
    got = []

    def second() -> None:
        with cell_lock(tmp_path) as has_waited:
            got.append(has_waited)

    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(1.5)
    assert got == []
    first.kill()
    first.wait()
    first.stdout.close()
    thread.join(10)
    assert got == [True]
    (record,) = caplog.records
    assert "another job measures this cell" in record.message
    assert list(tmp_path.iterdir()) == []


def test_a_job_that_is_ended_while_it_takes_the_lock_leaves_none(tmp_path, monkeypatch):
    take = fcntl.flock

    def end(*arguments: int) -> None:
        monkeypatch.undo()
        take(*arguments)
        raise SystemExit(143)  # as SIGTERM does, at any moment

    monkeypatch.setattr("fcntl.flock", end)
    with pytest.raises(SystemExit), cell_lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_never_two_at_once(tmp_path):
    inside, most = [], []

    def job() -> None:
        for _ in range(3):
            with cell_lock(tmp_path):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.01)
                inside.pop()

    threads = [threading.Thread(target=job) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 12


def test_a_lock_that_another_node_has_removed_is_made_anew(tmp_path, monkeypatch, caplog):
    def stale(*_: object) -> None:
        monkeypatch.undo()
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr("fcntl.flock", stale)
    with cell_lock(tmp_path):
        assert (tmp_path / ".lock").exists()
    assert list(tmp_path.iterdir()) == [] and not caplog.records


def test_a_file_system_without_locks_is_told(tmp_path, monkeypatch, caplog):
    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    with cell_lock(tmp_path) as has_waited:
        assert not has_waited
    assert "cannot be locked (Function not implemented)" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_or_a_link_in_place_of_the_lock_is_refused(tmp_path):
    os.mkfifo(tmp_path / ".lock")
    with support.time_limit(20), pytest.raises(OSError, match="No such device"):
        cell_lock(tmp_path).__enter__()
    (tmp_path / ".lock").unlink()
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), cell_lock(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_job_that_is_ended_while_it_waits_leaves_the_lock_to_its_holder(tmp_path, monkeypatch):
    holder = hold(tmp_path)

    def end(_: float) -> None:
        raise SystemExit(143)

    monkeypatch.setattr("time.sleep", end)
    with pytest.raises(SystemExit), cell_lock(tmp_path):
        pass
    assert (tmp_path / ".lock").exists()
    holder.kill()
    holder.wait()
    holder.stdout.close()
