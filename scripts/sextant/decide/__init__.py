"""Decisions: which GPU profile and how many replicas, and how good such answers are.

In go latencies, measured or predicted, or joint draws of them, and an SLO; out come options, the
cheapest or worthiest one for each LLM, and scores. Read `recommend` (eq. 1-3 of LLM-Pilot),
`decision` (the same under uncertainty), `score` (eq. 5-7) and `static_policy` (one answer for
all), then `evaluate`, which judges a predictor on a task that `pairs` makes; `evaluation_files`
reads and writes it for the workflow, `names` lists what may be evaluated.
"""
