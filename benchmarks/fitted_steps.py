"""Closed loops simulated with the predictor's step laws, beside the predictor and measurements.

    .venv/bin/python benchmarks/fitted_steps.py [--every 3]

The points of archive:inferencex, all of which the fit has seen: this judges the step from a law of
latencies to a law of steps, not the law. Each user sends about ten requests, all start at once, and
lengths spread by a fifth, as in the benchmark that measured them.
"""

import argparse

import numpy as np
import pandas as pd

from sextant.ask.source import load_sources
from sextant.base.errors import InputError
from sextant.law.roofline import Roofline
from sextant.points.frame import TARGETS, FactTables, at_percentile, has_latency
from sextant.predict.predictor import TrainingRows
from sextant.simulate.server import Scheduler, StepLaw
from sextant.simulate.simulation import simulate_closed
from sextant.workload.requests import RequestStream

CONFIGURATION = [
    *("llm_id", "gpu_profile_id", "engine_version", "served_precision", "kv_precision"),
    *("data_parallel", "expert_parallel", "input_tokens", "output_tokens"),
]
WAVES, SPREAD = 10, 0.2
PAIRS = (("law", "measured"), ("simulated", "measured"), ("simulated", "law"))


def simulated(law: StepLaw, row: pd.Series, e2e_ms: float) -> tuple[float, float] | None:
    """Return mean TTFT and ITL in ms; None where the KV cache cannot hold the requests."""
    users, generator = int(row["users"]), np.random.default_rng(0)
    n = 4 * WAVES * users
    tokens = [
        np.round(row[name] * generator.uniform(1 - SPREAD, 1 + SPREAD, n))
        for name in ("input_tokens", "output_tokens")
    ]
    scheduler = Scheduler(int(row["kv_tokens"]), 1024, 8192, has_prefix_caching=False)
    requests, duration_s = RequestStream.of(np.zeros(n), *tokens), (WAVES - 0.5) * e2e_ms / 1e3
    try:
        found = simulate_closed(users, requests, scheduler, law, duration_s=duration_s)
    except InputError:
        return None
    made = found.output_tokens - 1
    return 1e3 * found.ttft_s.mean(), 1e3 * (found.e2e_s - found.ttft_s).sum() / made.sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=3, help="take every so-many-th configuration")
    options = parser.parse_args()
    known, _ = load_sources(["archive:inferencex"])
    points = at_percentile(known.points, (50, 50))
    points = points[has_latency(points)].reset_index(drop=True)
    model = Roofline(None, known.profiles, 42)
    X = model.design(points, FactTables(known.llms, known.profiles))
    model.fit(TrainingRows(X, points[TARGETS]))
    keys = [name for name in CONFIGURATION if name in X]
    found = []
    for number, (_, rows) in enumerate(X.groupby(keys)):
        if number % options.every:
            continue
        (laws,) = model.step_laws(rows.iloc[:1], 2, 1)
        told = model.explain(rows)
        for place, row in rows.iterrows():
            tokens = row["input_tokens"]
            law = told.loc[place, "nttft_ms"] * tokens, told.loc[place, "itl_ms"]
            made = simulated(StepLaw.of(laws[0]), row, law[0] + row["output_tokens"] * law[1])
            if made is None:
                continue
            truth = points.loc[place, "nttft_ms"] * tokens, points.loc[place, "itl_ms"]
            load = row["users"] / told.loc[place, "capacity_requests"]
            for name, *values in zip(("TTFT", "ITL"), truth, law, made, strict=True):
                values = dict(zip(("measured", "law", "simulated"), values, strict=True))
                found.append({"latency": name, "load": load, **row[["users"]]} | values)
    table = pd.DataFrame(found)
    for one, other in PAIRS:
        table[f"{one} / {other}"] = (table[one] / table[other] - 1).abs()
    names = [f"{one} / {other}" for one, other in PAIRS]
    table["users at most"] = pd.cut(table["users"], [0, 4, 16, 64, 256, 4096], labels=False)
    table["users at most"] = np.array([4, 16, 64, 256, 4096])[table["users at most"]]
    for title, part in (("below saturation", table["load"] <= 0.9), ("all", table["load"] > 0)):
        chosen = table[part]
        print(f"\n{title}: median absolute error, {len(chosen) // 2} points")
        grouped = chosen.groupby(["latency", "users at most"])
        print(grouped[names].median().assign(points=grouped.size()).round(3).to_string())
        print(chosen.groupby("latency")[names].agg(["median", "mean"]).round(3).to_string())


if __name__ == "__main__":
    main()
