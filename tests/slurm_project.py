"""A SLURM cluster on this machine, and a project that goes through it."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from project import Project
from support import FAKE_PYTHON, ROOT

SCRIPT = ROOT / "tests" / "slurm" / "cluster"


@dataclass(frozen=True)
class Cluster:
    """A cluster that runs; `environ` is what makes SLURM's commands find it."""

    folder: Path
    environ: Mapping[str, str]

    def output(self, *command: str) -> str:
        done = subprocess.run(
            command, env=self.environ, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout

    def jobs(self, *fields: str) -> list[dict[str, str]]:
        """Return what sacct knows of every job, oldest first; `comment` names rule and cell."""
        names = ["jobid", "state", "comment", "start", "end", "nodelist", "alloctres", *fields]
        text = self.output(
            "sacct", "-X", "-n", "-P", "-S", "now-2days", "--format=" + ",".join(names)
        )
        return [dict(zip(names, line.split("|"), strict=True)) for line in text.splitlines()]

    def submissions(self) -> int:
        """Return how often sbatch was called."""
        log = self.folder / "submissions.log"
        return len(log.read_text().splitlines()) if log.exists() else 0


def start_cluster(folder: Path, *options: str) -> Cluster:
    """Start a cluster in a folder that is not there yet; skip the test where that cannot be."""
    if os.geteuid():
        pytest.skip("needs root: SLURM's daemons run as root")
    if not any(Path(place, "slurmctld").exists() for place in ("/usr/sbin", "/usr/bin")):
        pytest.skip("needs SLURM: tests/slurm/cluster install")
    subprocess.run([SCRIPT, "start", "--folder", folder, *options], check=True, timeout=120)
    path = f"{folder}/bin:{os.environ['PATH']}"
    return Cluster(folder, os.environ | {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": path})


def stop_cluster(cluster: Cluster) -> None:
    subprocess.run([SCRIPT, "stop", "--folder", cluster.folder], check=True, timeout=120)


class SlurmProject(Project):
    """A copy of the project on the fake engine whose jobs ask for `h100` devices."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        folder.mkdir(exist_ok=True)
        super().__init__(folder)
        self.cluster = cluster
        self.set_config(engine__python=str(FAKE_PYTHON), predictors=["roofline"])
        names = ("opt-6m", "llama-16m", "bigcode-21m")
        llms = [(f"llm-{name}", f"resources/llms/demo-{name}.json", "") for name in names]
        self.write_sheet("llms", "llm_id config model", *llms)
        header = "scenario_id kind levels warmup_s duration_s"
        self.write_sheet("scenarios", header, ("users-1-8", "closed_loop", "1,2", 0.1, 0.4))
        header = "workload_id trace_id n_bins max_input_tokens max_output_tokens"
        workload = ("conversation", "azure-2023-conv-sample", 64, 1024, 128)
        self.write_sheet("workloads", header, workload)
        header = "gpu_profile_id gpu_id n_gpus usd_per_hour gpu_model"
        profiles = [(f"{n}xcpu-core", "cpu-core", n, 0.04 * n, "h100") for n in (1, 2)]
        self.write_sheet("gpu_profiles", header, *profiles)
        header = "llm_ids gpu_profile_ids workload_id scenario_id"
        cells = [("*", "1xcpu-core"), ("llm-opt-6m", "2xcpu-core")]
        self.write_sheet(
            "benchmarks", header, *[(*cell, "conversation", "users-1-8") for cell in cells]
        )

    def on_slurm(
        self, *arguments: str, timeout_s: float = 1500
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake with the profile that ships, and this cluster's names and quick looks."""
        return subprocess.run(
            [*SLURM_COMMAND, *arguments],
            cwd=self.folder,
            env=self.cluster.environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )


SLURM_COMMAND = [
    *(sys.executable, "-m", "snakemake", "--nocolor"),
    *("--workflow-profile", "workflow/profiles/slurm"),
    *("--default-resources", "slurm_account=sextant", "slurm_partition=gpu", "qos=benchmark"),
    *("mem_mb=4000", "runtime=60"),
    *("--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "2"),
    *("--max-status-checks-per-second", "1", "--latency-wait", "10"),
]
"""Snakemake with the profile that ships, the names of the tests' cluster, and quick looks."""


def cell_jobs(cluster: Cluster) -> dict[tuple[str, str], dict[str, str]]:
    """Return the job of each cell, by LLM and GPU profile."""
    prefix = "rule_benchmark_cell_wildcards_measured_"
    found = {}
    for job in cluster.jobs():
        if job["comment"].startswith(prefix):
            llm, profile, *_ = job["comment"].removeprefix(prefix).split("_")
            found[llm, profile] = job
    return found


def devices(project: Project, llm: str, profile: str) -> list[int]:
    """Return the devices that a cell's server ran on."""
    cell = project.folder / "results/benchmarks/measured" / llm / profile
    run = json.loads((cell / "conversation" / "users-1-8" / "run.json").read_text())
    (own,) = run["server"]["devices"]
    return own


def assert_devices_are_apart(project: SlurmProject) -> None:
    """Some cells ran side by side, and none of them had a device of another."""
    jobs = cell_jobs(project.cluster)
    together = [
        (one, other)
        for one, other in itertools.combinations(jobs, 2)
        if jobs[one]["start"] < jobs[other]["end"] and jobs[other]["start"] < jobs[one]["end"]
    ]
    assert together
    for one, other in together:
        assert not set(devices(project, *one)) & set(devices(project, *other))
