"""Measured points: what a measurement is, and how its points are kept, read and shared.

In go the cells that `bench` and `load` measure, and folders of data of others; out come frames of
points (`frame`) inside a `Characterization`: all points of one source, with the facts of its LLMs
and GPU profiles.

Read `verdict` and `run` first (whether and how a cell was measured), then `cell_files` (its files),
`metrics` (formulas, intervals, doubts) and `summarize` (from cells to points). `store` is the
database of all results. Answers rest on `frame` and `characterization`. `measured` reads a store or
cells, `folder` a folder of data (`folder_sheets` has the types of its rows), and `export` writes
such folders (`load_tools` from the results of other load tools: `tool_run` is their type).
"""
