"""A trace in figures, and how faithful the workloads fitted to it are: one page, and JSON.

In go a normalised trace and the workloads fitted to it. `characterize` puts the sections together;
each has a `measure_…` (what the JSON has) and a `show_…` (what the page says), in `traffic`,
`burstiness` and `lengths`; `trace_file` reads the trace and the workloads.
"""
