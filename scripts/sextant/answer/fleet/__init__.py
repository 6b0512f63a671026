"""Which team gets which GPUs of a cluster; docs/planning.md has the equations.

In go demands (an LLM, limits, traffic, a priority), pools of nodes, and options: the load that a
replica serves on each GPU profile in each joint draw. Out come profile and replicas for each
demand, the nodes they lie on, the cost, and what a further node would be worth.

Read `problem` (what is asked), `plan` (what is found), `program` (the mixed-integer program),
`packing` (replicas to nodes) and `planning`, which solves; then `answer` with `baselines` (what
would change it), `sheets` and `predicted` (where demands come from), `asked`, which
puts all together, `answer_text` and `page`; `deployments` is for schedulers, `files` for the rule.
"""
