"""How fast a BurstGPT-format file is ingested and characterized, against pandas.

    .venv/bin/python benchmarks/ingest_trace.py                     # 5.3 million rows
    .venv/bin/python benchmarks/ingest_trace.py --repeat 3          # medians of three
    .venv/bin/python benchmarks/ingest_trace.py --rows 10e6 20e6 50e6 --only sextant

The file is drawn from known distributions, with a seed: bursty Gamma gaps whose times are cut
to whole seconds as BurstGPT's are, two LLMs, two services, request lengths of a bounded Zipf
law, 3% failures. Each side is a process of its own, measured whole (wall, CPU, peak memory),
and in stages without its imports:

    pandas   read_csv, then a group-by of LLM, service and 20-minute window: requests, failures,
             mean and deviation of the gaps, mean lengths
    fits     the same, and for each window of 30 gaps scipy.stats.gamma.fit and ks_1samp: the
             plain way to what `characterize` finds (without its intervals)
    sextant  `ingest_trace` (checksum, checks, the trace as zstd Parquet), then `characterize`:
             the same windows' traffic, and Gamma fits of their gaps with intervals and tests

Sides alternate; the last lines are pandas' medians over ours.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

WINDOW_S = 1200
MEAN_GAP_S, SHAPE = 2.0, 0.25
MIN_GAPS = 30
MAX_TOKENS, THETA = 8_000, 1.1
ROWS_AT_A_TIME = 1_000_000
GIB = 2**30


def make(path: Path, n_rows: int, seed: int) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv

    rng = np.random.default_rng(seed)
    weights = np.arange(1, MAX_TOKENS + 1) ** -THETA
    zipf = np.cumsum(weights) / weights.sum()
    start_s = 0.0
    options = pa.csv.WriteOptions(quoting_style="none", quoting_header="none")
    with path.open("wb") as file:
        for first in range(0, n_rows, ROWS_AT_A_TIME):
            n = min(ROWS_AT_A_TIME, n_rows - first)
            times = start_s + np.cumsum(rng.gamma(SHAPE, MEAN_GAP_S / SHAPE, n))
            start_s = times[-1]
            request = np.searchsorted(zipf, rng.random(n)) + 1
            response = np.where(rng.random(n) < 0.03, 0, rng.geometric(1 / 250, n))
            columns = {
                "Timestamp": times.astype(np.int64),
                "Model": np.where(rng.random(n) < 0.8, "ChatGPT", "GPT-4"),
                "Request tokens": request,
                "Response tokens": response,
                "Total tokens": request + response,
                "Log Type": np.where(rng.random(n) < 0.7, "Conversation log", "API log"),
            }
            options.include_header = first == 0
            pa.csv.write_csv(pa.table(columns), file, options)


def with_pandas(path: Path, folder: Path) -> dict[str, float]:
    import pandas as pd

    started = time.perf_counter()
    frame = pd.read_csv(path)
    read = time.perf_counter()
    keys = ["Model", "Log Type", "window"]
    frame["window"] = frame["Timestamp"] // WINDOW_S
    frame["failed"] = frame["Response tokens"] == 0
    frame["gap_s"] = frame.groupby(keys)["Timestamp"].diff()
    windows = frame.groupby(keys).agg(
        n_requests=("Timestamp", "size"),
        n_failed=("failed", "sum"),
        mean_gap_s=("gap_s", "mean"),
        std_gap_s=("gap_s", "std"),
        input_tokens=("Request tokens", "mean"),
        output_tokens=("Response tokens", "mean"),
    )
    assert windows["n_requests"].sum() == len(frame)
    return {"read": read - started, "group": time.perf_counter() - read}


def with_fits(path: Path, folder: Path) -> dict[str, float]:
    import numpy as np
    import pandas as pd
    from scipy import stats

    found = with_pandas(path, folder)
    started = time.perf_counter()
    frame = pd.read_csv(path, usecols=["Timestamp", "Model", "Log Type"])
    frame["window"] = frame["Timestamp"] // WINDOW_S
    for _, times in frame.groupby(["Model", "Log Type", "window"])["Timestamp"]:
        gaps = np.diff(times)
        gaps = gaps[gaps > 0]
        if len(gaps) >= MIN_GAPS:
            alpha, _, beta_s = stats.gamma.fit(gaps, floc=0)
            stats.ks_1samp(gaps, stats.gamma(alpha, scale=beta_s).cdf)
    # The file is read once in what counts.
    return found | {"fit": time.perf_counter() - started - found["read"]}


def with_sextant(path: Path, folder: Path) -> dict[str, float]:
    from sextant.trace.job import ingest_trace

    started = time.perf_counter()
    trace = folder / "trace.parquet"
    ingest_trace(path, "burstgpt", trace, folder / "rejected.parquet", folder / "report.json")
    ingested = time.perf_counter()
    characterize = prepare_characterize()
    prepared = time.perf_counter()
    characterize(trace)
    return {"ingest": ingested - started, "characterize": time.perf_counter() - prepared}


def with_ingest(path: Path, folder: Path) -> dict[str, float]:
    from sextant.trace.job import ingest_trace

    started = time.perf_counter()
    outputs = [folder / name for name in ("trace.parquet", "rejected.parquet", "report.json")]
    ingest_trace(path, "burstgpt", *outputs)
    return {"ingest": time.perf_counter() - started}


def prepare_characterize() -> Callable[[Path], None]:
    from sextant.workload.profiles import fit_windows, traffic_series

    def characterize(trace: Path) -> None:
        traffic_series(trace, WINDOW_S)
        fit_windows(trace, WINDOW_S)

    return characterize


SIDES = {
    "pandas": with_pandas,
    "fits": with_fits,
    "ingest": with_ingest,
    "sextant": with_sextant,
}


def measure(side: str, path: Path, folder: Path) -> dict[str, float]:
    """Run a side in a process of its own; this one stays small, for a child inherits its peak."""
    result = folder / "stages.json"
    arguments = [sys.executable, __file__, "--side", side, "--path", path, "--folder", folder]
    started = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [str(text) for text in arguments], os.environ)
    _, status, usage = os.wait4(pid, 0)
    wall = time.perf_counter() - started
    if status:
        raise SystemExit(f"{side} failed")
    figures = {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime}
    figures |= {"peak_gib": usage.ru_maxrss * 1024 / GIB, **json.loads(result.read_text())}
    return figures


def compare(n_rows: int, sides: list[str], repeat: int, seed: int, folder: Path) -> None:
    path = folder / "burstgpt.csv"
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, __file__, "--make", str(path), "--rows", str(n_rows), "--seed", str(seed)],
        os.environ,
    )
    os.wait4(pid, 0)
    print(f"{n_rows:,} rows, {path.stat().st_size / 1e6:.0f} MB, {os.cpu_count()} cores")
    runs: dict[str, list[dict[str, float]]] = {side: [] for side in sides}
    for _ in range(repeat):
        for side in sides:
            runs[side].append(measure(side, path, folder))
    medians = {
        side: {name: statistics.median(run[name] for run in found) for name in found[0]}
        for side, found in runs.items()
    }
    for side, figures in medians.items():
        shown = "  ".join(f"{name} {value:.2f}" for name, value in figures.items())
        print(f"{side:8s} {shown}")
    path.unlink()
    ratios(medians)


def ratios(medians: dict[str, dict[str, float]]) -> None:
    """Print how many times as long the baselines take, without anybody's imports."""
    stages = {
        side: sum(value for name, value in found.items() if name not in ("wall", "cpu", "peak_gib"))
        for side, found in medians.items()
    }
    for base in ("pandas", "fits"):
        for side in ("ingest", "sextant"):
            if base in stages and side in stages:
                print(f"{base} / {side}: {stages[base] / stages[side]:.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, nargs="+", default=[5.3e6], help="of the file")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each side")
    parser.add_argument(
        "--only", choices=SIDES, nargs="+", default=list(SIDES), help="sides to run"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the file")
    parser.add_argument("--folder", type=Path, help="for the files (default: a temporary one)")
    parser.add_argument("--make", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--path", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.make:
        make(given.make, int(given.rows[0]), given.seed)
    elif given.side:
        stages = SIDES[given.side](given.path, given.folder)
        (given.folder / "stages.json").write_text(json.dumps(stages))
    else:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            for n_rows in given.rows:
                compare(int(n_rows), given.only, given.repeat, given.seed, Path(folder))


if __name__ == "__main__":
    main()
