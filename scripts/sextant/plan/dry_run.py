"""What Snakemake would run, in its own words: a dry run in a process of its own.

Snakemake itself decides, so that existing results count as they do in a run; the library imports
nothing of Snakemake.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from sextant.base.errors import InputError
from sextant.base.resources import checkout

_WARNING = "Warning: "
_MOST_LINES = 20  # Of Snakemake's words in an error.


@dataclass(frozen=True)
class SchedulerRequest:
    """What a job asks the scheduler for."""

    cores: int
    memory_mb: int | None
    minutes: int | None
    gpus: int
    gpu_model: str | None


@dataclass(frozen=True)
class Job:
    """A job of a dry run, with what it asks of the machine."""

    rule: str
    wildcards: dict[str, str]
    outputs: tuple[str, ...]
    threads: int
    resources: dict[str, Any]
    """As Snakemake names them: `mem_mb`, `runtime` in minutes, `gpu`, `gpu_model` …"""
    is_in_group: bool

    @property
    def request(self) -> SchedulerRequest:
        """What the job asks the scheduler for."""
        return SchedulerRequest(
            # A dry run for a cluster counts one core: there, the cores are a request of their own.
            cores=self.resources.get("cpus_per_task") or self.threads,
            memory_mb=self.resources.get("mem_mb"),
            minutes=self.resources.get("runtime"),
            gpus=self.resources.get("gpu", 0),
            gpu_model=self.resources.get("gpu_model"),
        )


@dataclass(frozen=True)
class DryRun:
    """What Snakemake would do, with the configuration as it merged it."""

    jobs: tuple[Job, ...]
    n_submissions: int  # Jobs that a scheduler would get: a group is one, local rules none.
    config: dict[str, Any]
    warnings: tuple[str, ...] = ()  # What the Snakefile says before a run, one line each.

    @classmethod
    def from_output(cls, stdout: str, stderr: str = "") -> Self:
        """Read what our logger plugin has printed, one JSON object per line, and the warnings."""
        lines = [json.loads(line) for line in stdout.splitlines() if line.startswith("{")]
        (settings,) = (line for line in lines if "config" in line)
        jobs = [
            Job(**line | {"outputs": tuple(line["outputs"])}) for line in lines if "rule" in line
        ]
        # A target has nothing to run. Snakemake's own order changes from run to run.
        jobs = sorted((job for job in jobs if job.outputs), key=lambda job: job.outputs)

        local_rules = settings["local_rules"]
        n_single = sum(not job.is_in_group and job.rule not in local_rules for job in jobs)
        n_groups = sum("group" in line for line in lines)
        warnings = tuple(
            line.removeprefix(_WARNING) for line in stderr.splitlines() if line.startswith(_WARNING)
        )
        return cls(tuple(jobs), n_single + n_groups, settings["config"], warnings)


def snakemake_command() -> list[str]:
    """Return how a command line of Snakemake starts; InputError without it or a checkout."""
    checkout()
    if not find_spec("snakemake"):
        raise InputError("Snakemake is not installed", fix="pip install -e '.[pipeline]'")
    return [sys.executable, "-m", "snakemake"]


def dry_run(
    folder: Path,
    targets: Sequence[str] = (),
    config_files: Sequence[Path] = (),
    workflow_profile: Path | None = None,
) -> DryRun:
    """Ask Snakemake what it would run in a folder; no lock is taken and no file written. Raises
    InputError if Snakemake refuses, with the project's own error line or Snakemake's last lines."""
    command = [*snakemake_command(), "--dry-run", "--nolock", "--rerun-incomplete"]
    command += ["--logger", "sextant-plan"]
    if workflow_profile:
        command += ["--workflow-profile", str(workflow_profile)]
    if config_files:
        command += ["--configfile", *map(str, config_files)]

    plugins = checkout() / "workflow" / "plugins"
    paths = [str(plugins), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = subprocess.run(
        [*command, "--", *targets],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if not process.returncode:
        return DryRun.from_output(process.stdout, process.stderr)

    lines = [line for line in process.stderr.splitlines() if line.strip()]
    our_errors = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    if our_errors:
        raise InputError(our_errors[-1])
    if lines and lines[0].endswith(("Exception:", "Error:")):
        del lines[0]  # its name alone
    last_lines = "\n".join(lines[-_MOST_LINES:])
    raise InputError(last_lines or "snakemake failed without a message")
