"""Measurements: a cell goes in, and its files come out (`sextant.points`).

Read `cell` first; `definition` is what a cell is, and keeps what is finished. `batch_weight`
searches the largest batch weight, `tuning` does so on servers. `measurement` goes through the
levels, `burst` (with `burst_loads`) runs BurstGPT's case study.
"""
