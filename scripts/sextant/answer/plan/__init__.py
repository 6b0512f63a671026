"""What a run would do: jobs, requests to a scheduler, hours and cost.

In: an experiment and the jobs of a dry run. Out: a `Plan` as text or JSON. Read `jobs` first, which
asks Snakemake for the jobs. `estimate` has the formula of a cell's time, `history` the measured
times that it uses and its error, `summary` adds all up, `text` prints it.

Which cells to measure next: `stakes` (what decisions are worth, and would be told more), `choice`
(the order), `next_cells` (from measured points and files to it), `order_text`; `rounds` is what
`sextant measure` repeats.
"""
