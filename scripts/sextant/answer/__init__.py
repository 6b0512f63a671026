"""From a question to its answer: which GPU profiles, how many replicas, how sure, at what cost.

In go the options of a command as a `Question` and measured points; out comes an answer as facts,
text or a page. Read `question` (what is asked), `source` (the measurements), `candidates` (the GPU
profiles and the LLM), `basis` (how the question relates to the measurements), `predicted` (joint
draws of the latencies), `options` (what follows from them), then `answer`, which puts them
together; `text` and `page` render it. `step_laws` is the law of a step for simulations.
"""
