"""A job ends with the Snakemake that started it, and on SIGTERM."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

JOB = """
import sys, time
from sextant.files import atomic_path
from sextant.logs import job_log
with job_log(sys.argv[1]):
    with atomic_path(sys.argv[2]) as path:
        path.touch()
        print("ready", flush=True)
        {wait}
"""
STUCK = """
import signal, threading, time
from sextant.orphans import end_with_parent
end_with_parent()
lock = threading.Lock()
signal.signal(signal.SIGTERM, lambda *_: lock.acquire())
with lock:
    time.sleep(600)
"""
# As Snakemake does it: main, a shell, a Snakemake for one job, a shell, the script.
MAIN = "import subprocess, sys; subprocess.run(sys.argv[1], shell=True)"
RUNNER = "-m snakemake --mode subprocess"


@pytest.fixture
def job(tmp_path: Path):
    """Write a job; return what starts it, and the files it writes."""

    def write(wait: str = "time.sleep(600)") -> tuple[str, Path, Path]:
        script = tmp_path / "job.py"
        script.write_text(JOB.format(wait=wait))
        log, result = tmp_path / "job.log", tmp_path / "out" / "result.json"
        return f"{sys.executable} {script} {log} {result}", log, result

    return write


@pytest.fixture
def runner(tmp_path: Path) -> str:
    """A stand-in for the Snakemake that runs one job: it has its command line."""
    (tmp_path / "stand-in" / "snakemake").mkdir(parents=True)
    main = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[-1], shell=True))"
    (tmp_path / "stand-in" / "snakemake" / "__main__.py").write_text(main)
    (tmp_path / "stand-in" / "snakemake" / "__init__.py").touch()
    return f"cd {tmp_path / 'stand-in'} && {sys.executable} {RUNNER}"


def wait_for(condition, what: str):
    deadline = time.monotonic() + 30
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.05)
    return found


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
    assert "the job ends with status 143" in log.read_text()


@pytest.mark.parametrize("wait", ["time.sleep(600)", "import signal; signal.pause()"])
def test_a_job_ends_when_the_main_process_is_killed(job, runner, wait):
    command, log, result = job(wait)
    main = subprocess.Popen([sys.executable, "-c", MAIN, f"{runner} 'true; {command}; exit $?'"])
    wait_for(lambda: unfinished(result), "the job did not start")
    below = psutil.Process(main.pid).children(recursive=True)
    assert len(below) >= 4  # shell, Snakemake of the job, shell, script
    time.sleep(1.5)
    assert all(process.is_running() for process in below)
    main.kill()
    main.wait()
    _, alive = psutil.wait_procs(below, timeout=20)
    assert not alive
    assert not unfinished(result) and not result.exists()
    assert "has ended without ending it" in log.read_text()


def test_a_job_that_starts_when_the_main_process_is_gone_ends_at_once(job, runner):
    command, log, _ = job()
    late = f"{runner} 'sleep 2; {command}; exit $?'"
    main = subprocess.Popen([sys.executable, "-c", MAIN, late])
    wait_for(lambda: len(psutil.Process(main.pid).children(recursive=True)) >= 3, "no start")
    below = psutil.Process(main.pid).children(recursive=True)
    main.kill()
    main.wait()
    _, alive = psutil.wait_procs(below, timeout=30)
    assert not alive
    assert "has ended without ending it" in log.read_text()


def test_a_snakemake_that_holds_its_own_lock_ends_with_the_shell_of_its_job(tmp_path):
    """SIGTERM finds it with the lock that its handler wants, as Snakemake 9.27 does."""
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    shell = subprocess.Popen(["bash", "-c", f"{sys.executable} {script}; exit $?"])
    (stuck,) = wait_for(lambda: psutil.Process(shell.pid).children(), "no start")
    time.sleep(1.5)
    stuck.terminate()
    time.sleep(0.5)
    assert stuck.is_running()
    shell.kill()
    shell.wait()
    _, alive = psutil.wait_procs([stuck], timeout=40)
    assert not alive


def test_a_job_goes_on_where_no_snakemake_has_started_it(job):
    command, _, result = job("time.sleep(3)")
    shell = subprocess.Popen(["bash", "-c", f"({command}) & sleep 1"], stdout=subprocess.DEVNULL)
    shell.wait()  # as a login shell that ends: its children live on
    wait_for(result.exists, "the job was ended")
    assert result.stat().st_size == 0
