"""Measurements: a cell goes in, and its files come out (`sextant.points`).

Read `cell` first, which goes from feasibility to files; `definition` is what a cell
is, and keeps what is finished.
`batch_weight` searches the largest batch weight, `tuning` does so on real servers. `measurement`
goes through the levels of a scenario and writes the files, `burst` (with `burst_loads`) runs
BurstGPT's case study.
"""
