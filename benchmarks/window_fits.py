"""Speed and memory of `fit_windows`, against a group-by in pandas with SciPy's fit and test.

    .venv/bin/python benchmarks/window_fits.py                # 5.3 million rows, a minute
    .venv/bin/python benchmarks/window_fits.py --rows 50e6 --no-baseline

Makes a trace of 121 days in 4 groups of LLM and service, of Gamma gaps with stamps in exact
times or whole seconds, and fits its 20-minute windows. The baseline reads the same three
columns and calls scipy.stats.gamma.fit and ks_1samp for each window with 30 gaps or more; it
leaves gaps of zero out, knows nothing of the clock (ours fits counts of whole seconds), has no
interval, and its p-value does not account for the fit. Both run in processes of their own,
alternated; the shortest time of each counts.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from multiprocessing import Process
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from scipy import stats

from sextant.workload.windows import MIN_GAPS, WINDOW_S, fit_windows

DAYS = 121
SHARES = [0.8, 0.1, 0.07, 0.03]
ROWS_AT_A_TIME = 1_000_000
SCHEMA = pa.schema([("arrival_s", pa.float64()), ("llm", pa.string()), ("service", pa.string())])


def make_trace(path: Path, n: int, clock_s: float) -> None:
    rng, now_s = np.random.default_rng(0), 0.0
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for first in range(0, n, ROWS_AT_A_TIME):
            n_rows = min(ROWS_AT_A_TIME, n - first)
            times = now_s + np.cumsum(rng.gamma(0.5, 2 * DAYS * 86_400 / n, n_rows))
            now_s = times[-1]
            stamps = np.floor(times / clock_s) * clock_s if clock_s else times
            group = rng.choice(4, n_rows, p=SHARES)
            llm = np.array(["ChatGPT", "GPT-4"], object)[group % 2]
            service = np.array(["API log", "Conversation log"], object)[group // 2]
            writer.write_table(pa.table([stamps, llm, service], SCHEMA), row_group_size=122_880)


def plain_pandas(trace: Path) -> int:
    """Fit and test each window the way that first comes to mind; return how many."""
    frame = pd.read_parquet(trace, columns=list(SCHEMA.names))
    frame["window"] = frame["arrival_s"] // WINDOW_S
    n_fitted = 0
    for _, own in frame.groupby(["llm", "service", "window"])["arrival_s"]:
        gaps = np.diff(own)
        gaps = gaps[gaps > 0]
        if len(gaps) >= MIN_GAPS:
            alpha, _, beta_s = stats.gamma.fit(gaps, floc=0)
            stats.ks_1samp(gaps, stats.gamma(alpha, scale=beta_s).cdf)
            n_fitted += 1
    return n_fitted


def run(name: str, trace: Path) -> tuple[float, float, float, int]:
    """Run one of the two in a process of its own: wall and CPU seconds, peak MiB, windows."""
    command = [sys.executable, __file__, "--child", name, "--trace", str(trace)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    wall_s, cpu_s, peak_kib, n_fitted = map(float, done.stdout.split())
    return wall_s, cpu_s, peak_kib / 1024, int(n_fitted)


def child(name: str, trace: Path) -> None:
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    n = int(fit_windows(trace)["alpha"].count()) if name == "ours" else plain_pandas(trace)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    print(wall_s, cpu_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, n)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=float, default=5.3e6)
    parser.add_argument("--rounds", type=int, default=3, help="runs of ours")
    parser.add_argument("--no-baseline", action="store_true")
    parser.add_argument("--child", choices=("ours", "pandas"), help=argparse.SUPPRESS)
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child, options.trace)
        return
    for clock_s in (0.0, 1.0):
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.parquet"
            # In a process of its own: the peak memory of a parent counts for its children.
            make = Process(target=make_trace, args=(trace, int(options.rows), clock_s))
            make.start()
            make.join()
            runs = {"ours": [run("ours", trace)]}
            if not options.no_baseline:
                runs["pandas"] = [run("pandas", trace)]
            runs["ours"] += [run("ours", trace) for _ in range(options.rounds - 1)]
        print(f"{options.rows:,.0f} rows, stamps {'in whole seconds' if clock_s else 'exact'}")
        for name, found in runs.items():
            wall_s, cpu_s, peak_mib, n = min(found)
            print(f"  {name}: {wall_s:.2f} s ({cpu_s:.2f} s CPU), {peak_mib:.0f} MiB, {n} fits")
        if "pandas" in runs:
            print(f"  pandas / ours: {min(runs['pandas'])[0] / min(runs['ours'])[0]:.1f}")


if __name__ == "__main__":
    main()
