"""What a measured cell is: a folder of five files, written and read here alone.

In goes what the benchmark, a load of a running server or an import has measured; out come the files
`run.json`, `tuning.json` and the tables `requests`, `server` and `telemetry` (Parquet), and back.

Read `verdict` first: what became of a cell, as a value. `run` is the content of `run.json`,
`tuning` that of `tuning.json` (with `memory`: does it fit, by facts), `tables` has the columns.
`files` writes and reads them, `integrity` tells whether they are still what was written, and
`metrics` has the formula of each metric over the table of requests.
"""
