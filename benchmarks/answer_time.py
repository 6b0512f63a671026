"""CPU seconds of eight questions, also as a ratio to importing NumPy and pandas in the same run.

    .venv/bin/python benchmarks/answer_time.py [--runs 3] [--only README]

Each question is asked once before it counts, but for the first question in a fresh home. A row has
the median of several runs, user and system time of the process. The ratio is what two machines, or
two moments of a busy one, have in common. The day has 184,000 requests with the lengths of
`resources/traces/azure-2023-conv-sample.csv`, Poisson around a daily wave.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[1]
SMALL = "--hf-config resources/llms/meta-llama__Llama-3.1-8B-Instruct.json"
LARGE = "--hf-config resources/llms/meta-llama__Llama-3.3-70B-Instruct.json"
README = f"recommend {SMALL} --request-rate 8 --input-tokens 1500 --output-tokens 250 "
README += "--ttft-ms p95:1000 --tpot-ms 40"
LONG = f"recommend {LARGE} --input-tokens 3000 --output-tokens 400 "
LONG += "--ttft-ms p95:2000 --tpot-ms p95:50"
DAY_REQUESTS = 184_000
DAY_S = 86_400.0


class Question(NamedTuple):
    """What is asked."""

    name: str
    options: str  #: Of the command line; `DAY` is the path of the day's trace.
    is_first: bool = False  #: Whether nothing is kept of earlier questions.


QUESTIONS = (
    Question("README's question", README),
    Question("README's question, in a fresh home", README, is_first=True),
    Question("70B at 2 requests/s", f"{LONG} --request-rate 2"),
    Question("70B at 20 requests/s", f"{LONG} --request-rate 20"),
    Question(
        "a day of 184,000 requests, `capacity`",
        f"capacity {SMALL} --trace DAY --ttft-ms p95:1000 --tpot-ms p95:50",
    ),
    Question(
        "eight demands, `fleet`",
        "fleet --demands config/fleet/demands.tsv --supply config/fleet/supply.tsv",
    ),
    Question(
        "64 users, `recommend`",
        f"recommend {SMALL} --users 64 --input-tokens 1500 --output-tokens 250 "
        "--ttft-ms p95:1000 --itl-ms 40",
    ),
    Question(
        "`explain`",
        f"explain {SMALL} --gpu-profile 1xH100-80GB --users-per-replica 16 --input-tokens 1500 "
        "--output-tokens 250",
    ),
)


def cpu_s(command: list[str], home: Path) -> float:
    """Return the CPU seconds of a command that may keep what it likes in a home.

    Status 3 says that nothing meets what is asked for; it is an answer.
    """
    environment = os.environ | {"XDG_CACHE_HOME": str(home)}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        sys.exit(f"{' '.join(command)}\n{said}")
    return used.ru_utime + used.ru_stime


def write_day(path: Path) -> None:
    """Write a day of requests as a trace."""
    rng = np.random.default_rng(0)
    sample = pd.read_csv(ROOT / "resources" / "traces" / "azure-2023-conv-sample.csv")
    # Twice the mean at the peak, none at the trough: every second candidate is kept.
    candidates_s = np.sort(rng.uniform(0, DAY_S, 4 * DAY_REQUESTS))
    wave = 0.5 - 0.5 * np.cos(2 * np.pi * candidates_s / DAY_S)
    is_kept = rng.random(len(candidates_s)) < wave
    arrival_s = np.sort(rng.choice(candidates_s[is_kept], DAY_REQUESTS, replace=False))
    lengths = sample.sample(DAY_REQUESTS, replace=True, random_state=0)
    day = lengths[["input_tokens", "output_tokens"]].assign(arrival_s=arrival_s)
    day.to_csv(path.with_suffix(".csv"), index=False)
    columns = "arrival=arrival_s,input_tokens=input_tokens,output_tokens=output_tokens"
    command = ["ingest", path.with_suffix(".csv"), "--columns", columns, "--time-unit", "s"]
    command += ["--out", path]
    cpu_s([*SEXTANT, *map(str, command)], path.parent)


SEXTANT = [sys.executable, "-c", "from sextant.cli.app import main; main()"]


def main() -> None:
    """Print the table, a row as soon as it is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a question's name")
    arguments = parser.parse_args()
    chosen = [question for question in QUESTIONS if arguments.only in question.name]

    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        day = Path(folder) / "day.parquet"
        if any("DAY" in question.options for question in chosen):
            write_day(day)
        print("| question | CPU s | imports of NumPy and pandas |\n|---|---|---|")
        for question in chosen:
            command = [*SEXTANT, *question.options.replace("DAY", str(day)).split()]
            imports, took = [], []
            for run in range(arguments.runs + (not question.is_first)):
                fresh = Path(folder) / f"fresh-{run}"
                seconds = cpu_s(command, fresh if question.is_first else home)
                if run or question.is_first:
                    took.append(seconds)
                    imports.append(cpu_s([sys.executable, "-c", "import numpy, pandas"], home))
            median = statistics.median(took)
            ratio = median / statistics.median(imports)
            print(f"| {question.name} | {median:.1f} | {ratio:.1f} |", flush=True)


if __name__ == "__main__":
    main()
