"""Put all workloads side by side.

Input: each workload's request model. Outputs: a page and JSON.
"""

from pathlib import Path

from sextant.base.job_log import job_log
from sextant.report.trace.use_cases import write_use_case_report

with job_log(snakemake.log[0]):
    write_use_case_report(
        [Path(requests).parent for requests in snakemake.input.workloads],
        snakemake.output.html,
        snakemake.output.json,
    )
