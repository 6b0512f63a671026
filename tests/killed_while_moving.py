"""Runs a command once for each rename that it makes, and ends it there.

    python killed_while_moving.py SIGNAL FOLDER COMMAND

COMMAND, a list in JSON, writes over what is in FOLDER, which is `OUT` in it. Each run has a copy of
FOLDER of its own: FOLDER-1, FOLDER-2 and so on. The last run is the one that nothing ended. The
output is the number of runs.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

OUT = "{out}"
"""What stands for the folder in a command."""
_MOST_RENAMES = 100


def copies_after_ends(
    folder: Path, command: list[object], kind: int = signal.SIGKILL
) -> list[Path]:
    """Run a command in copies of a folder, ended at another rename in each but the last.

    Raises AssertionError: the last run failed.
    """
    run = [sys.executable, __file__, str(int(kind)), folder, json.dumps([*map(str, command)])]
    done = subprocess.run(run, capture_output=True, text=True, cwd=Path(__file__).parents[1])
    assert done.returncode == 0, done.stderr
    return [_copy(folder, number) for number in range(1, int(done.stdout) + 1)]


def end_at_rename(number: int, kind: int) -> None:
    """Let this process get a signal just before it renames for the nth time."""
    left = [number]

    def hooked(rename):
        def call(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), kind)
            return rename(*arguments, **options)

        return call

    os.rename, os.replace = hooked(os.rename), hooked(os.replace)


def _copy(folder: Path, number: int) -> Path:
    return folder.with_name(f"{folder.name}-{number}")


def _run(command: list[str], number: int, kind: int) -> int:
    """Run a command in a process of its own, ended at its nth rename; return its status."""
    from sextant.cli import app

    if (child := os.fork()) == 0:
        end_at_rename(number, kind)
        sys.argv = ["sextant", *command]
        status = 0
        try:
            with redirect_stdout(sys.stderr):
                app.main()
        except SystemExit as end:
            status = end.code or 0
        except KeyboardInterrupt:
            status = 130
        os._exit(status)
    return os.waitpid(child, 0)[1]


def main(kind: int, folder: Path, command: list[str]) -> None:
    """Print the number of runs until one is not ended; it decides the exit status."""
    number = 0
    status = -1
    while status != 0 and number < _MOST_RENAMES:
        number += 1
        copy = _copy(folder, number)
        shutil.copytree(folder, copy)
        status = _run([part.replace(OUT, str(copy)) for part in command], number, kind)
    print(number)
    sys.exit(status != 0)


if __name__ == "__main__":
    kind, folder, command = sys.argv[1:]
    main(int(kind), Path(folder), json.loads(command))
