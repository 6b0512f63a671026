"""A question, and everything that follows from it: found once, before anything is decided.

In go the options of a command as a `Question`; out comes a `Case`. Read `question`, then `source`
(measurements), `serving` (the LLM as it is to be served), `candidates` (GPU profiles
and their prices), `caveats` (where the question lies outside of the measurements) and `case`, which
puts them together. What is known of the LLM's latencies comes next: `forecast` (a fitted predictor
and its draws) and `laws` (the law of a step, for simulations). `traffic` reads what arrives,
`probe` a file with measurements of the LLM, `api_prices` what an API asks for the same traffic.
"""
