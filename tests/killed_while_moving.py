"""Runs a command once for each rename that it makes, and ends it there.

    python killed_while_moving.py SIGNAL FOLDER COMMAND READ FOUND

COMMAND, a list in JSON, writes over what is in FOLDER, which is put back before each run. READ, a
command too, reads it and writes what it finds to the file FOUND. The output is a list in JSON: what
was found at first, then after each ended run, at last after a run that nothing ended; and what lay
in FOLDER then.
"""

import json
import os
import shutil
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path

from sextant.cli import app

_MOST_RENAMES = 100


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


def run(command: list[str], number: int = 0, kind: int = signal.SIGKILL) -> int:
    """Run a command in a process of its own; return its status."""
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


def read(command: list[str], found: Path) -> str:
    """Run a command that reads; return what it found."""
    found.unlink(missing_ok=True)
    return found.read_text() if run(command) == 0 else "an error"


def main(kind: int, folder: Path, command: list[str], reading: list[str], file: Path) -> None:
    """Print what a reader finds after each run."""
    earlier = folder.with_name("earlier")
    shutil.copytree(folder, earlier)
    found = [read(reading, file)]
    status = -1
    number = 0
    while status != 0 and number < _MOST_RENAMES:
        shutil.rmtree(folder)
        shutil.copytree(earlier, folder)
        number += 1
        status = run(command, number, kind)
        found.append(read(reading, file))
    print(json.dumps([found, sorted(path.name for path in folder.iterdir())]))


if __name__ == "__main__":
    number, folder, *commands, file = sys.argv[1:]
    main(int(number), Path(folder), *map(json.loads, commands), Path(file))
