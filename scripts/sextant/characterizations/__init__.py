"""All points of one source, with the facts they refer to.

In goes a store, or a folder of `resources/characterizations`; out comes a `Characterization`:
points, facts of LLMs and GPU profiles, features, feasibility. Read `characterization` (from a
store) and `shipped` (from a folder, or written as one); `points` are latencies at a percentile,
`features` and `execution` what is known of an LLM and a GPU profile before anything is measured.
"""
