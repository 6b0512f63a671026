"""The demo through SLURM, with real vLLM servers."""

from real_vllm import NEEDS_VLLM, PYTHON
from slurm_project import SlurmProject, assert_devices_are_apart, cell_jobs
from support import ROOT

pytestmark = NEEDS_VLLM


def test_the_demo_on_real_vllm(cluster, tmp_path) -> None:
    project = SlurmProject(tmp_path / "demo", cluster)
    for name in ("config.yaml", "llms.tsv", "scenarios.tsv", "benchmarks.tsv", "workloads.tsv"):
        (project.folder / "config" / name).write_text((ROOT / "config" / name).read_text())
    # Two servers at once on two cores: cells of two devices would run alone.
    header = "gpu_profile_id gpu_id n_gpus usd_per_hour gpu_model"
    project.write_sheet("gpu_profiles", header, ("1xcpu-core", "cpu-core", 1, 0.04, "h100"))
    project.set_config(engine__python=str(PYTHON), engine__start_timeout_s=900)
    done = project.on_slurm(timeout_s=5400)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert project.query("SELECT count(*), sum(n_failed) FROM point") == [(5 * 4, 0)]
    jobs = cell_jobs(cluster)
    assert [job["state"] for job in jobs.values()] == ["COMPLETED"] * 5
    assert all("gres/gpu:h100=1," in job["alloctres"] for job in jobs.values())
    assert_devices_are_apart(project)
