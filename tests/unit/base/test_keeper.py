"""The keeper's one promise: when the owner ends, nothing it started is left."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from support import PATIENCE_S, wait_for

# A server with a worker, and a daemon that has cut every tie: own session, parent 1.
FAMILY = """
import os, pathlib, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
def note():
    (folder / f"{os.getpid()}.tmp").touch()
    (folder / f"{os.getpid()}.tmp").rename(folder / f"{os.getpid()}.pid")
if os.fork() == 0:                      # worker
    note(); time.sleep(600)
if os.fork() == 0:                      # daemon
    os.setsid()
    if os.fork():
        os._exit(0)
    if "--stubborn" in sys.argv:
        import signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    note(); time.sleep(600)
note()
if "--ends" in sys.argv:
    while len(list(folder.glob("*.pid"))) < 3:
        time.sleep(0.02)
    sys.exit(7)
time.sleep(600)
"""

# An owner that starts the keeper as the library does, says so and waits.
OWNER = """
import signal, subprocess, sys, time
# A shell's background jobs are born deaf to Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
keeper = subprocess.Popen(
    [sys.executable, "-m", "sextant.base.keeper", *sys.argv[1:]],
    stdin=subprocess.PIPE, start_new_session=True)
print(keeper.pid, flush=True)
try:
    time.sleep(600)
finally:
    keeper.stdin.close()
    keeper.wait()
"""


def runs(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture
def family(tmp_path):
    """The command of a family of three, and the ids of those that have started."""

    def pids() -> list[int]:
        return [int(path.stem) for path in tmp_path.glob("*.pid")]

    def command(*options: str) -> list[str]:
        return [sys.executable, "-c", FAMILY, str(tmp_path), *options]

    command.pids = pids
    command.started = lambda: wait_for(lambda: len(pids()) == 3, "the family did not start")
    yield command
    for pid in pids():  # only after a failure is one of them left
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def kept(*command: str, cpus: str = "-", limit: str = "-"):
    words = [sys.executable, "-m", "sextant.base.keeper", cpus, limit, *command]
    pipes = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    keeper = subprocess.Popen(words, **pipes, start_new_session=True, text=True)
    try:
        yield keeper
    finally:
        keeper.stdin.close()
        keeper.stdout.close()
        keeper.wait(PATIENCE_S)


@contextlib.contextmanager
def owned(*command: str):
    """Start an owner in a process group of its own; yield it and its keeper's id."""
    words = [sys.executable, "-c", OWNER, "-", "-", *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    owner = subprocess.Popen(words, **pipes, start_new_session=True, text=True)
    try:
        yield owner, int(owner.stdout.readline())
    finally:
        owner.kill()
        owner.wait()
        owner.stdout.close()


# Who ignores SIGTERM is killed after a grace of 4 s.
@pytest.mark.parametrize(("options", "least_s"), [((), 0), (("--stubborn",), 4)])
def test_a_closed_pipe_ends_all_daemons_too(family, options, least_s):
    with kept(*family(*options)) as keeper:
        family.started()
        assert all(map(runs, family.pids()))
        started = time.monotonic()
        keeper.stdin.close()
        keeper.wait(PATIENCE_S)
        # When the keeper is gone so are all, not some time later.
        assert time.monotonic() - started >= least_s
        assert not any(map(runs, family.pids()))


def test_a_server_that_ends_takes_its_daemons_along(family):
    with kept(*family("--ends")) as keeper:
        assert keeper.wait(PATIENCE_S) == 7
    assert len(family.pids()) == 3
    assert not any(map(runs, family.pids()))


# Ctrl-C in a terminal reaches the whole group of processes.
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_an_owner_that_is_killed_leaves_nothing(family, number):
    with owned(*family()) as (owner, keeper_pid):
        family.started()
        send = os.killpg if number == signal.SIGINT else os.kill
        send(owner.pid, number)
        owner.wait(PATIENCE_S)
        left = [keeper_pid, *family.pids()]
        wait_for(lambda: not any(map(runs, left)), "processes are left")


def test_the_keeper_itself_stays_at_its_post(family):
    with kept(*family()) as keeper:
        family.started()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            keeper.send_signal(number)
        time.sleep(0.3)
        assert keeper.poll() is None
        assert all(map(runs, family.pids()))


def test_a_killed_keeper_takes_the_server_along(family):
    with kept(*family()) as keeper:
        family.started()
        (server,) = psutil.Process(keeper.pid).children()[:1]
        keeper.kill()
        keeper.wait(PATIENCE_S)
        wait_for(lambda: not runs(server.pid), "the server is left")


@pytest.mark.parametrize(
    ("script", "status"),
    [("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", 256 - 9)],
)
def test_the_status_is_the_servers(script, status):
    with kept(sys.executable, "-c", script) as keeper:
        assert keeper.wait(PATIENCE_S) == status


def test_the_server_runs_on_the_given_cores_and_ignores_no_signal():
    core = min(os.sched_getaffinity(0))
    script = "import os, signal; ignored = [signal.getsignal(n) == signal.SIG_IGN for n in (1, 15)]"
    script += "; print(sorted(os.sched_getaffinity(0)), ignored)"
    with kept(sys.executable, "-c", script, cpus=str(core)) as keeper:
        assert keeper.stdout.read().strip() == f"[{core}] [False, False]"


@pytest.mark.parametrize(("limit", "said"), [("300000000", "no memory"), ("-", "got it")])
def test_the_limit_is_on_what_each_process_takes(limit, said):
    script = (
        "import mmap\n"
        "read_only = mmap.mmap(-1, 2**30, prot=mmap.PROT_READ)\n"  # mapped, not taken
        "try: taken = bytearray(2**29); print('got it')\n"
        "except MemoryError: print('no memory')"
    )
    with kept(sys.executable, "-c", script, limit=limit) as keeper:
        assert keeper.stdout.read().strip() == said
