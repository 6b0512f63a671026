"""Snakemake's own record of files that it has not made itself."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from sextant.base.errors import InputError

# A command line holds 2 MiB.
_MAX_FILES = 4000


def refuse_beside_a_run(folder: Path, files: Sequence[Path]) -> None:
    """Raise InputError if a run goes on that has locked one of these files, or was killed.

    It would measure them, or read them half replaced.
    """
    locks = (folder / ".snakemake" / "locks").glob("*.lock")
    in_use = {line for lock in locks for line in lock.read_text(encoding="utf-8").splitlines()}
    if wanted := sorted(in_use & {str(file) for file in files}):
        fix = "let the run end; if it was killed: snakemake --unlock"
        raise InputError("a run works with this file", file=wanted[0], fix=fix)


def record_cells(
    folder: Path,
    runs: Sequence[Path],
    config_files: Sequence[Path] = (),
    workflow_profile: Path | None = None,
) -> None:
    """Have Snakemake record cells as made by what is asked for now, without making them.

    Then it neither measures them again, whatever it knew of them before, nor takes them for
    good when their definition changes. `runs` are the cells' `run.json`, `config_files` and
    `workflow_profile` what Snakemake is given beside the Snakefile in `folder`. InputError has
    Snakemake's own words if it refuses.
    """
    command = [sys.executable, "-m", "snakemake", "--nocolor", "--quiet", "all", "--cores", "1"]
    command += ["--touch", "--force", "--rerun-incomplete"]
    # Nothing that cells are made from: if that is stale, Snakemake has to see it.
    command += ["--allowed-rules", "benchmark_cell"]
    if workflow_profile:
        command += ["--workflow-profile", str(workflow_profile)]
    if config_files:
        command += ["--configfile", *map(str, config_files)]
    for first in range(0, len(runs), _MAX_FILES):
        some = map(str, runs[first : first + _MAX_FILES])
        done = subprocess.run(
            [*command, "--", *some],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            said = done.stderr.strip()[-500:]
            problem = f"the cells are here, but snakemake has not recorded them: {said}"
            fix = f"run `{' '.join(command)} -- FILES` with their run.json files"
            raise InputError(problem, file=folder, fix=fix)
