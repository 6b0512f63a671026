"""The answer of `sextant rightsize`: what runs, observed beside predicted, and what would do.

In go a trace, what was observed of the servers that answered it, what is deployed, and the limits;
out comes a `Rightsizing`, and its document. Read `question` (what is asked), `answer` (the types),
`observations` (loads at which the deployment was observed, also as a probe), `rightsize` (the whole
answer: the traffic is sized twice, by the law as it is and calibrated by the observations),
`doubts` (what does not fit together), `document` (words).
"""
