"""The plan of a cluster of LLM-Pilot's size, through the SLURM profile."""

import json
from pathlib import Path

import pytest

from project import Project

OPTIONS = ("--configfile", "config/cluster.yaml", "--workflow-profile", "workflow/profiles/slurm")


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("fresh"))


@pytest.fixture(scope="module")
def plan(fresh: Project) -> dict:
    done = fresh.sextant("plan", *OPTIONS, "--nodes", "2", "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_cell_is_one_submission_and_the_rest_are_two(plan: dict) -> None:
    assert plan["jobs"]["benchmark_cell"] == len(plan["cells"]) == 10 * 14
    assert sum(plan["jobs"].values()) == 140 + 10
    assert plan["n_submissions"] == 140 + 2


def test_each_cell_asks_for_its_devices_cores_memory_and_time(plan: dict) -> None:
    models = {"T4": "t4", "V100": "v100", "A10": "a10", "A100": "a100", "H100": "h100"}
    for cell in plan["cells"]:
        count, gpu = cell["key"]["gpu_profile_id"].split("x")
        n_gpus = int(count)
        assert cell["request"] == {
            "cores": 2 * n_gpus + 1,
            "memory_mb": 250_000,
            # 5 starts of 900 s, 8 levels of 130 + 2 x 300 s: 10,340 s, and 5 minutes
            "minutes": 177,
            "gpus": n_gpus,
            "gpu_model": models[gpu.split("-")[0]],
        }


def test_hours_and_cost_are_the_sums_of_the_cells(plan: dict) -> None:
    cells = plan["cells"]
    assert sum(cell["n_levels"] for cell in cells) == 123 * 8  # 17 do not fit
    assert {cell["seconds"] for cell in cells if not cell["n_levels"]} == {0.0}
    (llama,) = (
        cell
        for cell in cells
        if (cell["key"]["llm_id"], cell["key"]["gpu_profile_id"]) == ("llama-7b", "2xA100-40GB")
    )
    # 5 x (120 + 12.551 GiB) + 8 x (10 + 120 + 10) + 15 s on devices of 5.48941 USD/h
    assert llama["seconds"] == pytest.approx(1797.76, abs=0.01)
    assert llama["usd"] == pytest.approx(2.7413, abs=0.001)
    seconds = sum(cell["seconds"] * cell["n_devices"] for cell in cells)
    assert plan["gpu_hours"] == pytest.approx(seconds / 3600)
    assert plan["hours"]["on_nodes"] == pytest.approx(5.04 / 2, rel=0.05)


def test_a_plan_writes_nothing_of_the_project(fresh: Project) -> None:
    def files() -> dict[Path, int]:
        found = (path for path in fresh.folder.rglob("*") if path.is_file())
        return {
            path: path.stat().st_mtime_ns
            for path in found
            if ".snakemake" not in path.parts  # its cache of files' ages
        }

    before = files()
    done = fresh.sextant("plan", *OPTIONS)
    assert done.returncode == 0, done.stderr
    assert files() == before
    assert "142 submissions" in done.stdout


def test_a_plan_is_made_beside_a_run(fresh: Project) -> None:
    """No lock is taken and none is heeded: the plan of a folder in use is a plan too."""
    locks = fresh.folder / ".snakemake" / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "0.output.lock").write_text(f"{fresh.folder}/results/sextant.duckdb\n")
    done = fresh.sextant(
        "plan", *OPTIONS, "results/cluster/workloads/conversation/requests.parquet"
    )
    assert done.returncode == 0, done.stderr
    assert "it needs no GPU time" in done.stdout
    assert [path.name for path in locks.iterdir()] == ["0.output.lock"]


def test_bad_input_gets_the_line_that_a_run_would_give(fresh: Project) -> None:
    sheet = fresh.sheet("llms")
    kept = sheet.read_text()
    sheet.write_text(kept.replace("llm_id", "llm", 1))
    done = fresh.sextant("plan")
    sheet.write_text(kept)
    assert done.returncode == 2
    assert done.stderr.startswith("Error: config/llms.tsv, line 1, field 'llm': unknown column")
