"""The jobs that Snakemake would run, and the configuration that it would run them with.

Snakemake itself is asked, in a dry run, so that what is there already is taken into account
as it is in a run. It is a process of its own: the library knows nothing of Snakemake's.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sextant.base.configuration import merged, read_file
from sextant.base.errors import InputError

_PLUGINS = Path(__file__).parents[3] / "workflow" / "plugins"
# What follows on the line, and the indented lines below.
_LOCAL_RULES = re.compile(r"^localrules:([^\n]*\n?(?:[ \t]+[^\n]*\n?)*)", re.M)


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


def dry_run(
    folder: Path,
    targets: Sequence[str] = (),
    config_files: Sequence[Path] = (),
    workflow_profile: Path | None = None,
) -> DryRun:
    """Ask Snakemake what it would run in a folder; no lock is taken and no file written.

    Args:
        folder: where the Snakefile lies and paths start.
        targets: files or rules; the default target if there are none.
        config_files: as given to `snakemake --configfile`.
        workflow_profile: as given to `snakemake --workflow-profile`.

    Raises:
        InputError: Snakemake refuses the configuration; with its own words.
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
        raise InputError(_complaint(done.stderr), fix=None)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    local = _local_rules(folder)
    jobs = [Job(**line | {"outputs": tuple(line["outputs"])}) for line in lines if "rule" in line]
    # A rule without anything to run, such as a target, is never submitted.
    alone = [job for job in jobs if not job.is_in_group and job.outputs and job.rule not in local]
    (started,) = (line for line in lines if "config_md5" in line)
    return DryRun(
        jobs=tuple(job for job in jobs if job.outputs),
        n_submissions=len(alone) + sum("group" in line for line in lines),
        config=_config(folder, started["config_files"], started["config_md5"]),
    )


def _complaint(stderr: str) -> str:
    """Return what is wrong: the line of the project's own checks, or all that Snakemake says."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    own = [line.removeprefix("Error: ") for line in lines if line.startswith("Error: ")]
    return own[-1] if own else "\n".join(lines[-20:]) or "snakemake failed without a word"


def _local_rules(folder: Path) -> set[str]:
    """Return the rules that never leave the machine Snakemake runs on: a dry run does not tell."""
    files = [folder / "Snakefile", *sorted((folder / "workflow" / "rules").glob("*.smk"))]
    text = "".join(file.read_text(encoding="utf-8") for file in files)
    statements = [re.sub(r"#[^\n]*", "", found) for found in _LOCAL_RULES.findall(text)]
    return {name for statement in statements for name in re.findall(r"\w+", statement)}


def _config(folder: Path, files: Sequence[str], md5: str) -> dict[str, Any]:
    """Merge the configuration files as Snakemake does, and check that it comes to the same.

    Snakemake names those of the command line and the profile first, and they win over those
    of the Snakefile; how many there are of each is known by the sum.
    """
    loaded = [read_file(folder / file) for file in files]
    for n_given in range(len(loaded) + 1):
        config = merged([*loaded[n_given:], *loaded[:n_given]])
        if hashlib.md5(json.dumps(config, sort_keys=True).encode()).hexdigest() == md5:
            return config
    fix = "write them into a file and give it with --configfile"
    raise InputError("the profile changes keys of the configuration", field="config", fix=fix)
