"""The load client: requests to an OpenAI-compatible server, and when each token came.

In come servers (`request.Target`), requests (`source`) and a scenario; out come rows of requests
and, of `sextant load`, a cell. Read `run` (levels on servers that run) and `levels` (a level of a
scenario becomes load, for the benchmark too); `closed_loop` and `open_loop` are the schedules,
`measure` runs one and records, `client` is a connection, `answer` reads tokens afterwards, `alarm`
and `lag` are the clock and the client's own delay, `results` writes.
"""
