"""Simulation of servers, step by step: what requests that arrive at these times would wait.

In go requests (when they arrive, their tokens, what prefix they share), the settings of vLLM's
scheduler, and a law of how long one engine step takes; out come each request's latencies and
outcome, the gaps between tokens as a histogram, and how busy and how full the servers were.

To read, in order: `inputs` (requests, the scheduler's settings, the time of a step, and the tables
of a simulation), `run` (requests in, `Simulation` and its summary out, on one or several replicas
behind a router). Compiled are `steps`, which plan a replica's steps, and `tables`, which keep its
requests and its KV cache, each in O(1) a step; no other module than `tables` imports Numba.

Step laws come from the predictor's fit (`fitted`), for what was never measured, or from what was
measured on a server (`calibrated`). `closed_form` has mean latencies at a steady load without
simulation, and scales laws until they give the latencies that are known.
"""
