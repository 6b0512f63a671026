"""Workloads: what is asked of a server, and when.

In: a normalised trace, or requests without one (a use case, a published histogram, a text file).
Out: a workload's folder, with `requests.parquet` (a joint histogram of request parameters),
`arrivals.json` (models of when they come, one of them chosen), `arrivals.parquet` (the trace's own
times) and `validation.json` (how faithful all are); and requests, arrivals and prompts drawn from
it, by a seed.

To read, in order:

- requests: `request_model` (with `sampling`), `published` (read from files), `lengths` (Zipf's
  law), `length_modes`, `use_cases`, `conversations`; `prompts`.
- arrivals: `gamma` (exact gaps); `steps`, `step_distance` (gaps of a coarse clock); `arrivals` of a
  whole trace, `windows` of a part; `generators`, `modulated` and `trace_arrivals` draw.
- bursts: `arrival_measures`; `arrival_fits`, of which `arrival_choice` takes the simplest that will
  do; `fitted_arrivals` keeps it in the workload's folder.
- workloads: `fit` (from a trace), `without_trace`; `fidelity` judges them.
- a trace over time: `profiles`, and `trace_stream` where it is too long for the memory.
- traces drawn from workloads: `draw`, `export`.
"""
