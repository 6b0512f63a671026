"""The answer of `sextant recommend`: GPU profile, replicas, price and probability for one LLM.

In goes a `Question`; out comes a `Recommendation`, and its document. Read `recommendation` (the
types) and `recommend` (the whole answer: `measured` gives it from the LLM's own points, else it is
put together there from joint draws). A prediction rests on a `decision`, for which `weighing` gives
options from draws or from simulated arrivals, and `cost` says what the chosen one does and costs.
`options` has what is listed beside it, `ways` the other ways to serve. `document` words the answer,
`what_if` is the part of its page in which the question can be changed, `explain` says what a
latency is made of. `budget` asks the reverse: the largest rate that a budget serves.
"""
