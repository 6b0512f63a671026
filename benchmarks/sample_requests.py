"""Speed: 1,000 requests from a request model, against pandas and NumPy samplers.

    SEXTANT_MIRROR=<folder> python benchmarks/sample_requests.py [MODEL] [--draws 1]

MODEL is a workload's folder or a published histogram, by default TGIS in the mirror. Every
sampler gives a frame of 1,000 requests unless its line says otherwise, has what it can prepare
prepared before the clock starts, and gets another seed each time. The clock is the thread's CPU
time: none of them waits, and what else the machine does interrupts the slow ones more often than
the fast ones. Samplers take turns of some draws each; `--draws 1` shows them with cold caches,
which the sampler before has filled with its own. Prints the model's size on disk, medians, and
the ratio to each of two baselines:

- fmperf's method (LLM-Pilot's published generator): the `value_counts` series of the requests is
  built once and its bins and probabilities are kept as lists; a draw is `np.random.choice` over
  the bins and a frame of the tuples that were drawn.
- the same, kinder than fmperf is: bins and probabilities are kept as arrays and a frame.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.trace.job import ingest_trace
from sextant.workload.published import load_request_model
from sextant.workload.request_model import RequestModel, served_requests

N_REQUESTS = 1000
FMPERF, KIND = "value_counts, as fmperf", "value_counts, kinder"
Sampler = Callable[[int], object]


def value_counts_samplers(model: RequestModel) -> dict[str, Sampler]:
    """Samplers over the series that `value_counts` of the modelled requests would be."""
    series = pd.Series(
        model.weights / model.weights.sum(), pd.MultiIndex.from_frame(model.frame[model.parameters])
    )
    bins, probabilities = list(series.index), list(series.to_numpy())
    frame, known = series.index.to_frame(index=False), series.to_numpy()

    def as_fmperf(seed: int) -> pd.DataFrame:
        np.random.seed(seed)
        drawn = np.random.choice(range(len(bins)), p=probabilities, size=N_REQUESTS)
        return pd.DataFrame(np.array(bins, dtype=object)[drawn], columns=model.parameters)

    def kinder(seed: int) -> pd.DataFrame:
        np.random.seed(seed)
        return frame.iloc[np.random.choice(len(frame), p=known, size=N_REQUESTS)]

    return {FMPERF: as_fmperf, KIND: kinder}


def samplers(model: RequestModel, requests: pd.DataFrame) -> dict[str, Sampler]:
    cumulative = np.cumsum(model.weights)

    def cumulative_sum(seed: int) -> np.ndarray:
        drawn = np.random.default_rng(seed).random(N_REQUESTS) * cumulative[-1]
        return np.searchsorted(cumulative, drawn, side="right")

    return {
        **value_counts_samplers(model),
        "cumulative sum, places only": cumulative_sum,
        "ours, joint": lambda seed: model.sample(N_REQUESTS, seed=seed),
        "ours, independent": lambda seed: model.sample(
            N_REQUESTS, seed=seed, sampler="independent"
        ),
        "pandas sample of raw Azure": lambda seed: requests.sample(
            N_REQUESTS, replace=True, random_state=seed
        ),
    }


def azure_requests(mirror: Path) -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        names = ("trace.parquet", "rejected.parquet", "report.json")
        outputs = [Path(folder) / name for name in names]
        ingest_trace(mirror / "azure-2023/AzureLLMInferenceTrace_conv.csv", "azure", *outputs)
        return served_requests(outputs[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="default: TGIS in the mirror")
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--draws", type=int, default=20, help="of a sampler in its turn")
    options = parser.parse_args()
    mirror = Path(os.environ["SEXTANT_MIRROR"])
    model = load_request_model(options.model or mirror / "tgis" / "tgis_hist64.parquet")
    compared = samplers(model, azure_requests(mirror))
    times_ms: dict[str, list[float]] = {name: [] for name in compared}
    for turn in range(-1, options.turns):  # the first one warms up
        for name, draw in compared.items():
            for number in range(options.draws):
                seed = (turn + 1) * options.draws + number
                started_ns = time.thread_time_ns()
                draw(seed)
                if turn >= 0:
                    times_ms[name].append((time.thread_time_ns() - started_ns) / 1e6)
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "requests.parquet"
        model.save(saved, {})
        size_mb = saved.stat().st_size / 1e6
    medians = {name: statistics.median(values) for name, values in times_ms.items()}
    print(f"{len(model.frame):,} joint bins, {size_mb:.3f} MB saved; draws of {N_REQUESTS}")
    for name, median in medians.items():
        print(
            f"{name:28} {median:8.3f} ms, {medians[FMPERF] / median:6.1f} times as fast as fmperf, "
            f"{medians[KIND] / median:5.1f} as kinder"
        )


if __name__ == "__main__":
    main()
