"""How bursty traces are, and the arrivals of the models that are fitted to them.

    SEXTANT_MIRROR=<folder> .venv/bin/python benchmarks/arrival_models.py
    .venv/bin/python benchmarks/arrival_models.py trace.parquet ...      # normalised traces

Prints a table of measures (see docs/workloads.md) for each trace: of the trace, of one Gamma
process and of the profile; models are medians over samples of the trace's duration. Then which
model the fit chooses and why, and how long the choice takes after the Gamma fit. Without
arguments: the shipped sample (drawn from one Gamma process), Azure's hour of conversation and
Mooncake's (registry), a service of ServeGen's for a day.
"""

import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np

from sextant.experiment.downloads import download, load_registry
from sextant.trace.job import ingest_trace
from sextant.workload.arrivals import MODELS, choose_arrivals, fit_arrivals
from sextant.workload.draw import draw_service
from sextant.workload.profiles import read_arrivals

RESOURCES = Path(__file__).parents[1] / "resources"
SAMPLE = RESOURCES / "traces" / "azure-2023-conv-sample.csv"
PUBLISHED = {"azure-2023-conv": "azure", "mooncake-conversation": "mooncake"}
SERVEGEN = ("servegen/servegen_sample.tar.xz", "data/reason/deepseek-r1")


def traces(folder: Path, given: list[str]) -> dict[str, np.ndarray]:
    """Return the times of each trace by its name."""
    paths = {Path(path).stem: Path(path) for path in given}
    if not given:
        paths["the shipped sample"] = ingested(SAMPLE, "sextant", folder / "sample")
        for name, form in PUBLISHED.items():
            source = folder / name
            dataset = load_registry(RESOURCES / "registry.csv")[name]
            download(dataset, source, os.environ.get("SEXTANT_MIRROR"))
            paths[name] = ingested(source, form, folder / f"{name}-ingested")
    found = {name: read_arrivals(path) for name, path in paths.items()}
    if not given and "SEXTANT_MIRROR" in os.environ:
        found["ServeGen deepseek-r1, a day"] = servegen(folder)
    return found


def ingested(source: Path, form: str, folder: Path) -> Path:
    names = ("trace.parquet", "rejected.parquet", "report.json")
    ingest_trace(source, form, *(folder / name for name in names))
    return folder / names[0]


def servegen(folder: Path) -> np.ndarray:
    """Return a day's arrivals of the clients of one service."""
    archive, service = SERVEGEN
    with tarfile.open(Path(os.environ["SEXTANT_MIRROR"]) / archive) as files:
        files.extractall(folder, filter="data")
    return draw_service(folder / service, duration_s=86_400, seed=0)["arrival_s"].to_numpy()


def show(name: str, times: np.ndarray) -> None:
    started = time.perf_counter()
    gamma = fit_arrivals(times)
    fitted = time.perf_counter()
    choice = choose_arrivals(times, gamma, seed=0)
    chosen_s = time.perf_counter() - fitted
    print(f"\n{name}: {len(times):,} requests in {times[-1] / 60:,.1f} minutes")
    print(f"chosen: {MODELS[choice.model]} ({choice.why})")
    print(f"Gamma fit {fitted - started:.2f} s, choice {chosen_s:.2f} s")
    fits = {model: fit for model, fit in choice.fits.items() if fit.measures}
    print("| measure | trace |" + "".join(f" {model} |" for model in fits))
    print("|---|---:|" + "---:|" * len(fits))
    for measure, value in (choice.trace or {}).items():
        cells = [f"{_text(fit.measures[measure])}" for fit in fits.values()]
        print(f"| {measure} | {_text(value)} |" + "".join(f" {cell} |" for cell in cells))


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, times in traces(Path(folder), sys.argv[1:]).items():
            show(name, times)


if __name__ == "__main__":
    main()
