"""The whole DAG through SLURM: requests, devices, results, number of submissions."""

import pandas as pd
import pytest

from slurm_project import Cluster, SlurmProject, assert_devices_are_apart, cell_jobs, devices


@pytest.fixture(scope="module")
def finished(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> SlurmProject:
    """A project that was run from nothing on the cluster."""
    project = SlurmProject(tmp_path_factory.mktemp("on-slurm"), cluster)
    done = project.on_slurm()
    assert done.returncode == 0, done.stdout + done.stderr
    return project


def test_a_dag_of_13_jobs_is_six_submissions(finished: SlurmProject) -> None:
    # Four cells; one group up to the workloads, one after the points.
    assert finished.cluster.submissions() == 6
    jobs = finished.cluster.jobs()
    assert [job["state"] for job in jobs] == ["COMPLETED"] * 6
    groups = [job["comment"] for job in jobs if "benchmark_cell" not in job["comment"]]
    assert [name.split("_")[1] for name in groups] == ["workloads", "answers"]


def test_cells_get_the_devices_and_cores_of_their_profile(finished: SlurmProject) -> None:
    jobs = cell_jobs(finished.cluster)
    assert len(jobs) == 4
    for (_, profile), job in jobs.items():
        allocated = dict(item.split("=") for item in job["alloctres"].split(","))
        n_devices = profile[0]
        assert allocated["gres/gpu:h100"] == n_devices
        assert allocated["node"] == "1"
        # Two for each device, as LLM-Pilot, and one for the load client.
        assert allocated["cpu"] == {"1": "3", "2": "5"}[n_devices]


def test_cells_side_by_side_have_different_devices(finished: SlurmProject) -> None:
    assert_devices_are_apart(finished)
    assert sorted(devices(finished, "llm-opt-6m", "2xcpu-core")) == [0, 1]


def test_results_have_the_structure_of_a_local_run(finished: SlurmProject, tmp_path) -> None:
    local = SlurmProject(tmp_path / "local", finished.cluster)
    done = local.snakemake("--cores", "2")
    assert done.returncode == 0, done.stderr
    here, there = (
        {
            path.relative_to(each.folder)
            for path in (each.folder / "results").rglob("*.*")
            if path.parent.name != "fits"  # named by the points that they are of
        }
        for each in (local, finished)
    )
    assert here == there
    query = "SELECT llm_id, gpu_profile_id, scenario_id, level, n_failed FROM point ORDER BY ALL"
    assert local.query(query) == finished.query(query)


def test_nothing_is_left_to_do(finished: SlurmProject) -> None:
    before = finished.cluster.submissions()
    done = finished.on_slurm()
    assert done.returncode == 0, done.stderr
    assert finished.cluster.submissions() == before


def test_adding_an_llm_submits_its_cell_and_the_answers(finished: SlurmProject) -> None:
    before = finished.cluster.submissions()
    sheet = finished.sheet("llms")
    sheet.write_text(sheet.read_text() + "llm-new\tresources/llms/demo-qwen2-26m.json\t\n")
    done = finished.on_slurm()
    assert done.returncode == 0, done.stdout + done.stderr
    assert finished.cluster.submissions() == before + 2


def test_one_more_level_measures_this_level_alone(finished: SlurmProject) -> None:
    place = "results/benchmarks/measured/llm-opt-6m/1xcpu-core/conversation/users-1-8"

    def sent() -> dict[float, list[float]]:
        rows = pd.read_parquet(finished.folder / place / "requests.parquet")
        return {level: sorted(of_level["sent_s"]) for level, of_level in rows.groupby("level")}

    before, submissions = sent(), finished.cluster.submissions()
    sheet = finished.sheet("scenarios")
    sheet.write_text(sheet.read_text().replace("1,2\t", "1,2,4\t"))
    done = finished.on_slurm()
    assert done.returncode == 0, done.stdout + done.stderr
    n_cells = len([*(finished.folder / "results/benchmarks").rglob("run.json")])
    assert finished.cluster.submissions() == submissions + n_cells + 1  # and the answers
    after = sent()
    assert after.pop(4.0) and after == before


def test_what_no_node_gives_ends_the_run_before_a_job(finished: SlurmProject) -> None:
    before = finished.cluster.submissions()
    sheet = finished.sheet("scenarios")
    text = sheet.read_text()
    sheet.write_text(text.replace("0.4", "0.5"))
    done = finished.on_slurm("--set-resources", "benchmark_cell:mem_mb=700000", timeout_s=300)
    sheet.write_text(text)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert "'mem_mb': a cell asks for 700,000 MB of memory, and no node of partition gpu" in line
    assert finished.cluster.submissions() == before


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("slurm_account=default", "slurm_partition=gpu"), "'slurm_account': 'default'"),
        (("slurm_account=sextant", "slurm_partition=gpuu"), "'slurm_partition': 'gpuu'"),
    ],
)
def test_a_name_that_the_cluster_lacks_ends_the_run_before_a_job(
    finished: SlurmProject, names: tuple[str, str], said: str
) -> None:
    before = finished.cluster.submissions()
    done = finished.on_slurm("--forceall", "--default-resources", *names, timeout_s=300)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("Error: ")]
    assert said in line
    assert finished.cluster.submissions() == before


def test_what_sbatch_says_of_a_group_reaches_the_screen(finished: SlurmProject) -> None:
    # Nothing is known of reservations before a submission.
    names = ("slurm_account=sextant", "slurm_partition=gpu", "slurm_extra='--reservation=none'")
    arguments = ("--forcerun", "build_store", "--default-resources", *names)
    done = finished.on_slurm(*arguments, timeout_s=300)
    assert done.returncode == 1
    said = "Error in group answers: SLURM sbatch failed. The error message was 'sbatch: error: "
    assert f"message: {said}Batch job submission failed: Requested reservation" in done.stderr
