"""Decisions: which GPU profile and how many replicas.

In go an SLO and latencies, measured or predicted, or joint draws of them, or simulated replicas;
out come options and the cheapest or worthiest one for each LLM. Read `sizing` (eq. 1-3 of
LLM-Pilot), `decision` (the same under uncertainty), `measured_rates` (what requests that came at
measured rates say) and `headroom` (the room to the limits). Of requests that arrive: `windows`
(results by window against a target), `latency_surface` (what a replica bears of a steady rate, by
draw) and `replica_sizing` (the replicas that GPU profiles need).
`budget` finds the largest load that replicas bear. `fleet` has the terms of a cluster that several
demands share, `fleet_program` its mixed-integer program.
"""
