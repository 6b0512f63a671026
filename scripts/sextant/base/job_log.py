"""A job: its log, its progress line, and its orderly stop, also when its Snakemake has exited."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from sextant.base.errors import InputError, printable

log = logging.getLogger(__name__)
_PERIOD_S = 1.0
_GRACE_S = 20.0  # for servers to stop and files to be removed, before the job is killed
_SNAKEMAKE = "SEXTANT_SNAKEMAKE"
"""Environment variable: process id, start time and namespace of a job's Snakemake.

A Snakemake that was killed cannot stop its jobs, and the kernel's signal (PR_SET_PDEATHSIG) does
not reach them through the shells in between: they look whether it still runs.
"""


@contextlib.contextmanager
def job_log(path: str | Path) -> Iterator[logging.Logger]:
    """Log to `path` and, from INFO on, to stderr; an exception is logged before it ends the job.

    SIGTERM, which schedulers send before SIGKILL, stops the job as an exception does: servers stop,
    unfinished files are removed. The job stops likewise when its Snakemake has exited.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # Emptied, then appended to: a job that was thought dead may still write to the same file.
    Path(path).write_text("")
    file = logging.FileHandler(path, mode="a", encoding="utf-8")
    file.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    stderr = logging.StreamHandler()
    stderr.setFormatter(_Formatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[file, stderr], force=True)
    logger = logging.getLogger("sextant")

    # Only the main thread can set signal handlers.
    is_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _end) if is_main else None
    try:
        end_with_snakemake()
        yield logger
    except InputError as error:
        # The message says everything; a traceback would hide it.
        logger.error("%s", error)
        sys.exit(2)
    except SystemExit as error:
        logger.error("the job exits with status %s", error.code)
        raise
    except BaseException:
        logger.exception("the job failed")
        raise
    finally:
        if is_main:
            signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _end(number: int, _: object) -> None:
    signal.signal(number, signal.SIG_IGN)  # nothing may interrupt the stop
    raise_between_callbacks(SystemExit(128 + number))


class _Formatter(logging.Formatter):
    """Escapes invisible characters, so that foreign text cannot control the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")


def raise_between_callbacks(error: BaseException) -> None:
    """Raise an exception in a signal handler; while an event loop runs, after its current callback.

    Inside the callback of a connection, uvloop would take the exception for a failure of that
    connection.
    """

    def raise_error() -> None:
        raise error

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    loop.call_soon_threadsafe(raise_error)


def announce_to_jobs() -> None:
    """Tell the jobs of this process, a Snakemake, its process id (`end_with_snakemake`)."""
    if started := _started(os.getpid()):
        os.environ[_SNAKEMAKE] = f"{os.getpid()} {started} {_namespace()}"


def end_with_snakemake() -> None:
    """Stop this process by SIGTERM, later SIGKILL, once the Snakemake that started it has exited.

    On a cluster that is the Snakemake inside the job. Two kinds of processes are not watched: one
    without a Snakemake, and one in a container that hides the processes outside.
    """
    if named := os.environ.get(_SNAKEMAKE):
        pid, started, namespace = named.split()

        def is_running() -> bool:
            try:
                return _started(int(pid)) == started
            except OSError:  # unknown: a job under load may have no file descriptor left
                return True

        if namespace == _namespace():
            _stop_after(is_running)


def end_with_parent() -> None:
    """Stop this process, a Snakemake that a scheduler has started, once its parent has exited.

    SLURM without control groups loses track of a job's Snakemake when the job's shell ends first.
    Snakemake (9.27) may also get SIGTERM while it holds the lock that its handler waits for.
    """
    parent = os.getppid()
    _stop_after(lambda: os.getppid() == parent)


def _started(pid: int) -> str | None:
    """Return when a process started (ids repeat), at little cost; None if it has exited."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, *fields = text.rpartition(")")[2].split()
    # proc(5): field 3 is the state, field 22 the start time; the name before may hold anything.
    return None if state in "ZX" else fields[18]


def _namespace() -> str:
    with contextlib.suppress(OSError):
        return str(Path("/proc/self/ns/pid").readlink())
    return "unknown"


def _stop_after(is_running: Callable[[], bool]) -> None:
    def watch() -> None:
        while is_running():
            time.sleep(_PERIOD_S)
        log.error("parent process exited; stopping")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


class Progress:
    """Shows the step that runs and the time left: on a terminal in one line that changes, without
    hiding its cursor; elsewhere as lines of the job's log."""

    n_shown = 0
    """Progress lines that are open."""

    def __init__(self, title: str, n_steps: int) -> None:
        self._title = title
        self._n_steps = n_steps
        self._n_started = 0
        self._first_step_at = 0.0
        self.is_shown = sys.stderr.isatty()
        Progress.n_shown += 1

    def step(self, name: str) -> None:
        """Start the next step."""
        if self._n_started == 0:
            self._first_step_at = time.monotonic()
        n_done = self._n_started
        text = f"{n_done + 1} of {self._n_steps}: {name}"
        self._n_started += 1
        if n_done:
            per_step_s = (time.monotonic() - self._first_step_at) / n_done
            text += f", about {per_step_s * (self._n_steps - n_done):.0f} s left"
        self.note(text)

    def note(self, text: str) -> None:
        """Show what happens between steps."""
        if self.is_shown:
            print(f"\r\x1b[K{self._title}: {text}", end="", file=sys.stderr, flush=True)
        else:
            log.info("%s: %s", self._title, text)

    def close(self) -> None:
        """Leave the line."""
        Progress.n_shown -= 1
        if self.is_shown:
            print(file=sys.stderr)


@contextlib.contextmanager
def showing_time(title: str, after_s: float = 5.0, every_s: float = 1.0) -> Iterator[None]:
    """Show on a terminal for how long the block has run, once that is a while, unless it shows a
    progress line of its own."""
    if not sys.stderr.isatty():
        yield
        return
    has_ended = threading.Event()
    began_s = time.monotonic()

    def show() -> None:
        wait_s = after_s
        while not has_ended.wait(wait_s):
            wait_s = every_s
            if not Progress.n_shown:
                elapsed = f"{time.monotonic() - began_s:.0f} s"
                print(f"\r\x1b[K{title}: {elapsed}", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
        if time.monotonic() - began_s >= after_s and not Progress.n_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
