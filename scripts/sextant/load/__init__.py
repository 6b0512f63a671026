"""The load client: requests to an OpenAI-compatible server, and when each token came.

In come servers (`engine.http.ServerAddress`), requests (`source`) and a scenario; out come rows
and, with `sextant load`, the files of a cell. Read `run` (levels on running servers), then
`schedules`, `measure` (one level), `client` (one connection), `events` and `answer` (its tokens and
their times), `rows` (requests), `quantiles` and `results`.
"""
