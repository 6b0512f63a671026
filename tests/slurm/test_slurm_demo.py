"""The demo through SLURM, with real vLLM servers: minutes, so only `make test-slurm` runs it."""

import os

import duckdb
import pytest

from slurm_project import SlurmProject
from support import ROOT

PYTHON = ROOT / ".venv-vllm" / "bin" / "python"

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs .venv-vllm (make .venv-vllm/.ready)"),
    pytest.mark.skipif(
        "SEXTANT_SLURM_DEMO" not in os.environ, reason="minutes of real vLLM: make test-slurm"
    ),
]


def test_the_demo_on_real_vllm(cluster, tmp_path) -> None:
    project = SlurmProject(tmp_path / "demo", cluster)
    for name in ("config.yaml", "llms.tsv", "scenarios.tsv", "benchmarks.tsv"):
        (project.folder / "config" / name).write_text((ROOT / "config" / name).read_text())
    project.set_config(engine__python=str(PYTHON))
    done = project.on_slurm(timeout_s=3600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    with duckdb.connect(str(project.folder / "results" / "sextant.duckdb"), read_only=True) as db:
        (n_points,) = db.execute("SELECT count(*) FROM point").fetchone()
        (n_failed,) = db.execute("SELECT sum(n_failed) FROM point").fetchone()
    assert (n_points, n_failed) == (5 * 2 * 4, 0)
    # The cells of one device each, side by side on two.
    jobs = [job for job in cluster.jobs() if "benchmark_cell" in job["comment"]]
    assert len(jobs) == 10
    assert all("gres/gpu:h100=" in job["alloctres"] for job in jobs)
