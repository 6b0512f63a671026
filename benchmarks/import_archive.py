"""Speed and memory: the raw LLM-Pilot archive to points in DuckDB, against plain pandas.

Usage: SEXTANT_MIRROR=<folder> python benchmarks/import_archive.py [rounds]

Ours compares checksums, writes the benchmark contract's files, computes every column of `point`
and builds the database; it is run from the unpacked folder, and from the tar.xz as well. The
baseline starts from the unpacked folder and computes only medians and throughput: read_csv of
each file, literal_eval of each row's tokens, concat, group-by, to DuckDB. Each run has a
process of its own; the baseline's one run stands between the rounds of ours.
"""

import ast
import os
import resource
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import duckdb
import pandas as pd

RESOURCES = Path(__file__).parents[1] / "resources"
sys.path.insert(0, str(RESOURCES / "llm-pilot"))

from import_archive import Sheets, import_archive  # noqa: E402

from sextant.experiment.downloads import load_registry  # noqa: E402
from sextant.points.store import build_store  # noqa: E402
from sextant.points.summarize import aggregate_points  # noqa: E402

KEYS = ["model", "n_gpus", "gpu_type", "num_users"]


def ours(source: Path, work: Path) -> None:
    """Import the archive into a database below `work`."""
    names = ("manifest.csv", "cells.tsv", "published_points.csv")
    sheets = Sheets(*(RESOURCES / "llm-pilot" / name for name in names))
    import_archive(source, sheets, work / "cells", workload_id="w", scenario_id="s")
    tables = {name: work / f"{name}.parquet" for name in ("point", "feasibility", "telemetry")}
    cells = [run.parent for run in sorted((work / "cells").rglob("run.json"))]
    aggregate_points(cells, *tables.values())
    build_store(work / "ours.duckdb", {}, {name: [path] for name, path in tables.items()})


def plain_pandas(unpacked: Path, work: Path) -> None:
    """Compute the same medians the way that first comes to mind."""
    frames = []
    for file in sorted(unpacked.rglob("results_*.csv")):
        frame = pd.read_csv(file)
        frame["tokens"] = frame["latency_ms_per_token"].map(ast.literal_eval)
        frames.append(frame[frame["status"] == 200])
    requests = pd.concat(frames)
    requests["ttft_ms"] = requests["tokens"].str[1]
    requests["nttft_ms"] = requests["ttft_ms"] / requests["n_input_tokens"]
    groups = requests.groupby(KEYS)
    points = groups[["ttft_ms", "nttft_ms"]].median()
    requests["itl_ms"] = requests["tokens"].str[2:]
    gaps = requests[[*KEYS, "itl_ms"]].explode("itl_ms").astype({"itl_ms": float})
    points["itl_ms"] = gaps.groupby(KEYS)["itl_ms"].median()
    points["throughput_tok_s"] = (
        groups["n_output_tokens"].sum() / groups["experiment_duration_s"].first()
    )
    point = points.reset_index()
    with duckdb.connect(work / "pandas.duckdb") as database:
        database.register("computed", point)
        database.execute("CREATE TABLE point AS FROM computed")


def run(name: str, archive: Path) -> tuple[float, float, float]:
    """Run one of the two in a process of its own: wall seconds, CPU seconds, peak GiB."""
    with tempfile.TemporaryDirectory() as work:
        started = time.monotonic()
        command = [sys.executable, __file__, "--child", name, str(archive), work]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        wall_s = time.monotonic() - started
    cpu_s, peak_kib = map(float, done.stdout.split())
    return wall_s, cpu_s, peak_kib / 2**20


def compare(rounds: int) -> None:
    """Run both and print their times and peak memory, and the ratio of the times."""
    dataset = load_registry(RESOURCES / "registry.csv")["llm-pilot"]
    packed = Path(os.environ["SEXTANT_MIRROR"]) / dataset.mirror_path
    results: dict[str, list] = {"pandas": [], "ours": [], "ours from tar.xz": []}
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(packed) as archive:
            archive.extractall(folder, filter="data")
        (unpacked,) = Path(folder).iterdir()
        for number in range(rounds):
            results["ours"].append(run("ours", unpacked))
            results["ours from tar.xz"].append(run("ours", packed))
            if number == 0:
                results["pandas"].append(run("plain_pandas", unpacked))
    base_s, base_cpu_s, _ = results["pandas"][0]
    for name, runs in results.items():
        wall_s, cpu_s, peak_gib = (statistics.median(values) for values in zip(*runs, strict=True))
        walls = ", ".join(f"{wall:.1f}" for wall, _, _ in runs)
        print(f"{name:16} {wall_s:5.1f} s ({walls}), CPU {cpu_s:4.1f} s, peak {peak_gib:.2f} GiB")
        print(f"{'':16} {base_s / wall_s:.1f} times as fast, {base_cpu_s / cpu_s:.1f} in CPU time")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        {"ours": ours, "plain_pandas": plain_pandas}[sys.argv[2]](*map(Path, sys.argv[3:]))
        used = resource.getrusage(resource.RUSAGE_SELF)
        print(used.ru_utime + used.ru_stime, used.ru_maxrss)
    else:
        compare(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
