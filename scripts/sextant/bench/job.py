"""A cell as a job: what `scripts/benchmark_cell.py`, which must not change, calls."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sextant.base.job_log import Progress, job_log
from sextant.bench.cell import measure_cell
from sextant.bench.definition import cell_from_definition
from sextant.experiment.servers import engine_settings, load_endpoints


def run_job(
    definition: Mapping[str, Any],
    config: Mapping[str, Any],
    workload: str,
    outputs: Mapping[str, str],
    logs: Mapping[str, str],
) -> None:
    """Measure the cell that `definition` describes, logging to `logs`."""
    with job_log(logs["job"]):
        cell = cell_from_definition(definition, workload)
        # Not by the definition, which holds no name of a key.
        endpoints = load_endpoints(config.get("sheets", {}).get("endpoints"))
        settings = engine_settings(config, endpoints.get((cell.llm_id, cell.gpu_profile_id)))
        progress = Progress(f"{cell.llm_id} on {cell.gpu_profile_id}", len(cell.scenario.levels))
        try:
            measure_cell(
                cell,
                settings,
                Path(outputs["run"]).parent,
                Path(logs["server"]),
                progress,
            )
        finally:
            progress.close()
