"""Which demand gets which devices of a cluster, at the lowest cost.

In go two sheets, demands and supply, and measurements; out comes a `FleetAnswer`: who runs on which
nodes, what it costs, how sure it is, and what would change it. Read `answer` (the types), `sheets`
(the rows), `fleet` (options of each demand, the whole), `plan` (the program solved, and solved
again with changes; the program itself is `decide.fleet_program`), `document` (its words and files).
"""
