"""How many replicas serve given traffic within an SLO, by simulation; docs/planning.md.

In: traffic (a trace, or requests that arrive at a rate), an LLM, GPU profiles with prices and a
target. Out: the fewest replicas on each profile, cheapest first, and what would change them.

Read `demand` (what arrives), `target` (what has to hold in every window), `servers` (replicas,
simulated), `sizing` (the fewest replicas and their probability), `changes` (a failed replica, more
traffic, replicas by the hour), `answer`. `latencies` simulates one given deployment instead.
"""
