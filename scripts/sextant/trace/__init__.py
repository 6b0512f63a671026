"""A production trace in its publisher's format becomes the normalised trace.

In: a CSV, JSON-lines or Parquet file. Out: the trace as Parquet, the malformed lines, and a report.
Read `trace_format` (the contract and the formats), `job` (all steps, and the files it writes),
`reading` (how a source is parsed, with `date_times`, and `sessions` for lines that are no
requests), `rules` (which lines are requests).
"""
