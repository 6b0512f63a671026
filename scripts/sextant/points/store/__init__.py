"""From measured cells to one DuckDB database, and back to rows.

`points` summarises cells to the tables `point`, `feasibility` and `telemetry` (with the SQL of
`energy`); `build` makes the database of these and of all other stages' tables; `connection` opens
it. `doubts` says what makes a point doubtful, and `labels` how a page calls its columns.
"""
