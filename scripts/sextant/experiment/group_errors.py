"""Why a group of jobs failed: words that Snakemake leaves out of its log."""

import logging
import sys
from types import FrameType

from sextant.base.errors import printable

_EVENT = "group_error"
_CALL = "\n    sbatch call:"
"""Where the words of Snakemake's SLURM plugin go on with the whole command."""


class GroupErrors(logging.Filter):
    """Adds to the log record of a group that failed why it did; for Snakemake's logger.

    An executor hands its reason, such as what sbatch has said, to Snakemake as the argument `msg`
    of the function that logs the error. Of a single job it is printed; of a group Snakemake 9.27
    drops it and prints "message: None" for each member. The record names that function, so its
    argument can be read. Where there is none, the record stays as it is.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Take every record; add the reason to that of a group."""
        if getattr(record, "event", None) == _EVENT and (reason := _reason(record)):
            words = printable(reason.partition(_CALL)[0].strip(), keep="\n")
            record.msg = f"{record.getMessage()}: {words}"
            record.args = None
        return True


def _reason(record: logging.LogRecord) -> str | None:
    """Return the argument `msg` of the function that made a record."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if (code.co_filename, code.co_name) == (record.pathname, record.funcName):
            reason = frame.f_locals.get("msg")
            return reason if isinstance(reason, str) else None
        frame = frame.f_back
    return None
