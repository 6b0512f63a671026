"""Normalise a production trace.

Input: the trace as published. Outputs: the trace contract, the malformed rows, a report.
"""

from sextant.base.job_log import job_log
from sextant.trace import MAX_RATE_RPS, ingest_trace

with job_log(snakemake.log[0]) as log:
    row = snakemake.params.row
    report = ingest_trace(
        snakemake.input.source,
        row["format"],
        snakemake.output.trace,
        snakemake.output.rejected,
        snakemake.output.report,
        max_rejected_fraction=row.get("max_rejected_fraction", 0.01),
        start_time=row.get("start_time"),
        columns=row.get("columns"),
        time_unit=row.get("time_unit"),
        ignore_unknown=row.get("ignore_unknown") == "true",
        max_rate_rps=row.get("max_rate_rps", MAX_RATE_RPS),
    )
    log.info(
        "%s: %d rows, %d set aside, %d failed requests, %d sorted",
        row["trace_id"],
        report["n_read"],
        report["n_rejected"],
        report["n_failed"],
        report["n_moved"],
    )
