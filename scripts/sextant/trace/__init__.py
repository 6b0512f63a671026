"""A production trace in its publisher's format, or metrics, become the normalised trace.

In: a CSV, JSON-lines or Parquet file. Out: the trace as Parquet, the malformed lines, and a report.
Read `trace_format` (the contract and the formats), `job` (all steps, and the files it writes),
`reading` (how a source is parsed, with `date_times`, and `sessions` for lines that are no
requests), `rules` (which lines are requests).

Metrics of servers: `metric_samples` (texts become series), `metric_names` (what they say),
`model_metrics` (the sums of an LLM over time), `observed` (slots of time), `metrics_trace` (how
requests are drawn).
"""
