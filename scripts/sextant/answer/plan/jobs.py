"""The jobs that Snakemake would run, and the configuration that it would run them with.

Snakemake says so itself, in a dry run, so that existing results count as they do in a run. It is
a process of its own: the library imports nothing of Snakemake.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sextant import PROJECT
from sextant.base.errors import InputError

_PLUGINS = PROJECT / "workflow" / "plugins"


@dataclass(frozen=True)
class Job:
    """A job of a dry run, with what it asks of the machine."""

    rule: str
    wildcards: dict[str, str]
    outputs: tuple[str, ...]
    threads: int
    resources: dict[str, Any]
    """As Snakemake names them: `mem_mb`, `runtime` in minutes, `gpu`, `gpu_model` …"""
    reason: str
    is_in_group: bool


@dataclass(frozen=True)
class DryRun:
    """What Snakemake would do."""

    jobs: tuple[Job, ...]
    n_submissions: int
    """Jobs that a cluster's scheduler would get: a group is one, local rules are none."""
    config: dict[str, Any]
    """As Snakemake merged it, `--config` of a profile included."""


def dry_run(
    folder: Path,
    targets: Sequence[str] = (),
    config_files: Sequence[Path] = (),
    workflow_profile: Path | None = None,
) -> DryRun:
    """Ask Snakemake what it would run in a folder; no lock is taken and no file written.

    Without targets, the default target; `config_files` and `workflow_profile` are as given to
    `snakemake`. Raises InputError with Snakemake's own words if it refuses the configuration.
    """
    command = [sys.executable, "-m", "snakemake", "--dry-run", "--nolock", "--rerun-incomplete"]
    command += ["--logger", "sextant-plan"]
    if workflow_profile:
        command += ["--workflow-profile", str(workflow_profile)]
    if config_files:
        command += ["--configfile", *map(str, config_files)]
    paths = [str(_PLUGINS), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [*command, "--", *targets],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise InputError(_complaint(done.stderr))
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    (started,) = (line for line in lines if "config" in line)
    jobs = [Job(**line | {"outputs": tuple(line["outputs"])}) for line in lines if "rule" in line]
    # A rule without anything to run, such as a target, is never submitted.
    submitted = [
        job
        for job in jobs
        if job.outputs and not job.is_in_group and job.rule not in started["local_rules"]
    ]
    return DryRun(
        jobs=tuple(job for job in jobs if job.outputs),
        n_submissions=len(submitted) + sum("group" in line for line in lines),
        config=started["config"],
    )


def _complaint(stderr: str) -> str:
    """Return the error line of the project's own checks, or the last lines of Snakemake."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    own = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    if lines and lines[0].endswith(("Exception:", "Error:")):
        del lines[0]  # its name alone
    return own[-1] if own else "\n".join(lines[-20:]) or "snakemake failed without a message"
