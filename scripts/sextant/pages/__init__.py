"""One model of an answer, with three renderers: text, a page, JSON.

Read in this order: `wording` (numbers, durations and lists as text), `blocks` (documents and their
text), `page` (HTML that refers to no other file, and its files), `charts` (figures: curves, bars,
matrices).
"""
