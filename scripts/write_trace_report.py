"""Characterize a trace and the workloads fitted to it, by `validation` in the folder of each."""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.report.trace_characterize import write_trace_report

with job_log(snakemake.log[0]):
    write_trace_report(
        Path(snakemake.input.trace),
        [Path(validation).parent for validation in snakemake.input.validation],
        Path(snakemake.output.html),
        Path(snakemake.output.json),
        seed=snakemake.params.seed,
        ingest_report=Path(snakemake.input.report),
    )
