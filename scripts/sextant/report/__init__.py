"""The pipeline's pages: the report of a store, and the page of a trace.

In goes the store; out come a page, JSON and a folder of figures (`write_report`), and what a
terminal prints (`summary`). Read in this order: `store_tables` reads the rows, `answers` arranges
them, `overview` says them in one screen, `write` on a page, `figures` draws. `compare` sets two
reports or stores side by side.

The page of a trace: `trace_characterize` puts the sections together; each has a `measure_…` (what
the JSON has) and a `show_…` (what the page says), in `trace_traffic`, `trace_burstiness` and
`trace_lengths`; `trace_file` reads the trace and its workloads.
"""
