"""Whether results were made from what the sheets ask for, by contents.

A copy or a checkout gives files new dates, and Snakemake's records do not travel along.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import read_object
from sextant.base.sheets import file_name
from sextant.experiment.experiment import (
    ORIGINS,
    Experiment,
    cell_definition,
    definition_sha256,
    inputs_sha256,
)
from sextant.experiment.sheets import CellKey
from sextant.trace.choice import CHOICE_FACTS

MEASURE_STALE_CELLS = (
    "run `snakemake --cores all --forcerun ingest_trace fit_workload benchmark_cell`, with your "
    "other options: it measures these cells again and leaves all others"
)


def is_cell_of(folder: Path, definition: Mapping[str, Any], workload: Path) -> bool | None:
    """Return whether a cell's results were measured by a definition; None if that is not known."""
    recorded = _facts(folder / "run.json").get("definition_sha256")
    contents = contents_sha256(definition, workload)
    if recorded is None or contents is None:
        return None
    return recorded == definition_sha256(definition, *contents)


def contents_sha256(definition: Mapping[str, Any], workload: Path) -> tuple[str, ...] | None:
    """Return the SHA-256 of a cell's inputs; None while the workload has not been made."""
    try:
        return inputs_sha256(definition, workload, definition["config_path"])
    except OSError:
        return None


def is_workload_of(folder: Path, definition: Mapping[str, Any]) -> bool | None:
    """Return whether a workload was made by a definition, of a workload or of a cell that uses it;
    None if that is not known."""
    made_from = definition["workload"]
    expected = {name: definition[name] for name in ("max_input_tokens", "max_output_tokens")}
    expected |= {name: made_from[name] for name in ORIGINS if name in made_from}
    if "sha256" in made_from:
        expected |= {"n_bins": made_from["n_bins"], "seed": definition["seed"]}
        expected["inputs_sha256"] = {"source": made_from["sha256"]}
        expected |= {name: made_from[name] for name in CHOICE_FACTS if name in made_from}

    recorded = _facts(folder / "arrivals.json").get("fit", {})
    if expected.keys() - recorded.keys():
        return None
    return all(recorded[name] == value for name, value in expected.items())


def require_current(
    experiment: Experiment, cells: Iterable[CellKey], config: Mapping[str, Any]
) -> None:
    """Raise InputError if a cell was measured by another definition than the sheets give.

    Snakemake's records tell that before a run; a fresh checkout beside copied results has none.
    """
    results = Path(config["pathvars"]["results"])
    stale = []
    for key in cells:
        folder = results / "benchmarks" / config["source"] / key.folder
        workload = results / "workloads" / file_name(key.workload_id) / "requests.parquet"
        if is_cell_of(folder, cell_definition(experiment, key, config), workload) is False:
            stale.append(folder)
    if stale:
        listed = "".join(f"\n  {folder}" for folder in stale)
        problem = f"{len(stale)} cells were measured by another definition:{listed}"
        raise InputError(problem, fix=MEASURE_STALE_CELLS)


def _facts(path: Path) -> dict[str, Any]:
    """Return what a file of JSON says; nothing where it is missing or damaged."""
    try:
        return read_object(path)
    except (OSError, InputError):
        return {}
