"""Workloads: what is asked of a server, and when.

In: a normalised trace, or requests without one (a use case, a published histogram, a text file).
Out: a workload's folder (docs/workloads.md), and requests, arrivals and prompts drawn by a seed.

Read `fit` first; then `request_model`, `published`, `prompts` and `shared_blocks` (which prompts of
a trace begin alike) for requests; `generators` and `trace_arrivals`, which draw arrivals, and
`arrivals`, with `gamma`, which measures and fits those of a trace. `profiles` shows a trace over
time, `draw` draws traces.
"""
