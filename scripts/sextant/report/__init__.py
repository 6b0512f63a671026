"""The report of a store: the answer to each SLO and how much to trust it.

In goes the store; out come a page, JSON and a folder of figures (`write_report`), and what a
terminal prints (`summary`). Read in this order: `store_tables` reads the rows, `answers` and
`scores` arrange them, `write` and `terminal` say them in blocks, `figures` draws. `compare` sets
two reports or stores side by side.
"""
