"""Summarise the cells of a source: their files become tables point, feasibility, telemetry."""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.points.cell_files import drop_checkpoints
from sextant.points.summarize import aggregate_points

with job_log(snakemake.log[0]):
    cells = [Path(file).parent for file in snakemake.input.cells]
    tables = [Path(snakemake.output[name]) for name in ("point", "feasibility", "telemetry")]
    aggregate_points(cells, *tables, levels=snakemake.params.levels)
    drop_checkpoints(cells)
