"""Predictors: latencies of an LLM that was never measured on a GPU profile.

In go the points of a characterization and the facts of LLMs and GPU profiles; out come latencies,
or joint draws of them, for every held-out and every new LLM. Read `registry` (what a predictor
is, and which there are), then `folds`, which fits them; `features`, `tuning` and `latencies` (with
the calibration by measurements of the LLM itself) are what they share, `accuracy` judges. Then one
file per predictor: `llm_pilot`, `rf` and `paris` (over `forest`), `selecta`, `perfnet`,
`perfnetv2`, `morphling` (over `network`), and `roofline/`.
"""
