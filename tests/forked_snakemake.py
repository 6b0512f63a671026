"""Runs of Snakemake in forks of one process: what Snakemake imports is imported once."""

import contextlib
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support import ROOT

sys.path.append(str(ROOT / "workflow" / "plugins"))  # before Snakemake looks for its plugins

# What the Snakefile imports.
import snakemake.cli
import snakemake.workflow

import sextant.experiment.loading
import sextant.predict  # noqa: F401


class Jobs(list[dict[str, Any]]):
    """The jobs of a dry run: `rule`, `wildcards`, `outputs`, `threads`, `resources`, `reason`."""

    @property
    def by_rule(self) -> Counter[str]:
        """Number of jobs by rule, targets left out."""
        return Counter(job["rule"] for job in self if job["outputs"])

    def cells(self) -> set[str]:
        """Return the cells to measure: `llm gpu_profile workload scenario`, with the variant."""
        wanted = ("llm", "gpu_profile", "workload", "scenario")
        return {
            " ".join(job["wildcards"][name] for name in wanted) + job["wildcards"]["variant"]
            for job in self
            if job["rule"] == "benchmark_cell"
        }


def dry_run(folder: Path, *arguments: str) -> Jobs:
    """Return the jobs that `snakemake --dry-run` plans in a folder, by the real command line."""
    planned = ("--dry-run", "--nolock", "--logger", "sextant-plan")
    status, text = run(folder, *planned, *(arguments or ("--cores", "2")))
    assert status == 0, text[-3000:]
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return Jobs(line for line in lines if "rule" in line)


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit status of `snakemake` with these arguments in a folder, and all it says."""
    log = folder / ".snakemake" / "forked"
    log.parent.mkdir(exist_ok=True)
    pid = os.fork()
    if pid == 0:
        _run_here(folder, log, arguments)
    _, status = os.waitpid(pid, 0)
    text = log.read_text()
    log.unlink()
    return os.waitstatus_to_exitcode(status), text


def _run_here(folder: Path, log: Path, arguments: Sequence[str]) -> None:
    """Run Snakemake in this process, which ends with it."""
    status = 1
    try:
        os.chdir(folder)
        with log.open("w") as out, contextlib.redirect_stdout(out):
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            try:
                snakemake.cli.main([*arguments])
            except SystemExit as end:
                status = end.code if isinstance(end.code, int) else int(end.code is not None)
                if isinstance(end.code, str):  # as the interpreter would
                    print(end.code)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)
