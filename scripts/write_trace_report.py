"""Characterize a trace, and the workload fitted to it if the rule names one.

Inputs: `trace`, ingest's `report` of it, and optionally `requests` of the workload, whose folder
also has its arrival model. Outputs: `html`, a page, and `json`, the same as data.
"""

from pathlib import Path

from sextant.logs import job_log
from sextant.trace_report import write_trace_report

with job_log(snakemake.log[0]):
    requests = snakemake.input.get("requests")
    write_trace_report(
        Path(snakemake.input.trace),
        Path(requests).parent if requests else None,
        Path(snakemake.output.html),
        Path(snakemake.output.json),
        seed=snakemake.params.seed,
        ingest_report=Path(snakemake.input.report),
    )
