"""What a run would do and cost, and which cells to measure next; docs/planning.md.

Read `run` (jobs, requests to a scheduler, hours, cost) with `estimate` (the time of a cell, from
finished cells); then `value` (the value of information of a measurement) and `measurements` (the
measurement plan, and the rounds of `sextant measure`). `doctor` checks the machine.
"""
