"""Studies of the papers: one analysis each of the cells that were measured for it.

In go the folders of a study's cells; out come a page, its figures, and its numbers as JSON. Read in
this order: `write` (the studies, the paper that asked, and the page), `study_data` (what an
analysis gets and gives), then one study, e.g. `pods`, or `pareto` with `pareto_sections` (what its
page shows). `labels`, `point_measures` and `uncertainty` are shared.
"""
