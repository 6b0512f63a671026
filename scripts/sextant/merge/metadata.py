"""Snakemake's own record of files that are about to be replaced."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sextant.errors import InputError

# A command line holds 2 MiB.
_MAX_FILES = 4000


def forget_metadata(folder: Path, files: Sequence[Path], config_files: Sequence[Path]) -> None:
    """Let Snakemake forget how files came to be, so that it takes them as they are.

    Otherwise it would measure a cell again of which it remembers other parameters, or a job
    that was interrupted.

    Raises:
        InputError: Snakemake is running in this folder, or was killed there.
    """
    command = [sys.executable, "-m", "snakemake", "--nocolor", "--cores", "1"]
    if config_files:
        command += ["--configfile", *map(str, config_files)]
    for first in range(0, len(files), _MAX_FILES):
        some = files[first : first + _MAX_FILES]
        done = subprocess.run(
            [*command, "--cleanup-metadata", *map(str, some)],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        # It is an error to Snakemake that there is nothing to forget.
        if done.returncode and "metadata was not present" not in done.stderr:
            fix = "let the run end, or end it; then import again"
            problem = done.stderr.strip().splitlines()[-1:] or ["snakemake failed"]
            raise InputError("\n".join(problem), file=folder, fix=fix)
