"""A production trace in its publisher's format, or metrics, become the normalised trace.

In: a CSV, JSON or Parquet file. Out: the trace as Parquet, the malformed lines, and a report.
Read `trace_format` (the contract and the formats, of `formula`s) and `mapping` (a log of your own),
`job` (all steps) and `output` (the files it writes), `reading` (how a source is parsed: `documents`
of JSON, `csv_blocks`, and `sessions` for lines that are no requests), `cells` (columns computed and
typed; `date_times` and `date_forms`), `rules` (which lines are requests), `advice` (what to do
about the others), `report_lines` (the report in words) and `choice` (one LLM or service of a
trace).

Metrics of servers: `metric_samples` (texts become series), `metric_names` (what they say),
`model_metrics` (the sums of an LLM over time), `observed` (slots of time), `metrics_trace` (how
requests are drawn).
"""
