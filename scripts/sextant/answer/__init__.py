"""From a question to its answer: which GPU profiles, how many replicas, how sure, at what cost.

In go the options of a command as a `Question` and measured points; out comes an `Answer`: data for
a program, a document of blocks for a person. Read `question`, `answer` (with its words), `source`
(measurements, and how the question relates to them), `candidates` (GPU profiles and the LLM), then
`recommend`, which answers from points or from joint draws (`predicted`); `what_if` is the part of a
page in which the question is changed. `step_laws` is the law of a step for simulations and requests
at a rate, `explain` puts it in words, `demand` is what is simulated and has to hold, `sizing` the
replicas by simulation; `ways` are other ways to serve the LLM, `apart` pools of prefill and decode.

- `traffic` and `sessions`, then `capacity` and `capacity_document`: replicas under given traffic,
  and what would change them: `policies` (files), `scaling` (what they cost), `split` (two pools),
  `api_prices` (who sells tokens). `simulation`: latencies of one given deployment.
- `fleet`, `fleet_plan` (with `decide.fleet` and `decide.fleet_program`), `fleet_document`: which
  team gets which GPUs of a cluster; docs/planning.md has the equations.
- `run_plan` (what a run would do and cost), `value` (of a measurement), `measurements` (which cells
  to measure next); `doctor` checks the machine.
"""
