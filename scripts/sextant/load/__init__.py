"""The load client: requests to an OpenAI-compatible server, and when each token came.

In come servers (`engine.http.Target`), requests (`source`) and a scenario; out come rows
of requests and, of `sextant load`, a cell. Read `run` (levels on running servers), then `schedules`
(closed and open loop), `measure` (runs one level and records), `client` (one connection), `answer`
(tokens of an answer), `rows` (requests that ended) and `results`.
"""
