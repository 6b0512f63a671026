"""Summarise the cells of a source: their files become tables point, feasibility, telemetry."""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.points.cell_files import drop_checkpoints
from sextant.points.summarize import aggregate_points

with job_log(snakemake.log[0]):
    cells = [Path(run).parent for run in snakemake.input.runs]
    tables = [Path(snakemake.output[name]) for name in ("point", "feasibility", "telemetry")]
    aggregate_points(cells, *tables)
    drop_checkpoints(cells)
