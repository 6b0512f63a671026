"""Fidelity: draws of both samplers against the published traces they are modelled on.

    SEXTANT_MIRROR=<folder> python benchmarks/model_fidelity.py [--draws 1000000]

For Azure and Mooncake, ingested from the mirror: by parameter the Kolmogorov-Smirnov distance
(reach: at most 0.02) and the mean of draws over that of the trace; the largest difference of a
Spearman coefficient (reach: at most 0.02 for joint draws; independent draws, the ablation, have
no correlation). Raw resampling of the trace shows the noise of drawing. Writes nothing.
"""

import argparse
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from sextant.report.trace_file import explained
from sextant.trace.job import ingest_trace
from sextant.workload.fit import ks_distance, largest_difference, spearman
from sextant.workload.published import output_by_input
from sextant.workload.request_model import (
    SAMPLERS,
    fit_request_model,
    resample_trace,
    served_requests,
)

TRACES = {
    "azure": "azure-2023/AzureLLMInferenceTrace_conv.csv",
    "mooncake": "mooncake/conversation_trace.jsonl",
}


def requests_of(source: Path, trace_format: str) -> pd.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        names = ("trace.parquet", "rejected.parquet", "report.json")
        outputs = [Path(folder) / name for name in names]
        ingest_trace(source, trace_format, *outputs)
        return served_requests(outputs[0])


def by_input(requests: pd.DataFrame, bins: pd.DataFrame) -> float:
    """Return how much of the variance of the outputs' ranks the input's bin explains."""
    place = np.searchsorted(bins["input_lo"], requests["input_tokens"], side="right")
    return explained(requests["output_tokens"].rank().to_numpy(), place)[0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name, path in TRACES.items():
        served = requests_of(Path(os.environ["SEXTANT_MIRROR"]) / path, name)
        model = fit_request_model(served)
        print(f"{name}: {len(served):,} requests, {len(model.frame):,} joint bins")
        of_trace = spearman(served)
        bins = output_by_input(served["input_tokens"], served["output_tokens"])
        draws = {
            sampler: model.sample(options.draws, seed=options.seed, sampler=sampler)
            for sampler in SAMPLERS
        }
        draws["raw trace"] = resample_trace(served, options.draws, seed=options.seed)
        for sampler, drawn in draws.items():
            parameters = ", ".join(
                f"{column} KS {ks_distance(served[column], drawn[column]):.4f}, "
                f"mean x {drawn[column].mean() / served[column].mean():.4f}"
                for column in served
            )
            difference = largest_difference(of_trace, spearman(drawn[list(served)]))
            print(f"  {sampler:12} {parameters}; largest Spearman difference {difference:.4f};")
            print(f"{'':15}variance of output ranks by the input's bin {by_input(drawn, bins):.1%}")
        correlation = of_trace.loc["input_tokens", "output_tokens"]
        print(f"  Spearman of input and output in the trace {correlation:+.4f}")
        print(f"  variance of output ranks by the input's bin there {by_input(served, bins):.1%}")


if __name__ == "__main__":
    main()
