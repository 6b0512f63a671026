"""A trace in figures, and how faithful the workload fitted to it is: one page, and JSON.

In go a normalised trace and the workloads fitted to it; out come a page and JSON. Read in this
order: `characterize` puts the sections together; each has a module with `measure_…` (what JSON
has) and `show_…` (what the page says); `trace_file` reads the trace, `fitted_workloads` the
workloads. `use_cases` compares workloads without a trace.
"""
