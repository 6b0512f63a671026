"""Workloads: what is asked of a server, and when.

In: a normalised trace, or requests without one (a use case, a published histogram, a text file).
Out: a workload's folder (docs/workloads.md), and requests, arrivals and prompts drawn by a seed.
Read `fit` first. For requests read `request_model`, `published`, `lengths`, `length_options` (as
options say them), `prompts` and `shared_blocks` (inputs that begin alike); for arrivals
`generators` and `trace_arrivals`, which draw them, and `arrivals` and `gamma`, which measure and
fit those of a trace. `requests` is the stream of requests that every simulation takes, `profiles`
shows a trace over time, and `draw` draws traces.
"""
