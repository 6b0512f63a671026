"""How many replicas serve given traffic within an SLO, by simulation; docs/planning.md.

In: traffic (a trace, or requests that arrive at a rate), an LLM, GPU profiles with prices and a
target. Out: the fewest replicas on each profile, cheapest first, and what would change them.

Read `demand` (requests, and what has to hold in every window), `traffic` (a trace, or arrivals at a
rate), `sizing` (replicas by simulation, and their probability), `changes` (a failed replica, more
traffic, a schedule), `answer`, then `document` (blocks for text and page). `files` is for the rule;
`simulation` is the answer of `sextant simulate` for one given deployment.
"""
