"""Logging of one job: everything, uncaught errors included, goes to the rule's log file."""

import contextlib
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

from sextant.errors import InputError


@contextlib.contextmanager
def job_log(path: str | Path) -> Iterator[logging.Logger]:
    """Log to `path` and, from INFO on, to stderr; an exception is logged before it ends the job."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        handlers=[logging.FileHandler(path, mode="w", encoding="utf-8"), _stderr()],
        force=True,
    )
    logger = logging.getLogger("sextant")
    try:
        yield logger
    except InputError as error:
        # The message is the whole story; a traceback would bury it.
        logger.error("%s", error)
        sys.exit(2)
    except BaseException:
        logger.exception("the job failed")
        raise


def _stderr() -> logging.Handler:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler
