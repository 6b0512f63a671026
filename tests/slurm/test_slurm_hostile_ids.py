"""Ids that try to be commands, through SLURM: its executor makes shell commands of wildcards."""

import json
import time

from hostile import LLMS, PROFILES, SCENARIO, VARIANT, WORKLOAD, write, write_hostile_sheets
from sextant.base.sheets import file_name
from slurm_project import Cluster, SlurmProject


def cell_comments(cluster: Cluster, n_cells: int) -> set[str]:
    """Return what the jobs of cells are called; slurmdbd learns it a while after their end."""
    deadline, comments = time.monotonic() + 60, set()
    while len(comments) < n_cells and time.monotonic() < deadline:
        jobs = [job for job in cluster.jobs() if "benchmark_cell" in job["comment"]]
        comments = {job["comment"] for job in jobs if job["state"] == "COMPLETED"}
        time.sleep(0.5)
    return comments


def test_a_scheduler_is_given_names_and_not_what_sheets_say(cluster: Cluster, tmp_path) -> None:
    folder = tmp_path / "around" / "project"
    folder.mkdir(parents=True)
    project = SlurmProject(folder, cluster)
    write_hostile_sheets(project, gpu_model="h100")
    header = "llm_ids gpu_profile_ids workload_id scenario_id variant_ids"
    cells = [(LLMS[1], PROFILES[1], "default"), (LLMS[2], PROFILES[0], VARIANT)]
    rows = [(llm, profile, WORKLOAD, SCENARIO, variant) for llm, profile, variant in cells]
    write(project, "benchmarks", header, *rows)
    done = project.on_slurm("--until", "benchmark_cell")
    assert done.returncode == 0, done.stdout + done.stderr
    comments = cell_comments(cluster, len(cells))
    for llm, profile, variant in cells:
        at = "" if variant == "default" else f"@{file_name(variant)}"
        names = [*map(file_name, (llm, profile, WORKLOAD, SCENARIO))]
        take = ""  # of the first receipt
        wildcards = ["rule_benchmark_cell_wildcards_measured", *names, at, take]
        assert "_".join(wildcards) in comments
        cell = folder / "results" / "benchmarks" / "measured" / ("/".join(names) + at)
        run = json.loads((cell / "run.json").read_text())
        assert (run["llm_id"], run["gpu_profile_id"]) == (llm, profile)
    assert not [path for path in tmp_path.rglob("*") if path.name == "owned"]
    assert not [path for path in cluster.folder.rglob("*") if path.name == "owned"]
