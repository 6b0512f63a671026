"""Importance of request parameters for latency, on LLM-Pilot's published requests.

    SEXTANT_MIRROR=<folder> python benchmarks/parameter_importance.py [--rows 20000]
    python benchmarks/parameter_importance.py --requests RESULT/requests.parquet ...

LLM-Pilot, III-A, on the requests of `archive:llm-pilot`: for some cells of LLM and GPUs, and for
all cells pooled (at most 100 rows of each file), R² in training and on rows held out, and MDI and
permutation importance by parameter. The pooled study is made twice, without and with the cell
(LLM, GPU type, number of GPUs) among the parameters. With `--requests`, the same of our own
benchmarks, pooled. Writes nothing.
"""

import argparse
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

# Before this folder, which has a script of the same name.
sys.path.insert(0, str(Path(__file__).parents[1] / "resources" / "llm-pilot"))

from import_archive import FileName, read_results
from sklearn.ensemble import RandomForestRegressor
from sklearn.inspection import permutation_importance
from sklearn.model_selection import train_test_split

CELLS = (
    ("llama-13b", 1, "a100"),
    ("bigcode__starcoder", 1, "a100"),
    ("google__flan-t5-xxl", 1, "a100"),
)
PARAMETERS = ["output_tokens", "input_tokens", "level"]
CELL = ["llm", "gpu", "n_gpus"]
PER_FILE = 100


def files(archive: Path) -> Iterator[tuple[tuple, pd.DataFrame]]:
    """Yield each cell's files: (LLM, number of GPUs, GPU type), requests."""
    with tarfile.open(archive, "r|*") as stream:
        for member in stream:
            if not Path(member.name).match("results_*.csv"):
                continue
            expected = FileName.of(member.name)
            content = stream.extractfile(member).read()
            table = read_results(content, member.name, expected).requests
            yield expected[:3], table.drop(["token_offsets_ms"]).to_pandas()


def study(name: str, requests: pd.DataFrame, parameters: list[str], rows: int) -> None:
    # The time that a request waited in the client tells nothing of its parameters.
    for target, end in (("ttft_ms", "first_token_s"), ("e2e_ms", "last_token_s")):
        requests = requests.assign(**{target: (requests[end] - requests["sent_s"]) * 1e3})
    for target in ("e2e_ms", "ttft_ms"):
        served = requests[(requests["status"] == "ok") & requests[target].notna()]
        if len(served) > rows:
            taken = np.random.default_rng(0).choice(len(served), rows, replace=False)
            served = served.iloc[np.sort(taken)]
        x, y = served[parameters].astype(float).to_numpy(), served[target].to_numpy(float)
        x_own, x_others, y_own, y_others = train_test_split(x, y, test_size=0.2, random_state=0)
        forest = RandomForestRegressor(random_state=0).fit(x_own, y_own)
        lost = permutation_importance(forest, x_others, y_others, random_state=0)
        pairs = zip(parameters, forest.feature_importances_, lost.importances_mean, strict=True)
        shares = ", ".join(f"{parameter} {mdi:.3f}/{loss:.3f}" for parameter, mdi, loss in pairs)
        n_failed = int((requests["status"] != "ok").sum())
        print(
            f"{name}, {target}: {len(served):,} rows ({n_failed:,} failed left out), R2 "
            f"{forest.score(x_own, y_own):.3f} in training, {forest.score(x_others, y_others):.3f} "
            f"held out; MDI/permutation {shares}",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000, help="most rows of a study")
    parser.add_argument("--requests", type=Path, nargs="+", help="of our benchmarks")
    options = parser.parse_args()
    if options.requests:
        measured = pd.concat(pd.read_parquet(path) for path in options.requests)
        study(f"{len(options.requests)} benchmarks", measured, PARAMETERS, options.rows)
        return
    archive = Path(os.environ["SEXTANT_MIRROR"]) / "llm-pilot/LLM-performance-prediction.tar.xz"
    rng, pooled, chosen = np.random.default_rng(0), [], {cell: [] for cell in CELLS}
    for (llm, n_gpus, gpu), requests in files(archive):
        if (llm, n_gpus, gpu) in chosen:
            chosen[llm, n_gpus, gpu].append(requests)
        taken = rng.permutation(len(requests))[:PER_FILE]
        pooled.append(requests.iloc[taken].assign(llm=llm, gpu=gpu, n_gpus=n_gpus))
    for (llm, n_gpus, gpu), parts in chosen.items():
        if parts:
            study(f"{llm} on {n_gpus}x{gpu}", pd.concat(parts), PARAMETERS, options.rows)
    every = pd.concat(pooled)
    codes = {name: pd.factorize(every[name], sort=True)[0] for name in ("llm", "gpu")}
    study("all cells", every, PARAMETERS, options.rows)
    study("all cells, told which", every.assign(**codes), PARAMETERS + CELL, options.rows)


if __name__ == "__main__":
    main()
