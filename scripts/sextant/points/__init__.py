"""Measured points: what a measurement is, and how its points are kept, read and shared.

In go the cells that `bench` and `load` measure, and folders of data of others; out come frames of
points (`frame`) inside a `Characterization`: all points of one source, with the facts of its LLMs
and GPU profiles.

Read `verdict` and `run` first (whether and how a cell was measured), then `cell_files` (its files),
`metrics` and `trust` (formulas, intervals, doubts) and `summarize` (from cells to points). `store`
is the database of all results. `frame`, `features` and `characterization` are what answers rest on;
`measured` reads it from a store or from cells, `folder` from a folder of data,
which `export` writes, and `load_tools` makes of the results of other load tools.
"""
