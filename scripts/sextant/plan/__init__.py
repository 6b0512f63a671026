"""What a run would do, which cells to measure first, and what the machine lacks.

In go a `Workspace` (an experiment, its configuration, its folder), and for a measurement plan a
budget; out come a `PlanAnswer` (jobs, hours, cost), a `MeasurementPlan` (cells in rounds) or a list
of `Check`. Read `workspace`, `dry_run` (what Snakemake would run), `estimate` (how long a cell
takes), `run_plan`; then `value` (of a measurement), `cell_order`, `rates` (replicas for a request
rate), `measurements`, `rounds` (of `sextant measure`); `doctor` stands alone, `document` has the
words of all.
"""
