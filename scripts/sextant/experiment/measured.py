"""Whether files on disk were made from what the sheets ask for, by contents and not by dates.

A checkout, a copy or an archive gives files new dates, and Snakemake's own records do not travel
with results. Each result says what it was made from; these functions compare that with the sheets.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.base.files import read_json
from sextant.experiment.experiment import Experiment, sha256_once, trace_sha256
from sextant.workload.request_model import N_BINS


def inputs_sha256(
    definition: Mapping[str, Any], workload: str | Path, config: str | Path
) -> tuple[str, ...]:
    """Return the SHA-256 of a cell's workload (`requests.parquet`), its LLM's config, and, where
    its scenario asks for the workload's arrivals, of `arrivals.json`.
    """
    arrivals = Path(workload).with_name("arrivals.json")
    has_arrivals = isinstance(definition["scenario"].get("arrivals"), str)
    return tuple(map(sha256_once, (workload, config, *[arrivals][: int(has_arrivals)])))


def definition_sha256(definition: Mapping[str, Any], *inputs: str) -> str:
    """Return the SHA-256 of a definition and of the SHA-256 of its inputs (`inputs_sha256`)."""
    facts = [definition, *inputs]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def is_cell_of(folder: Path, definition: Mapping[str, Any], workload: Path) -> bool | None:
    """Return whether a cell's results were measured by a definition; None if that is not known."""
    recorded = _facts(folder / "run.json").get("definition_sha256")
    try:
        contents = inputs_sha256(definition, workload, definition["config_path"])
    except OSError:  # the workload is made again first
        return None
    return None if recorded is None else recorded == definition_sha256(definition, *contents)


def is_workload_of(
    folder: Path, experiment: Experiment, workload_id: str, seed: int
) -> bool | None:
    """Return whether a workload was made by its row of the sheet; None if that is not known."""
    row, recorded = (
        experiment.workloads[workload_id],
        _facts(folder / "arrivals.json").get("fit", {}),
    )
    origin = ("use_case", "input_tokens", "output_tokens", "max_input_tokens", "max_output_tokens")
    asked = {name: row[name] for name in origin if name in row}
    if "trace_id" in row:
        source = {"source": trace_sha256(experiment, row["trace_id"])}
        asked |= {"n_bins": row.get("n_bins", N_BINS), "seed": seed, "inputs_sha256": source}
    if asked.keys() - recorded.keys():
        return None
    return all(recorded[name] == value for name, value in asked.items())


def is_trace_of(report: Path, experiment: Experiment, trace_id: str) -> bool | None:
    """Return whether a trace was normalised from the source in the sheet, by ingest's report."""
    recorded = _facts(report).get("source_sha256")
    return None if recorded is None else recorded == trace_sha256(experiment, trace_id)


def _facts(path: Path) -> dict[str, Any]:
    """Return what a file of JSON says; nothing where it is missing or damaged."""
    try:
        facts = read_json(path)
    except (OSError, InputError):
        return {}
    return facts if isinstance(facts, dict) else {}
