"""Studies of the papers: each module analyses the cells measured for the question of one paper.

In: the folders of a study's cells. Out: a page, its figures, and its numbers as JSON. Read `study`
(what an analysis gets and returns, what all share, and the page), then a module for each study.
"""
