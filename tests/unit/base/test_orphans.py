"""A job ends with the Snakemake that started it, and on SIGTERM."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support import PATIENCE_S, wait_for

JOB = """
import sys, time
from sextant.base.whole_files import atomic_path
from sextant.base.job_log import job_log
with job_log(sys.argv[1]):
    with atomic_path(sys.argv[2]) as path:
        path.touch()
        print("ready", flush=True)
        {wait}
"""
UNTIL = """
        from pathlib import Path
        while not Path("{go}").exists():
            time.sleep(0.1)
"""
WITHOUT_FILES = """
        import resource
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        time.sleep(2.5)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
"""
STUCK = """
import signal, threading, time
from sextant.base.job_log import end_with_parent
end_with_parent()
lock = threading.Lock()
signal.signal(signal.SIGTERM, lambda *_: lock.acquire())
with lock:
    print("ready", flush=True)
    time.sleep(600)
"""
# A Snakemake: it names itself, and runs what it is given in a shell.
MAIN = """
import subprocess, sys
from sextant.base.job_log import announce_to_jobs
announce_to_jobs()
subprocess.run(sys.argv[1], shell=True)
"""


@pytest.fixture
def job(tmp_path: Path):
    """Write a job; return what starts it, and the files it writes."""

    def write(wait: str = "time.sleep(600)") -> tuple[str, Path, Path]:
        script = tmp_path / "job.py"
        script.write_text(JOB.format(wait=wait))
        log, result = tmp_path / "job.log", tmp_path / "out" / "result.json"
        return f"{sys.executable} {script} {log} {result}", log, result

    return write


def unfinished(result: Path) -> list[Path]:
    return list(result.parent.glob(".*")) if result.parent.exists() else []


def test_sigterm_ends_a_job_in_order(job):
    command, log, result = job()
    process = subprocess.Popen(command.split(), stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    assert unfinished(result)
    process.terminate()
    assert process.wait(20) == 128 + signal.SIGTERM
    process.stdout.close()
    assert not unfinished(result) and not result.exists()
    assert "the job exits with status 143" in log.read_text()


def start(command: str) -> subprocess.Popen:
    return subprocess.Popen([sys.executable, "-c", MAIN, command])


@pytest.mark.parametrize(
    ("wait", "shell"),
    [("time.sleep(600)", "true; {}; exit $?"), ("import signal; signal.pause()", "{}")],
)
def test_a_job_ends_when_its_snakemake_is_killed(job, wait, shell):
    command, log, result = job(wait)
    main = start(shell.format(command))
    wait_for(lambda: unfinished(result), "the job did not start")
    below = psutil.Process(main.pid).children(recursive=True)
    time.sleep(1.5)
    assert all(process.is_running() for process in below)
    main.kill()  # and not reaped yet, as by a parent that does not look
    _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
    main.wait()
    assert not alive
    assert not unfinished(result) and not result.exists()
    assert "parent process exited" in log.read_text()


def test_a_job_that_starts_when_its_snakemake_is_gone_ends_at_once(job):
    command, log, _ = job()
    main = start(f"sleep 2; {command}; exit $?")
    below = wait_for(lambda: psutil.Process(main.pid).children(recursive=True), "no start")
    main.kill()
    main.wait()
    wait_for(log.exists, "the job did not start")
    _, alive = psutil.wait_procs(below, timeout=PATIENCE_S)
    assert not alive
    assert "parent process exited" in log.read_text()


def test_a_job_knows_the_nearest_snakemake_as_inside_a_job_of_a_cluster(job, tmp_path):
    go = tmp_path / "go"
    command, _, result = job(UNTIL.format(go=go))
    inner = tmp_path / "inner.py"
    inner.write_text(MAIN)
    outer = start(f"setsid {sys.executable} {inner} '{command}' & wait")
    wait_for(lambda: unfinished(result), "the job did not start")
    psutil.Process(outer.pid).children()[0].kill()
    outer.kill()
    outer.wait()
    time.sleep(2.5)  # looks for its Snakemake meanwhile
    go.touch()
    wait_for(result.exists, "the job was ended")


@pytest.mark.slow
def test_a_snakemake_that_holds_its_own_lock_ends_with_the_shell_of_its_job(tmp_path):
    """SIGTERM finds it with the lock that its handler wants, as Snakemake 9.27 does."""
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    shell = subprocess.Popen(
        ["bash", "-c", f"{sys.executable} {script}; exit $?"], stdout=subprocess.PIPE, text=True
    )
    assert shell.stdout.readline() == "ready\n"
    shell.stdout.close()
    (stuck,) = psutil.Process(shell.pid).children()
    stuck.terminate()
    time.sleep(0.5)
    assert stuck.is_running()
    shell.kill()
    shell.wait()
    _, alive = psutil.wait_procs([stuck], timeout=PATIENCE_S)
    assert not alive


def test_a_job_goes_on_when_it_cannot_look(job):
    """A load client at the limit of its open files is no reason to end it."""
    command, _, result = job(WITHOUT_FILES)
    main = start(command)
    wait_for(result.exists, "the job was ended")
    assert main.wait(PATIENCE_S) == 0
