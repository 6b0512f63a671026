"""Measurements: a cell goes in, and its files come out (`sextant.points.cell_files`).

Read `cell` first, which goes from feasibility to files; `definition` is what a cell is, `job` what
the workflow calls. `batch_weight` searches the largest batch weight, `tuning` does so on real
servers with the batches of `corner_cases`. `measurement` goes through the levels of a scenario,
`stopping` ends a sweep that can tell nothing more, and `burst` (with `burst_rate` and
`burst_loads`) runs BurstGPT's case study. `checkpoint` keeps what is finished, `host` describes the
machine, and `results` writes the files.
"""
