"""Simulation of servers: what requests that arrive at certain times wait for, step by step.

In: a `workload.requests.RequestStream`, a `Scheduler` (the engine's settings) and a `StepLaw` (the
time of one engine step). Out: a `Simulation`, the outcome of each request and the use of the
replicas, and its summary.

Read `server` first (what is simulated) and `simulation`: its types and `simulate`. Then `world`
(the tables of a simulation), `routing`, `steps` and `tables`, which change them in compiled code.
`compiling` decides what runs: the module that `building` made when Sextant was installed, or Numba.
`pools` computes prompts and tokens on different replicas, `scaling` adds and removes replicas by a
policy. `cache_depths` says how large a prefix cache the hits of a trace need.
"""
