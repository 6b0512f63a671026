"""The law of a step, and the predictor `roofline` that fits it to points.

In go the points of a characterization and the facts of LLMs and GPU profiles; out come joint draws
of latencies, step laws for the simulator, joules of an output token, and mean latencies of a steady
load. Read `posterior` (the parts of a law), `terms` (its equations), `effects` (what moves their
parameters) and `fact_rows` (what they take), then `fit`, `roofline`, `scaled_steps` (its
step laws), `fit_arrays` and `fits` (those that are not made again). `means` is the closed form of a
load test and its inverse. `calibration` has the measurements of the LLM itself, `measured_server`,
`measured_steps` and `probed_server` step laws of a server that was measured, `energy` the joules.
"""
