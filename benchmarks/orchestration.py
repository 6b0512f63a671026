"""What the orchestration itself costs, against a bare Snakefile of as many jobs.

    python benchmarks/orchestration.py [--cells 2000] [--executed 200] [--requests 1000]

Three things are timed, each in processes of its own, with the medians of repeated runs:

- *planning*: `snakemake --dry-run` of one cell (imports, sheets, parsing) and of all cells (the DAG
  and what it prints; every input function is called, every wildcard matched);
- *a job*: executed cells whose measurement is a script that writes five empty files, one at a time,
  under both schedulers of Snakemake. The time of the script's own Python is in it. No server is
  started, so this is the overhead and nothing else;
- *aggregation* of all cells, with real files of `--requests` requests each, without Snakemake: the
  check of every byte against `run.json`, and the points. Peak memory with it.

The baseline is a Snakefile of one rule with as many outputs a job, no constraints of wildcards, no
functions, no parameters, the same script.
"""

import argparse
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parents[1] / "tests"
sys.path.append(str(TESTS))

from cells import request, write_cell  # noqa: E402
from project import Project  # noqa: E402
from sextant.points.cell_files import (  # noqa: E402
    read_run,
    require_whole,
    write_run,
)
from sextant.points.summarize import aggregate_points  # noqa: E402

N_PROFILES = 20
N_LEVELS = 4
STUB = """for path in snakemake.output:
    open(path, "w").close()
"""
BARE = """
rule all:
    input: expand("results/{i}/run.json", i=range(int(config["n"])))
rule benchmark_cell:
    output: [f"results/{{i}}/{n}" for n in ("a", "b", "c", "d", "run.json")]
    script: "stub.py"
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=2000)
    parser.add_argument("--executed", type=int, default=200)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        planning(Path(folder), given.cells, given.repeats)
        jobs(Path(folder), given.executed)
        aggregation(Path(folder), given.cells, given.requests)


def planning(folder: Path, n_cells: int, repeats: int) -> None:
    for n in (1, n_cells):
        bare = [seconds(bare_project(folder, n), "--dry-run") for _ in range(repeats)]
        ours = [seconds(our_project(folder, n), "--dry-run") for _ in range(repeats)]
        show(f"dry run of {n} cells", statistics.median(ours), statistics.median(bare), "s")


def jobs(folder: Path, n_jobs: int) -> None:
    """Time what each further job takes: less the time of a run of one."""
    for scheduler in ("greedy", "ilp"):
        options = ("--cores", "1", "--scheduler", scheduler, "--until", "benchmark_cell")
        cost = {}
        for name, make in (("bare", bare_project), ("ours", our_project)):
            place = make(folder, 1)
            seconds(place, *options)  # what measurements are made from
            fixed_s = seconds(make(folder, 1), *options)
            cost[name] = (seconds(make(folder, n_jobs), *options) - fixed_s) / (n_jobs - 1)
        show(f"{scheduler}: a job of {n_jobs}", 1e3 * cost["ours"], 1e3 * cost["bare"], "ms")


def aggregation(folder: Path, n_cells: int, n_requests: int) -> None:
    first = synthetic_cell(folder / "cells" / "0", n_requests)
    cells = [first, *(copied_cell(first, n) for n in range(1, n_cells))]
    n_bytes = sum(file.stat().st_size for cell in cells for file in cell.iterdir())
    print(f"{n_cells} cells of {n_requests} requests, {n_bytes / 2**20:.0f} MiB")
    start = time.monotonic()
    require_whole(cells)
    checked_s = time.monotonic() - start
    out = [folder / f"{name}.parquet" for name in ("point", "feasibility", "telemetry")]
    aggregate_points(cells, *out)
    whole_s = time.monotonic() - start - checked_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    show("check of every byte, against aggregation with it", checked_s, whole_s, "s")
    print(f"peak memory {peak_mib:.0f} MiB")


def our_project(folder: Path, n_cells: int) -> Path:
    """Return a copy of the project with so many cells; those measured are forgotten."""
    place = folder / "ours"
    if not place.exists():
        place.mkdir()
        Project(place)
        (place / "scripts" / "benchmark_cell.py").write_text(STUB)
    project = Project.__new__(Project)
    project.folder = place
    n_profiles = min(n_cells, N_PROFILES)
    llms = [
        (f"llm-{n}", "resources/llms/demo-opt-6m.json", "") for n in range(n_cells // n_profiles)
    ]
    project.write_sheet("llms", "llm_id config model", *llms)
    profiles = [(f"{n}xcpu-core", "cpu-core", n, 0.04 * n) for n in range(1, n_profiles + 1)]
    project.write_sheet("gpu_profiles", "gpu_profile_id gpu_id n_gpus usd_per_hour", *profiles)
    forget(place, "results/benchmarks")
    return place


def bare_project(folder: Path, n_cells: int) -> Path:
    place = folder / "bare"
    place.mkdir(exist_ok=True)
    (place / "Snakefile").write_text(f"config['n'] = {n_cells}\n{BARE}")
    (place / "stub.py").write_text(STUB)
    forget(place, "results")
    return place


def forget(place: Path, results: str) -> None:
    subprocess.run(["rm", "-rf", results, ".snakemake/metadata"], cwd=place, check=True)


def seconds(place: Path, *options: str) -> float:
    start = time.monotonic()
    command = [sys.executable, "-m", "snakemake", "--cores", "2", *options]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return time.monotonic() - start


def copied_cell(first: Path, number: int) -> Path:
    """Write the same cell once more, of another LLM."""
    folder = shutil.copytree(first, first.with_name(str(number)))
    write_run(folder, replace(read_run(first), llm_id=f"llm-{number}"))
    return folder


def synthetic_cell(folder: Path, n_requests: int) -> Path:
    """Write a cell of four levels whose requests have 64 tokens each."""
    rng = np.random.default_rng(0)
    rows = []
    for level in range(1, N_LEVELS + 1):
        for start in np.sort(rng.uniform(0, 60, n_requests // N_LEVELS)):
            ends = start + np.cumsum(rng.uniform(0.01, 0.05, 64))
            times = {"sent_s": start, "first_token_s": ends[0], "last_token_s": ends[-1]}
            tokens = {"token_offsets_ms": ((ends - start) * 1e3).tolist(), "output_tokens": 64}
            rows.append(request(level=float(level), scheduled_s=start, **times, **tokens))
    return write_cell(folder, rows, llm_id="llm-0")


def show(what: str, ours: float, baseline: float, unit: str) -> None:
    print(
        f"{what}: {ours:.3g} {unit}, baseline {baseline:.3g} {unit}, ratio {ours / baseline:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
