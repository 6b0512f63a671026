"""How many replicas serve given traffic within an SLO, by simulation; docs/planning.md.

In: traffic (a trace, or requests that arrive at a rate), an LLM, GPU profiles with prices and a
target. Out: the fewest replicas on each profile, cheapest first, and what would change them.

Read `traffic` (a trace, or arrivals at a rate), `changes` (a failed replica, more traffic, a
schedule), `answer`, then `document` (blocks for text and page). `files` is for the rule;
`simulation` is the answer of `sextant simulate` for one given deployment. `demand` and `sizing` are
those of `recommend` too, a folder up.
"""
