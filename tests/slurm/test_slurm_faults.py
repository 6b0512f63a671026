"""What clusters do to jobs, done to real jobs of a cluster of one node: nothing may be lost.

After each fault the same command finishes, results equal those of a run that nobody disturbed but
for what a clock has a part in, levels that were finished were not measured again, and neither a
process nor half a file is left. The fake engine serves; 8 minutes on 2 idle cores, 20 on busy ones.
"""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from project import Project
from slurm_project import Cluster, start_cluster, stop_cluster
from slurm_runs import (
    LLMS,
    PATIENCE_S,
    Run,
    faults_project,
    has_accounting,
    history,
    kill_daemon,
    left_behind,
    results,
    start_daemon,
    wait_for,
)

OPT, LLAMA, BIGCODE, NEOX = LLMS
# Four levels that take longer than SLURM's shortest time limit, a minute.
CELLS = dict.fromkeys(LLMS, "rates") | {NEOX: "slow"}


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A folder whose name is short: the sockets of servers lie in it."""
    with tempfile.TemporaryDirectory(prefix="sx-") as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def cluster(base: Path) -> Iterator[Cluster]:
    """A cluster of one node whose devices suffice for two runs at a time."""
    started = start_cluster(base / "slurm", "--gpus", "8")
    yield started
    for run in Run.all:
        run.kill()  # what a test that failed has left
    stop_cluster(started)


@pytest.fixture(scope="module")
def template(base: Path) -> Project:
    return faults_project(base / "template")


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster, template: Project, base: Path) -> Run:
    """A run of four cells side by side; it has just been started."""
    return Run(cluster, template, base / "calm", CELLS)


@pytest.fixture(scope="module")
def servers(undisturbed: Run) -> list[tuple[str, dict[str, str]]]:
    """Command line and environment of the four servers of that run, at the same time."""
    return wait_for(
        lambda: found if len(found := undisturbed.servers()) == len(CELLS) else [],
        "four servers at once",
    )


@pytest.fixture(scope="module")
def calm(undisturbed: Run) -> Run:
    """The undisturbed run when it has finished."""
    undisturbed.end()
    assert not left_behind(undisturbed)
    return undisturbed


@pytest.fixture(scope="module")
def storm(servers: list, cluster: Cluster, template: Project, base: Path) -> Run:
    """A run whose four jobs each meet another end, beside the undisturbed run.

    Tests that take the cluster's daemons or devices away have to come after those of this run.
    """
    # Snakemake has SLURM's shortest time limit for the first attempt at the slow cell.
    minutes = "benchmark_cell:runtime=1 if wildcards.scenario == 'slow' and attempt == 1 else 30"
    run = Run(cluster, template, base / "storm", CELLS, minutes)
    run.keep_level(OPT)
    cluster.output("scancel", run.job(OPT))
    run.keep_level(LLAMA)
    os.kill(run.process_of(LLAMA, "benchmark_cell.py"), signal.SIGKILL)
    run.keep_level(BIGCODE)
    os.kill(run.process_of(BIGCODE, "fake_engine/python"), signal.SIGUSR1)
    run.keep_level(NEOX)
    return run


def assert_nothing_was_lost(run: Run, llm: str, calm: Run) -> None:
    """The cell is as if nobody had disturbed it; its first level is the one that was kept."""
    first = run.kept[llm]
    assert run.levels(llm)[str(first["level"])] == first
    facts, requests = results(run.cell(llm))
    calm_facts, calm_requests = results(calm.cell(llm))
    assert facts == calm_facts
    pd.testing.assert_frame_equal(requests, calm_requests)
    wait_for(lambda: not left_behind(run), "the end of all that a job has started", timeout_s=60)


def test_cells_side_by_side_share_no_device_port_or_folder(servers: list) -> None:
    devices = [environment["CUDA_VISIBLE_DEVICES"] for _, environment in servers]
    ports = [command.split("--port ")[1].split()[0] for command, _ in servers]
    folders = [environment["TMPDIR"] for _, environment in servers]
    assert len(set(devices)) == len(set(ports)) == len(set(folders)) == 4
    assert all(len(device.split(",")) == 1 for device in devices)


@pytest.mark.parametrize(("llm", "end"), [(OPT, "CANCELLED"), (LLAMA, "FAILED"), (NEOX, "TIMEOUT")])
def test_a_job_that_is_ended_goes_on_in_the_next(storm: Run, calm: Run, llm, end) -> None:
    storm.end()
    assert storm.states(llm) == [end, "COMPLETED"]
    assert_nothing_was_lost(storm, llm, calm)


def test_a_job_out_of_memory_gets_more(storm: Run, calm: Run) -> None:
    storm.end()
    first, second = storm.jobs(BIGCODE)
    # With control groups a state of its own; here the step is killed, and the job fails of it.
    (state,) = history(storm.cluster, first)
    assert state in ("FAILED", "OUT_OF_MEMORY")
    assert "Exceeded job memory limit" in storm.slurm_log(first)
    assert history(storm.cluster, second) == ["COMPLETED"]
    assert [storm.memory(job) for job in (first, second)] == ["1000M", "2000M"]
    assert_nothing_was_lost(storm, BIGCODE, calm)


def test_a_second_job_waits_for_the_first_whose_snakemake_was_killed(
    cluster: Cluster, template: Project, base: Path, calm: Run
) -> None:
    run = Run(cluster, template, base / "killed", {NEOX: "slow"})
    run.keep_level(NEOX)
    run.kill()
    run.unlock()
    run.start()
    run.job(NEOX, n=2)
    assert history(cluster, run.job(NEOX)) == ["RUNNING"]
    most = 0
    while run.process.poll() is None:
        most = max(most, len(run.servers()))
    run.end()
    assert most == 1
    assert run.states(NEOX) == ["COMPLETED", "COMPLETED"]
    # By the time the second has started, the first may have ended: then its levels are there.
    told = "its results are taken over", "4 levels were measured by an earlier attempt"
    assert any(words in run.job_log(NEOX) for words in told)
    assert_nothing_was_lost(run, NEOX, calm)


def test_a_job_without_a_device_is_refused(cluster: Cluster, template: Project, base: Path) -> None:
    run = Run(
        cluster, template, base / "none", {OPT: "rates"}, "benchmark_cell:gpu=0", "--retries=0"
    )
    assert run.process.wait(PATIENCE_S) == 1
    assert "was given no GPU" in run.job_log(OPT)
    assert not left_behind(run)


def test_a_job_that_is_preempted_goes_on_later(
    cluster: Cluster, template: Project, base: Path, calm: Run
) -> None:
    run = Run(cluster, template, base / "preempted", {OPT: "rates"})
    run.keep_level(OPT)
    urgent = ["--account=sextant", "--partition=urgent", "--gres=gpu:h100:8", "--wrap=sleep 3"]
    # A job that does not say how much memory it needs is given all that the node has.
    cluster.output("sbatch", *urgent, "--mem=100", "--output=/dev/null")
    run.end()
    assert run.states(OPT) == ["PREEMPTED", "COMPLETED"]
    assert_nothing_was_lost(run, OPT, calm)


def test_a_node_fails_and_comes_back(
    cluster: Cluster, template: Project, base: Path, calm: Run
) -> None:
    # One job at a time: the second cell is submitted after the only node has failed once.
    run = Run(cluster, template, base / "node", {OPT: "rates", LLAMA: "rates"}, "--jobs=1")
    first = wait_for(lambda: [llm for llm in run.cells if run.jobs(llm)], "the first job")[0]
    run.keep_level(first)
    cluster.output("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    run.end()
    assert run.states(first) == ["NODE_FAIL", "COMPLETED"]
    assert_nothing_was_lost(run, first, calm)
    second = next(llm for llm in run.cells if llm != first)
    assert run.states(second) == ["COMPLETED"]


def test_the_daemon_of_a_node_is_killed(
    cluster: Cluster, template: Project, base: Path, calm: Run
) -> None:
    # Longer than SLURM takes to miss the daemon; else its processes may finish, and well.
    run = Run(cluster, template, base / "slurmd", {NEOX: "slow"})
    run.keep_level(NEOX)
    kill_daemon(cluster, "slurmd-n1")
    wait_for(lambda: "down" in cluster.output("sinfo", "-h", "-o", "%T"), "the node's end")
    start_daemon(cluster, "slurmd-n1", "slurmd", "-D", "-N", "n1")
    run.end()
    assert run.states(NEOX) == ["NODE_FAIL", "COMPLETED"]
    assert_nothing_was_lost(run, NEOX, calm)


def test_the_controller_and_the_accounting_are_away(
    cluster: Cluster, template: Project, base: Path, calm: Run
) -> None:
    run = Run(cluster, template, base / "controller", {OPT: "rates"})
    run.keep_level(OPT)
    kill_daemon(cluster, "slurmctld")
    kill_daemon(cluster, "slurmdbd")
    late = Run(cluster, template, base / "late", {LLAMA: "rates"})
    assert late.process.wait(PATIENCE_S) == 1
    start_daemon(cluster, "slurmdbd", "slurmdbd", "-D")
    wait_for(lambda: has_accounting(cluster), "slurmdbd")
    start_daemon(cluster, "slurmctld", "slurmctld", "-D")
    run.end()
    assert run.states(OPT) == ["COMPLETED"]
    assert_nothing_was_lost(run, OPT, calm)
    late.start()
    late.end()
    assert late.states(LLAMA) == ["COMPLETED"]
    assert not left_behind(late)
