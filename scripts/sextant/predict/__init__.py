"""Predictors: latencies of an LLM that was never measured on a GPU profile.

In go the points of a characterization and the facts of LLMs and GPU profiles; out come latencies,
or joint draws of them, for every held-out and every new LLM. Read `protocols` (what a predictor
is) and `registry` (which there are), then `folds`, which fits them; `references`, `features`,
`tuning` and `latencies` are what they share; `calibration` corrects draws by measurements of the
LLM itself, `accuracy` judges. Then one file per predictor: `llm_pilot`, `rf` and `paris` (over
`forest`), `selecta`, `perfnet`, `perfnetv2` and `morphling` (over `network`), and `roofline/`.
"""
