"""Summarise the cells of a source.

Inputs: each cell's files. Outputs: tables point, feasibility, telemetry.
"""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.points.cell_files import drop_checkpoints
from sextant.points.summarize import aggregate_points

with job_log(snakemake.log[0]):
    cells = [Path(run).parent for run in snakemake.input.runs]
    aggregate_points(
        cells,
        Path(snakemake.output.point),
        Path(snakemake.output.feasibility),
        Path(snakemake.output.telemetry),
    )
    drop_checkpoints(cells)
