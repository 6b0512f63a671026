"""The load client: requests to an OpenAI-compatible server, and when each token came.

In come servers (`engine.http.Target`), requests (`source`) and a scenario; out come rows and, of
`sextant load`, a cell. Read `run` (levels on running servers), then `schedules`, `measure` (one
level), `client` (one connection), `answer` (its tokens), `rows` (requests) and `results`.
"""
