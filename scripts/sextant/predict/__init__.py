"""Predictors: latencies of an LLM that was never measured on a GPU profile.

In go the points of a characterization and the facts of LLMs and GPU profiles; out come latencies,
or joint draws of them, for every held-out and every new LLM. Read `protocols` (what a predictor
is) and `registry` (which there are), then `folds`, which fits them; `references`, `features`,
`tuning`, `latencies` and `draws` are what they share; `own_points` puts draws through what was
measured of the LLM itself. Then one file a predictor: `llm_pilot`,
`rf` and `paris` (over `forest`), `selecta`, `perfnet`, `perfnetv2` and `morphling` (over
`network`), and the package `roofline`. `importance` says which columns a forest owes its
predictions to.
"""
