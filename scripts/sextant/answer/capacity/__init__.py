"""How many replicas serve a trace's own traffic within an SLO, by simulation; docs/capacity.md.

In go a demand (a trace, or requests that arrive at a rate), an LLM, GPU profiles with prices and a
target; out come the fewest replicas on each profile, cheapest first, and what would change them.

Read `demand` (what arrives), `target` (what has to hold, and how windows are judged), `search`,
`server` with `simulated` (replicas of a step law), `sizing` (replicas and their probability), then
`fleet`, `schedule` and `incidents` (replicas that come and go, fail, or meet more traffic).
`answer` puts it together, `answer_text` and `page` say it, `files` does so for the pipeline.
`latencies` (with `latencies_text`) asks less: what users of one deployment see.
"""
