"""The pipeline's pages: the report of a store, the page of a trace, `sextant compare`.

A store becomes a page, JSON and a folder of figures (`write`); `answers` reads and arranges its
rows, also for a terminal, `figures` draws. `compare` sets two load runs, or the recommendations of
two stores, side by side. A trace becomes a page (`trace_characterize`): each section has a
`measure_…` (what the JSON has) and a `show_…` (what the page says), in `trace_traffic`,
`trace_burstiness` and `trace_lengths`; `trace_file` reads the trace.
"""
