"""What each job asks SLURM for, as a dry run with the profile that ships tells it."""

from pathlib import Path

import pytest
import yaml

from project import Project
from sextant.plan.dry_run import Job, dry_run
from support import ROOT

PROFILE = Path("workflow/profiles/slurm")
GPUS = {"h100": ("1xh100", "H100-80GB", 1), "a100": ("4xa100", "A100-40GB", 4)}


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Job, ...]:
    """Jobs of a cluster with two GPU types, one of them with replicas side by side."""
    project = Project(tmp_path_factory.mktemp("requests"))
    header = "gpu_profile_id gpu_id n_gpus usd_per_hour gpu_model"
    rows = [(name, gpu, n, 4.0, model) for model, (name, gpu, n) in GPUS.items()]
    rows += [("2xcore", "cpu-core", 2, 0.1, ""), ("2xstand-in", "cpu-core", 2, 0.1, "h100")]
    project.write_sheet("gpu_profiles", header, *rows)
    header = "llm_ids gpu_profile_ids workload_id scenario_id variant_ids study"
    cells = [("demo-opt-6m", "*", "conversation", "users-1-8", "", "")]
    cells += [("demo-opt-6m", "1xh100", "conversation", "users-1-8", "two", "replicas")]
    project.write_sheet("benchmarks", header, *cells)
    header = "variant_id replicas placement cpu_cores"
    project.write_sheet("variants", header, ("two", 2, "own", 6))
    project.set_config(sheets__variants="config/variants.tsv")
    return dry_run(project.folder, ["all", "studies"], workflow_profile=PROFILE).jobs


def requests(planned: tuple[Job, ...], profile: str, variant: str = "") -> dict[str, object]:
    (job,) = (
        job
        for job in planned
        if job.rule == "benchmark_cell"
        and (job.wildcards["gpu_profile"], job.wildcards["variant"]) == (profile, variant)
    )
    names = ("gpu", "gpu_model", "nodes", "cpus_per_task", "mem_mb")
    return {name: job.resources.get(name) for name in names}


def test_devices_of_the_profile_s_type_on_one_node(planned) -> None:
    # LLM-Pilot, section III-C1: 250 GB, two cores a GPU; one more is the load client's.
    one = {"gpu": 1, "gpu_model": "h100", "nodes": 1, "cpus_per_task": 3, "mem_mb": 250_000}
    assert requests(planned, "1xh100") == one
    four = {"gpu": 4, "gpu_model": "a100", "nodes": 1, "cpus_per_task": 9, "mem_mb": 250_000}
    assert requests(planned, "4xa100") == four


def test_each_replica_has_devices_and_cores(planned) -> None:
    asked = requests(planned, "1xh100", "@two")
    assert (asked["gpu"], asked["cpus_per_task"]) == (2, 13)


def test_cores_ask_for_no_device_unless_devices_stand_in_for_them(planned) -> None:
    cores = requests(planned, "2xcore")
    assert (cores["gpu"], cores["gpu_model"], cores["cpus_per_task"]) == (0, None, 5)
    assert cores["mem_mb"] < 20_000
    stand_in = requests(planned, "2xstand-in")
    assert (stand_in["gpu"], stand_in["gpu_model"]) == (2, "h100")


def test_partition_account_and_qos_stand_in_one_place(planned) -> None:
    profile = yaml.safe_load((ROOT / PROFILE / "config.yaml").read_text())
    given = dict(item.split("=", 1) for item in profile["default-resources"])
    of_cells = profile["set-resources"]["benchmark_cell"]
    assert given["slurm_partition"] != of_cells["slurm_partition"]  # cells alone take devices
    for job in planned:
        expected = given | (of_cells if job.rule == "benchmark_cell" else {})
        for name in ("slurm_account", "slurm_partition", "qos"):
            assert job.resources[name] == expected[name]


def test_a_type_that_is_no_name_is_refused(tmp_path) -> None:
    project = Project(tmp_path)
    header = "gpu_profile_id gpu_id n_gpus usd_per_hour gpu_model"
    project.write_sheet("gpu_profiles", header, ("1xcpu-core", "cpu-core", 1, 0.1, "h100;reboot"))
    done = project.snakemake("--dry-run", "--cores", "1")
    assert done.returncode
    assert "'gpu_model'" in done.stderr
    assert "line 2" in done.stderr


def test_the_partition_file_is_one_the_plugin_reads() -> None:
    partitions = pytest.importorskip("snakemake_executor_plugin_slurm.partitions")
    found = partitions.read_partition_file(ROOT / PROFILE / "partitions.yaml")
    assert [partition.name for partition in found] == ["h100", "a100", "cpu"]
