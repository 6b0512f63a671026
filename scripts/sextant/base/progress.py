"""A progress line for long work, on a terminal only."""

import sys
import time


class Progress:
    """Shows the step that runs, its number and how long the rest will take, on a terminal's stderr.

    Not by rich: that hides the cursor, which stays hidden when a job is killed, and saves no line.
    """

    def __init__(self, title: str, n_steps: int) -> None:
        self._title, self._n_steps = title, n_steps
        self._n_started = 0
        self._first_step_at = 0.0
        self.is_shown = sys.stderr.isatty()

    def step(self, name: str) -> None:
        """Start the next step."""
        if self._n_started == 0:
            self._first_step_at = time.monotonic()
        self._n_started += 1
        self.note(f"{self._n_started} of {self._n_steps}: {name}{self._time_left()}")

    def note(self, text: str) -> None:
        """Show what happens between steps."""
        if self.is_shown:
            print(f"\r\x1b[K{self._title}: {text}", end="", file=sys.stderr, flush=True)

    def _time_left(self) -> str:
        n_done = self._n_started - 1
        if n_done == 0:
            return ""
        per_step_s = (time.monotonic() - self._first_step_at) / n_done
        return f", about {per_step_s * (self._n_steps - n_done):.0f} s left"

    def close(self) -> None:
        """Leave the line."""
        if self.is_shown:
            print(file=sys.stderr)
