"""One kit for pages and figures, shared by all rooms that show results to a person.

In go frames, rows and numbers; out come HTML pages that refer to no other file, JSON, and SVG.
Read in this order: `wording` (numbers, durations and lists as text), `sections` (what a page is
made of), `write` (templates and files; every page extends `base.html.j2`, a page of sections is
`sections.html.j2`), `figure` (how every figure is set up), `charts` (curves, bars, matrices).
"""
