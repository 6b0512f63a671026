"""The progress line: on a terminal, and nowhere else."""

import os
import pty
import subprocess
import sys

PROGRAM = """
from sextant.base.job_log import Progress
progress = Progress("opt on A100", 3)
for users in (1, 2, 4):
    progress.step(f"{users} users")
progress.close()
"""


def test_a_pipe_gets_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=True)
    assert done.stdout + done.stderr == b""


def test_a_terminal_sees_the_step_of_how_many_and_the_time_left() -> None:
    main, terminal = pty.openpty()
    subprocess.run([sys.executable, "-c", PROGRAM], stderr=terminal, check=True)
    os.close(terminal)
    shown = os.read(main, 10_000).decode()
    os.close(main)
    assert "opt on A100: 1 of 3: 1 users" in shown
    assert "3 of 3: 4 users, about 0 s left" in shown


LONG = """
import time
from sextant.base.job_log import showing_time
with showing_time("sextant capacity", after_s=0.1, every_s=0.1):
    time.sleep(0.5)
with showing_time("short", after_s=600):
    pass
"""


def test_a_terminal_sees_that_a_long_command_runs() -> None:
    main, terminal = pty.openpty()
    subprocess.run([sys.executable, "-c", LONG], stderr=terminal, check=True)
    os.close(terminal)
    shown = os.read(main, 10_000).decode()
    os.close(main)
    assert "sextant capacity: 0 s" in shown and "short" not in shown
    assert shown.endswith("\r\x1b[K")  # nothing is left of it
