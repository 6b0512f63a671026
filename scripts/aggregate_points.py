"""Summarise the cells of a source: their files become tables point, feasibility, telemetry."""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.experiment.current import require_current
from sextant.experiment.loading import load_experiment
from sextant.points.cell_files import drop_checkpoints
from sextant.points.summarize import aggregate_points

with job_log(snakemake.log[0]):
    experiment = load_experiment(snakemake.config)
    if "archive" not in snakemake.config:
        require_current(experiment, experiment.cells, snakemake.config)

    cells = [Path(file).parent for file in snakemake.input.cells]
    tables = [Path(snakemake.output[name]) for name in ("point", "feasibility", "telemetry")]
    aggregate_points(cells, *tables)
    drop_checkpoints(cells)
