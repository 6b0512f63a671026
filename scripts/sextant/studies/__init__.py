"""Studies of the papers: one analysis each of the cells that were measured for it.

In go the folders of a study's cells; out come a page, its figures, and its numbers as JSON. Read in
this order: `registry` (the studies, and the paper that asked), `study_data` (what an analysis gets
and gives), one study, e.g. `pods` (what it computes) or `replicas` with `replicas_sections` (what
its page shows), then `write`. `labels`, `findings`, `point_measures` and `uncertainty` are shared.
"""
