"""Studies of the papers: one analysis each of the cells that were measured for it.

In go the folders of a study's cells; out come a page, its figures, and its numbers as JSON. Read in
this order: `write` (the studies, the paper that asked, and the page), `study` (what an
analysis gets and gives, and what all share), then one module per study: `characterize`, `pods`,
`sensitivity`, `pareto`, `replicas`, `workload_choice` and `burst` (with
`burst_phases`). `compare_runs` sets two load runs side by side.
"""
