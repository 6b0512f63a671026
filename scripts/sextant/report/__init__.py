"""The pipeline's pages: the report of a store, the page of a trace, `sextant compare`.

A store becomes a page, JSON and a folder of figures: `stored` reads its rows, `answers` has them in
words, also for a terminal; `cards` (an LLM under an SLO) and `trust` (how predictors did) are parts
of the page that `write` puts together. `compare` sets two load runs, or the recommendations of two
stores, side by side. A trace becomes a page (`trace_characterize`) of sections, one file each
(`trace_overview`, `trace_traffic` …), with a `measure_…` (what the JSON has) and a `show_…` (what
the page says); `trace_file` reads the trace.
"""
