"""How good predictors are, on LLMs, GPU types or engines that they never saw.

In go a task (the points of a characterization, and the pairs that may be recommended) and SLOs;
out come held-out predictions, their accuracy, recommendations and their scores. Read `task`, then
`folds` and `accuracy` (fit and predict with something held out), `known` and `figures` (how good
that is, by how well a deployment is known), `score` (how good recommendations are), `evaluate` (one
predictor on SLOs), `comparison` (several predictors) and `document` (their tables).
`configurations` judges points of different request lengths, `random_slos` draws SLOs, `files` is
the pipeline's reading and writing.
"""
