"""The answer of `sextant recommend`: GPU profile, replicas, price and probability for one LLM.

In goes a `Question`; out comes a `Recommendation`, and its document. Read `recommendation` (the
types), `recommend` (which of two ways answers), `measured` (the LLM's own points) and `predicted`
(joint draws). A prediction uses `weighing` (options from draws, or from `rate`, which simulates
arrivals), `options` (what is listed), `cost`, `evidence`, `ways` (other ways to serve) and
`own_or_api`. `document` words the answer, `what_if` is the part of its page in which the question
can be changed, `explain` says what a latency is made of.
"""
