"""Measurements: a cell goes in, and its files come out (`sextant.points`).

Read `cell` first, which goes from feasibility to files; `tuning` searches the largest batch weight;
`measurement` says what a cell is, goes through its levels and keeps what is finished; `burst` runs
BurstGPT's case study.
"""
