"""One model of what a person is told, with three renderers: text, a page, JSON.

Read in this order: `wording` (numbers, durations and lists as text), `blocks` (documents and their
text), `page` (HTML that refers to no other file, and the files beside it), `figure` (how every
figure is set up), `charts` (curves, bars, matrices).
"""
