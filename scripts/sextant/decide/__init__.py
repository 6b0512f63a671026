"""Decisions: which GPU profile and how many replicas, and how good such answers are.

In go latencies, measured or predicted, or joint draws of them, and an SLO; out come options, the
cheapest or worthiest one for each LLM, and scores. Read `sizing` (eq. 1-3 of LLM-Pilot),
`decision` (the same under uncertainty), `headroom` (the room to the limits) and `score` (eq. 5-7),
then `evaluate`, which judges a predictor on a task of `tasks`; `scores` does so for a command.
`fleet` has the terms of a cluster that several demands share,
`fleet_program` its mixed-integer program.
"""
