"""What Snakemake and SLURM add to a job: python benchmarks/slurm_overhead.py (as root).

Runs the tests' small DAG on the tests' cluster with the profile that ships, and compares, for each
cell, the seconds that its own script took with those between submission and the end that Snakemake
saw. All of SLURM's daemons and all jobs share this machine, so that a real cluster's are lower.
The same project with `--cores 1` beside it: its cells one after the other, without a scheduler.
"""

import os
import re
import statistics
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from slurm_project import Cluster, SlurmProject, start_cluster, stop_cluster
from support import ROOT

PREFIX = "rule_benchmark_cell_wildcards_measured_"


def own_seconds(project: SlurmProject) -> dict[tuple[str, str], float]:
    """Return how long the script of each cell ran, by LLM and GPU profile."""
    place = project.folder / "logs/benchmarks/benchmark_cell" / "measured"
    files = place.glob("*/*/*/*.tsv")
    return {file.parts[-4:-2]: pd.read_csv(file, sep="\t")["s"][0] for file in files}


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def on_slurm(cluster: Cluster, folder: Path) -> pd.DataFrame:
    """Run the DAG; return a row a cell: what its job's seconds went to."""
    project = SlurmProject(folder, cluster)
    done = project.on_slurm()
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    text = done.stdout + done.stderr
    seen = {
        job_id: datetime.strptime(when, "%a %b %d %H:%M:%S %Y").timestamp()
        for when, job_id in re.findall(r"^\[(.*)\]\nFinished jobid: (\d+)", text, re.M)
    }
    names = dict(re.findall(r"Job (\d+) has been submitted with SLURM jobid (\d+)", text))
    by_slurm_id = {slurm_id: job_id for job_id, slurm_id in names.items()}
    own = own_seconds(project)
    rows = []
    for job in cluster.jobs("submit"):
        if job["comment"].startswith(PREFIX):
            cell = tuple(job["comment"].removeprefix(PREFIX).split("_")[:2])
            rows.append(
                {
                    "cell": "/".join(cell),
                    "own_s": own[cell],
                    "waiting_s": moment(job["start"]) - moment(job["submit"]),
                    "starting_s": moment(job["end"]) - moment(job["start"]) - own[cell],
                    "until_seen_s": seen[by_slurm_id[job["jobid"]]] - moment(job["end"]),
                }
            )
    return pd.DataFrame(rows).set_index("cell")


def locally(cluster: Cluster, folder: Path) -> tuple[float, float, int]:
    """Run the DAG one job after the other: seconds, those of the scripts, number of jobs."""
    project = SlurmProject(folder, cluster)
    began = time.monotonic()
    done = project.snakemake("--cores", "1")
    seconds = time.monotonic() - began
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    files = list((project.folder / "benchmarks").rglob("*.tsv"))
    own = sum(pd.read_csv(file, sep="\t")["s"][0] for file in files)
    return seconds, own, len(files)


def main() -> None:
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cluster = start_cluster(folder / "c")
        try:
            began = time.monotonic()
            cells = on_slurm(cluster, folder / "on-slurm")
            print(
                f"on SLURM: {time.monotonic() - began:.0f} s, {cluster.submissions()} submissions"
            )
            print(cells.round(1).to_string())
            seconds, own, n_jobs = locally(cluster, folder / "local")
        finally:
            stop_cluster(cluster)
    added = cells["starting_s"] + cells["until_seen_s"]
    local_s = (seconds - own) / n_jobs
    print(f"added to a job on SLURM: median {statistics.median(added):.1f} s")
    print(f"locally: {seconds:.0f} s for {n_jobs} jobs, {local_s:.2f} s added to each")
    print(f"ratio: {statistics.median(added) / local_s:.1f}")


if __name__ == "__main__":
    main()
