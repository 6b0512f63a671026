"""A job's log, which has everything, uncaught errors included, and the job's orderly end."""

import contextlib
import logging
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from sextant.base.errors import InputError
from sextant.processes.parent_watch import end_with_snakemake
from sextant.processes.signals import raise_between_callbacks


@contextlib.contextmanager
def job_log(path: str | Path) -> Iterator[logging.Logger]:
    """Log to `path` and, from INFO on, to stderr; an exception is logged before it ends the job.

    SIGTERM, which schedulers send before SIGKILL, ends the job as an exception does: servers
    end, unfinished files go. So does the end of the Snakemake that has started the job.
    """
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text("")  # and appended to: a job that was taken for dead may write it too
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[logging.FileHandler(path, mode="a", encoding="utf-8"), _stderr()],
        force=True,
    )
    logger = logging.getLogger("sextant")
    try:
        with _ends_on_sigterm():
            end_with_snakemake()
            yield logger
    except InputError as error:
        # The message is the whole story; a traceback would bury it.
        logger.error("%s", error)
        sys.exit(2)
    except SystemExit as error:
        logger.error("the job ends with status %s", error.code)
        raise
    except BaseException:
        logger.exception("the job failed")
        raise


@contextlib.contextmanager
def _ends_on_sigterm() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what a signal does
        return

    def end(number: int, _: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # the end is not to be interrupted
        raise_between_callbacks(SystemExit(128 + number))

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _stderr() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler
