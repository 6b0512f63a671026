"""Studies of the papers: one analysis each of the cells that were measured for it.

The folders of a study's cells become a page, its figures, and its numbers as JSON. Read `study`
(what an analysis gets and gives, what all share, and the page), then the studies, a module each.
"""
