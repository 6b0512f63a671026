"""Studies of the papers: one analysis each of the cells that were measured for it.

The folders of a study's cells become a page, its figures, and its numbers as JSON. Read `write`
(the page), then `study` (what an analysis gets and gives, and what all share), then the studies, a
module each.
"""
