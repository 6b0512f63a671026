"""What to run: a configuration and its sheets become an `Experiment`, before anything runs.

In: `config.yaml` and the sheets that it names. Out: cells, each with the definition that its
measurement depends on. Read `experiment` (the result, and what makes a measurement stale), `sheets`
(what rows may hold), `loading` (how they are read and checked), then `scenarios` (load), `servers`
(how a cell's servers are set up) and `downloads`.
"""
