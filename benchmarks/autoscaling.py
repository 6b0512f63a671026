"""Real runs under KEDA beside simulated ones: Llama-3.1-8B on H100, replicas that come and go.

`autoscaling/` of the mirror: 7,920 requests a run, 5, 12 and 5 a second, and replicas over time.
With the real replicas given: median and p90 of TTFT by run (the first minute and rows that were cut
off left out of the measured ones), and requests in flight by minute. With the orders of replicas
given and their starts simulated: GPU hours. Servers are asked about as they were started: without
CUDA graphs (not in the configuration that was kept), with the share of the memory that it states.

    SEXTANT_MIRROR=… .venv/bin/python benchmarks/autoscaling.py [--cuda-graphs] [--minutes] [RUN …]
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.ask.forecast import MEDIANS
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.base.sheets import read_yaml
from sextant.capacity.policies import read_policy
from sextant.capacity.simulation import Deployment, Sent, simulate_llm
from sextant.facts.startup import Startup
from sextant.workload.lengths import Length
from sextant.workload.lengths import RequestLengths as Lengths
from sextant.workload.requests import RequestStream

MIRROR = Path(os.environ.get("SEXTANT_MIRROR", "missing"))
BOOT_S = 87.0
"""Of these runs' starts, 78 to 95 s: nodes had the image."""


def simulated(
    run: Path, replicas: pd.DataFrame, startup: Startup, is_eager: bool
) -> dict[str, Any]:
    """Return the answer for a run's requests under replicas over time."""
    table = pd.read_csv(run / "requests.csv").sort_values("arrival_s", kind="stable")
    columns = (table[name].to_numpy() for name in ("arrival_s", "input_tokens", "output_tokens"))
    requests = RequestStream.of(*columns)
    end_s = float(pd.read_csv(run / "replicas.csv")["t_s"].iloc[-1])
    means = [float(table[name].mean()) for name in ("input_tokens", "output_tokens")]
    lengths = Lengths(*(Length(mean, mean) for mean in means))
    llm = MIRROR / "hf_configs" / "meta-llama--Meta-Llama-3.1-8B.json"
    cache = read_yaml(run / "config.yaml")["engine_cache"]
    question = Question(
        MEDIANS,
        hf_config=llm,
        gpu_profile_ids=("1xH100-80GB",),
        requests=lengths,
        gpu_memory_utilization=float(cache["gpu_memory_utilization"]),
        enforce_eager=is_eager,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replicas.csv"
        replicas.to_csv(path, index=False)
        policy = read_policy(path)
    sent = Sent(run.name, lambda n: requests, end_s)
    deployment = Deployment(
        policy=policy, startup=lambda llm: startup, router="least_requests", n_draws=0
    )
    return simulate_llm(question, sent, Settings(), deployment).to_dict()


def judged(run: Path, is_eager: bool = True) -> tuple[dict[str, Any], pd.DataFrame]:
    """Return the figures of a run, and its minutes: measured beside simulated."""
    table = pd.read_csv(run / "requests.csv").sort_values("arrival_s", kind="stable")
    replicas = pd.read_csv(run / "replicas.csv")
    answer = simulated(run, replicas[["t_s", "ready"]], Startup(0.0), is_eager)
    minutes = pd.DataFrame(answer["by_minute"])
    last_s = table["arrival_s"].max()
    rows = []
    for row in minutes[minutes["start_s"] < last_s].itertuples():
        until_s = row.start_s + 60.0
        own = table[table["arrival_s"].between(row.start_s, until_s, inclusive="left")]
        busy_s = np.minimum(table["departure_s"], until_s) - np.maximum(
            table["arrival_s"], row.start_s
        )
        rows.append(
            {
                "start_s": row.start_s,
                "ready": row.ready,
                "in_flight": float(busy_s.clip(lower=0).sum() / 60.0),
                "in_flight_simulated": row.in_flight,
                "p50_ms": own["ttft_ms"].median(),
                "p50_simulated_ms": row.median_ttft_ms,
                "p90_ms": own["ttft_ms"].quantile(0.9),
                "p90_simulated_ms": row.p90_ttft_ms,
            }
        )
    found = pd.DataFrame(rows)
    is_whole = table["output_tokens"] >= 480
    later = table[(table["arrival_s"] >= 60) & is_whole]["ttft_ms"]
    off = found["in_flight_simulated"] / found["in_flight"] - 1
    ordered = replicas[["t_s", "desired"]].rename(columns={"desired": "replicas"})
    hours = simulated(run, ordered, Startup(BOOT_S), is_eager)["replica_hours"]
    step_s = np.diff(replicas["t_s"])
    real_hours = float((replicas[["desired", "ready"]].max(axis=1).to_numpy()[:-1] * step_s).sum())
    figures = {
        "run": run.name,
        "ttft_p50_ms": later.median(),
        "ttft_p50_simulated_ms": answer["ttft_ms"]["p50"],
        "ttft_p90_ms": later.quantile(0.9),
        "ttft_p90_simulated_ms": answer["ttft_ms"]["p90"],
        "minutes_within_10": float((off.abs() <= 0.1).mean()),
        "hours": real_hours / 3600,
        "hours_simulated": hours,
    }
    return figures, found


def draw(runs: dict[str, pd.DataFrame], path: Path) -> None:
    """Draw replicas, requests in flight and TTFT of the runs, measured beside simulated."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")
    for column, (name, table) in enumerate(runs.items()):
        minute = table["start_s"] / 60
        parts = {
            "Replicas ready": (["ready"], 1.0),
            "Requests in flight": (["in_flight", "in_flight_simulated"], 1.0),
            "TTFT p50 (s)": (["p50_ms", "p50_simulated_ms"], 1e-3),
        }
        for row, (label, (names, factor)) in enumerate(parts.items()):
            axes = figure.add_subplot(3, len(runs), row * len(runs) + column + 1)
            for each, style in zip(names, ("-", "--"), strict=False):
                legend = "simulated" if "simulated" in each else "measured"
                axes.step(minute, factor * table[each], style, where="post", label=legend)
            axes.set(ylabel=label, title=name if row == 0 else "")
            axes.set_yscale("log" if "TTFT" in label else "linear")
            axes.legend(frameon=False)
        axes.set_xlabel("Minute")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Print the table, and draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--cuda-graphs", action="store_true")
    parser.add_argument("--minutes", action="store_true")
    parser.add_argument("--figure", type=Path)
    given = parser.parse_args()
    runs = given.runs or sorted((MIRROR / "autoscaling").glob("run_*"))
    found = [judged(run, not given.cuda_graphs) for run in runs]
    print(pd.DataFrame([figures for figures, _ in found]).round(3).to_string(index=False))
    if given.figure:
        draw({figures["run"]: minutes for figures, minutes in found}, given.figure)
    for figures, minutes in found if given.minutes else []:
        print(figures["run"])
        print(minutes.round(1).to_string(index=False))


if __name__ == "__main__":
    main()
