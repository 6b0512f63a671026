"""A trace in figures, and how faithful the workload fitted to it is: one page, and JSON.

In go a normalised trace and the workloads fitted to it; out come a page and JSON. Read in this
order: `characterize` puts the sections together; each has a module with `measure_…` (what JSON
has) and `show_…` (what the page says); `trace_file` reads the trace, `fitted_workloads` the
workloads. `use_cases` compares workloads without a trace.
"""

from sextant.trace_report.characterize import characterize_trace, write_trace_report
from sextant.trace_report.output_paths import json_beside
from sextant.trace_report.use_cases import compare_use_cases, write_use_case_report

__all__ = [
    "characterize_trace",
    "compare_use_cases",
    "json_beside",
    "write_trace_report",
    "write_use_case_report",
]
