"""A source that is read on a grid of times."""

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


class SeriesEndedError(Exception):
    """Nothing more will come from a source; the message says which and why."""


@dataclass
class Series:
    """A source that is read once a period; a reading that is late leaves a gap."""

    read: Callable[[], list[dict]]
    period_s: float
    file: int
    """Descriptor of the file for the rows."""
    is_read_at_end: bool = False
    """Counters are whole only if they are read once more at the end."""

    def run(self, stopped: threading.Event, begun: threading.Event) -> None:
        """Read until `stopped`; sets `begun` after the first reading, whatever came of it."""
        started_s, n_due = time.monotonic(), 0
        try:
            while not stopped.is_set():
                write_rows(self.file, self.read())
                begun.set()
                elapsed_s = time.monotonic() - started_s
                n_due = int(elapsed_s / self.period_s) + 1
                stopped.wait(n_due * self.period_s - elapsed_s)
            if self.is_read_at_end:
                write_rows(self.file, self.read())
        finally:
            begun.set()


def write_rows(file: int, rows: Sequence[dict]) -> None:
    """Append rows to a file, a JSON object a line."""
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    os.write(file, lines.encode())  # one call, so that lines of several threads do not mix
