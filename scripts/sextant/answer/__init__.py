"""From a question to its answer: which GPU profiles, how many replicas, how sure, at what cost.

In go the options of a command as a `Question` and measured points; out comes an `Answer`: data for
a program, a document of blocks for a person. Read `question`, `answer`, `source` (the
measurements), `candidates` (the GPU profiles and the LLM), `basis` (how the question relates to
the measurements), then `recommend`, which answers from points or from joint draws (`predicted`,
`options`); `text` has the words, `what_if` the part of a page in which the question is changed.
`step_laws` is the law of a step for simulations, `demand` what is simulated and has to hold,
`sizing` the replicas by simulation, and `rates` those of a request rate. `capacity/`, `fleet/` and
`plan/` answer for a trace, for a cluster, and about what to measure.
"""
