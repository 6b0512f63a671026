"""Write the recommendation report from the store: a page, its figures, and the answer as JSON."""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.report.write import write_report

with job_log(snakemake.log[0]):
    write_report(
        Path(snakemake.input.store),
        Path(snakemake.output.html),
        Path(snakemake.output.json),
        Path(snakemake.output.figures),
    )
