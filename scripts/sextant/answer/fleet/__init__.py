"""Which team gets which GPUs of a cluster; docs/planning.md has the equations.

In: demands (an LLM, limits, traffic, a priority), pools of nodes, and options: the load that one
replica serves on each GPU profile, in joint draws. Out: GPU profile and replicas of each demand,
their nodes, the cost, and what a further node or a looser limit is worth.

Read `decide.fleet` (the terms), `options` (from sheets to options, and the answer),
`decide.fleet_program` (the mixed-integer program; replicas to nodes), `planning` (the plan, and
what would change it), then `document` (blocks for text and page, and the rule's files).
`deployments` writes a plan for Kubernetes.
"""
