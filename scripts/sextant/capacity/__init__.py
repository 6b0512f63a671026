"""The answers of `sextant capacity` and `sextant simulate`: replicas under given traffic.

In goes a `CapacityQuestion`: a question with the traffic to simulate; out comes a `CapacityAnswer`.
Read `question`, `answer` (the types), `capacity` (which sizes each GPU profile), then what would
change the answer: `changes` (a failed replica, more traffic, two pools), `schedule`, `scaling`
(policies that add and remove replicas; `policies` reads and writes their files). `sessions` draws
sessions of a trace. `document` and `timeline` word and draw the answer, `files` writes the files of
rule `size_capacity`. `simulation` has the latencies of one given deployment, `simulation_document`
their words.
"""
