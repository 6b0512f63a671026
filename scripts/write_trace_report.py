"""Characterize a trace, and the workloads fitted to it.

Inputs: `trace`, ingest's `report` of it, and `validation` of each workload (there may be none),
whose folder also has its arrival model. Outputs: `html`, a page, and `json`, the same as data.
"""

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
