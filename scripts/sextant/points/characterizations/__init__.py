"""All points of one source, with the facts they refer to.

In goes a store, or a folder of data; out comes a `Characterization`: points, facts of LLMs and GPU
profiles, features, feasibility. Read `characterization` (from a store), `folder` (with
`description`, `points_file` and `feasibility`), `combined` (several as one), then `shipped` and
`listing` (which there are), `export` and `write` (a folder is made). `points` has the columns and
the latencies at a percentile, `features` and `execution` what is known of an LLM and a GPU profile
before anything is measured.
"""
