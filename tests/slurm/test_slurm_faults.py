"""What clusters do to jobs, done to real jobs of a cluster of one node: nothing may be lost.

After each fault the same command finishes, results equal those of a run that nobody disturbed but
for what a clock has a part in, levels that were finished were not measured again, and neither a
process nor half a file is left. The fake engine serves; about 8 minutes on 2 cores.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from project import Project
from slurm_runs import LLMS, Cluster, Run, faults_project, left_behind, results, wait_for

PROGRAMS = ("sbatch", "sacct", "slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd")
OPT, LLAMA, BIGCODE, NEOX = LLMS
HOG = "x = bytearray(b'x') * (1200 * 2**20); import time; time.sleep(60)"


def _missing() -> list[str]:
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if not shutil.which(name, path=path)]
    return missing if os.geteuid() == 0 else ["root", *missing]


pytestmark = pytest.mark.skipif(bool(_missing()), reason=f"needs {', '.join(_missing())}")


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A folder whose name is short: the sockets of servers lie in it."""
    with tempfile.TemporaryDirectory(prefix="sx-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def cluster(base: Path) -> Iterator[Cluster]:
    with Cluster(base / "slurm") as running:
        yield running


@pytest.fixture(scope="module")
def template(base: Path) -> Project:
    return faults_project(base / "template")


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, template: Project, base: Path) -> Run:
    """A run of all four LLMs side by side that has just been started."""
    return Run(cluster, template, base / "calm", dict.fromkeys(LLMS, "rates"))


@pytest.fixture(scope="module")
def storm(undisturbed: Run, template: Project, base: Path) -> dict:
    """A run whose four jobs each meet another end, and what was kept of each before it.

    It begins beside the undisturbed run, but takes so long that tests go on meanwhile.
    """
    cells = dict.fromkeys(LLMS, "rates") | {NEOX: "slow"}
    # Snakemake has SLURM's shortest time limit for the first attempt of the slow cell.
    minutes = "runtime=attempt if wildcards.scenario == 'slow' else 30"
    run = Run(
        undisturbed.cluster,
        template,
        base / "storm",
        cells,
        f"benchmark_cell:{minutes}",
    )
    jobs = {llm: run.job(llm) for llm in LLMS}
    kept = {llm: run.kept_level(llm) for llm in LLMS}
    return {"run": run, "jobs": jobs, "kept": kept}


def assert_nothing_was_lost(run: Run, llm: str, kept: dict, calm: Run) -> None:
    """The cell is whole, as if nobody had disturbed it, and its first level is the one kept."""
    assert run.levels(llm)[str(kept["level"])] == kept
    facts, requests = results(run.cell(llm))
    calm_facts, calm_requests = results(calm.cell(llm))
    assert facts == calm_facts
    pd.testing.assert_frame_equal(requests, calm_requests)
    wait_for("the end of all that a job has started", lambda: not left_behind(run), 20)


def attempts(text: str) -> int:
    """Return how many jobs Snakemake has submitted."""
    return text.count("has been submitted with SLURM jobid")
