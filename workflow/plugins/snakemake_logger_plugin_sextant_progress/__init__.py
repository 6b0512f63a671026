"""A logger plugin of Snakemake that prints a line when a cell starts, and one a finished job.

`make demo` runs `snakemake --logger sextant-progress`. Snakemake's own log stays in its file below
`.snakemake/log/`; warnings and errors are printed as Snakemake words them.
"""

import logging
import statistics
import sys
import time
from pathlib import Path

from snakemake.common import NOTHING_TO_BE_DONE_MSG
from snakemake_interface_logger_plugins.base import LogHandlerBase
from snakemake_interface_logger_plugins.common import LogEvent

_MINUTE_S = 60
_LONGEST = "benchmark_cell"
"""The rule that takes most of a run: its jobs are announced, and the time left counts from its
first one on."""
_NO_JOBS = ("all", "total")
"""Of the counts by rule: the target, which runs nothing, and the sum."""


class LogHandler(LogHandlerBase):
    """Prints jobs that finished on stdout, warnings and errors on stderr."""

    writes_to_stream = True  # so Snakemake adds no text of its own
    writes_to_file = False
    has_filter = True
    has_formatter = False
    needs_rulegraph = False

    def __post_init__(self) -> None:
        """Know nothing yet of what will run."""
        self._waiting: dict[str, int] = {}
        """Jobs to come and running ones, by rule."""
        self._running: dict[int, tuple[str, str, float]] = {}
        self._took_s: dict[str, list[float]] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record of a finished job or of a problem; remember what will run."""
        event = getattr(record, "event", None)
        if event == LogEvent.RUN_INFO:
            self._waiting = {name: n for name, n in record.stats.items() if name not in _NO_JOBS}
        elif event == LogEvent.JOB_INFO:
            what = ", ".join(filter(None, dict(record.wildcards).values()))
            self._running[record.jobid] = record.rule_name, what, time.monotonic()
            if record.rule_name == _LONGEST:
                print(f"  started           {_LONGEST} {what}", flush=True)
        elif event == LogEvent.JOB_FINISHED:
            self._finish(record.job_id)
        elif record.levelno >= logging.WARNING or record.msg == NOTHING_TO_BE_DONE_MSG:
            text = self.format(record)
            print(text, file=sys.stderr, flush=True)
            if "--unlock" in text:
                unlock = f"{Path(sys.executable).parent / 'snakemake'} --unlock"
                print(f"Fix: {unlock}, then the same command again", file=sys.stderr, flush=True)

    def _finish(self, job_id: int) -> None:
        rule, what, started_s = self._running.pop(job_id)
        if rule in _NO_JOBS:
            return
        took_s = time.monotonic() - started_s
        self._took_s.setdefault(rule, []).append(took_s)
        self._waiting[rule] -= 1
        done = sum(map(len, self._took_s.values()))
        total = done + sum(self._waiting.values())
        name = f"{rule} {what}".strip()
        print(f"{done:>3} of {total}  {_words(took_s):>7}  {name}{self._left()}", flush=True)

    def _left(self) -> str:
        """Return the time left, one job after another; a rule's next jobs take its mean so far.

        A rule that has run no job takes the median of the others. Nothing is said while the longest
        rule has jobs to come and none finished.
        """
        means_s = {rule: sum(took) / len(took) for rule, took in self._took_s.items()}
        if self._waiting.get(_LONGEST) and _LONGEST not in means_s:
            return ""
        left_s = 0.0
        for rule, n in self._waiting.items():
            left_s += n * means_s.get(rule, statistics.median(means_s.values()))
        return f"; about {_words(left_s)} left" if any(self._waiting.values()) else ""


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * _MINUTE_S else f"{seconds / _MINUTE_S:.0f} min"
