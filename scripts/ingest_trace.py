"""Normalise a production trace, with its malformed rows and a report."""

from sextant.base.job_log import job_log
from sextant.trace.job import MAX_RATE_RPS, IngestSettings, ingest_trace

with job_log(snakemake.log[0]) as log:
    row = snakemake.params.row
    files = [snakemake.output[name] for name in ("trace", "rejected", "report")]
    settings = IngestSettings(
        max_rejected_fraction=row.get("max_rejected_fraction", 0.01),
        start_time=row.get("start_time"),
        columns=row.get("columns"),
        time_unit=row.get("time_unit"),
        where=row.get("where"),
        status_words=row.get("status_words"),
        ignore_unknown=row.get("ignore_unknown") == "true",
        max_rate_rps=row.get("max_rate_rps", MAX_RATE_RPS),
    )
    report = ingest_trace(snakemake.input.source, row["format"], *files, settings)
    counts = [report[name] for name in ("n_read", "n_rejected", "n_failed", "n_moved")]
    said = "%s: %d rows, %d set aside, %d failed requests, %d sorted"
    log.info(said, row["trace_id"], *counts)
