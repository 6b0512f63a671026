"""Workloads: what is asked of a server, and when.

In: a normalised trace, or requests without one (a use case, a published histogram, a text file).
Out: a workload's folder, with `requests.parquet` (a joint histogram of request parameters),
`arrivals.json` (models of when they come, one of them chosen), `arrivals.parquet` (the trace's own
times) and `validation.json` (how faithful all are); and requests, arrivals and prompts drawn from
it, by a seed.

To read, in order:

- workloads: `fit`, of a trace or without one, and how faithful they are.
- requests: `request_model`, fitted to a trace, or read and built by `published`; `prompts`;
  `shared_blocks`, which prompts of a trace begin alike.
- arrivals: `generators` and `trace_arrivals` draw them; `arrivals`, with `gamma`, measures a
  trace's, fits them and takes the simplest model that will do.
- a trace over time: `profiles`. Traces drawn from workloads: `draw`.
"""
