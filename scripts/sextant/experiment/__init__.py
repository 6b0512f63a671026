"""What to run: a configuration and its sheets become an `Experiment`, before anything runs.

In come `config.yaml` and the sheets that it names; out come cells, each with the definition that
its measurement depends on. Read `experiment` (the result, and what makes a measurement stale),
`sheets` (what they may hold), `loading`, `scenarios` and `servers` (load, and what it is put on).
"""
