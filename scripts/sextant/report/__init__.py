"""The report of a store: the answer to each SLO and how much to trust it.

In goes the store; out come a page, JSON and a folder of figures (`write_report`), and what a
terminal prints (`summary`). Read in this order: `store_tables` reads the rows, `answers` arranges
them, `overview` says them in one screen, `write` on a page, `figures` draws. `compare` sets two
reports or stores side by side.
"""
