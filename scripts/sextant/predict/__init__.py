"""Predictors: latencies of an LLM that was never measured on a GPU profile.

In go the points of a characterization and the facts of LLMs and GPU profiles; out come latencies,
or joint draws of them. Read `predictor`: the protocol, what follows from draws, and the table of
predictors. `features` and `tuning` are shared by the baselines. Then one file per baseline:
`llm_pilot`; `rf` and `paris` (over `forest`); `selecta`; `perfnet`, `perfnetv2` and `morphling`
(over `network`). The predictor `roofline` is the room `law`.
"""
