"""What to run: a configuration and its sheets become an `Experiment`, before anything runs.

In come `config.yaml` and the sheets that it names; out come cells, each with the definition that
its measurement depends on. Read `experiment` (the result, its cells, and what makes a measurement
stale), `sheets` (what the configuration and its sheets may hold), `loading` (how they
are read and checked), `scenarios` and `servers` (load, and what it is put on), and `downloads`.
"""
