"""Write the recommendation report from the store, as a page and as JSON."""

from pathlib import Path

from sextant.logs import job_log
from sextant.report import write_report

with job_log(snakemake.log[0]):
    write_report(
        Path(snakemake.input.store), Path(snakemake.output.html), Path(snakemake.output.json)
    )
