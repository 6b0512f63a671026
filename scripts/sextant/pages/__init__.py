"""One model of an answer, with three renderers: text, a page, JSON.

In goes a `Document` of blocks (headline, facts, table, chart, note) with its data; out comes text
for a terminal, an HTML page that refers to no other file, or JSON.

Read `words` first (numbers and durations in words), then `blocks` (documents and their text),
`page` (HTML and the files beside it) and `charts` (figures: curves, bars, matrices).
"""
