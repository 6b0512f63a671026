"""A job's log, uncaught errors included, and the job's orderly stop."""

import asyncio
import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from sextant.base.errors import InputError
from sextant.base.processes.parent_watch import end_with_snakemake
from sextant.base.text import printable


@contextlib.contextmanager
def job_log(path: str | Path) -> Iterator[logging.Logger]:
    """Log to `path` and, from INFO on, to stderr; an exception is logged before it ends the job.

    SIGTERM, which schedulers send before SIGKILL, stops the job as an exception does: servers
    stop, unfinished files are removed. So does the exit of the Snakemake that started the job.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("")  # then appended to: a job that was thought dead may write it too
    file, stderr = logging.FileHandler(path, mode="a", encoding="utf-8"), logging.StreamHandler()
    file.setFormatter(_Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    stderr.setFormatter(_Formatter("%(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[file, stderr], force=True)
    logger = logging.getLogger("sextant")
    try:
        with _ends_on_sigterm():
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


@contextlib.contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread can set signal handlers
        return

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # nothing may interrupt the stop
        raise_between_callbacks(SystemExit(128 + number))

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


class _Formatter(logging.Formatter):
    """Keeps what servers and files of strangers say from controlling the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record), keep="\n\t")


def raise_between_callbacks(error: BaseException) -> None:
    """Raise an exception in a signal handler; while a loop runs, after the current callback.

    uvloop takes an exception inside a connection's callback for a failure of that connection, and
    continues.
    """

    def raise_error() -> None:
        raise error

    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        raise error from None
    loop.call_soon_threadsafe(raise_error)
