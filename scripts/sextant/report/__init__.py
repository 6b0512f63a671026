"""The report of a store: the answer to each SLO and how much to trust it.

In goes the store; out come a page, JSON, a folder of figures (`write_report`) and text for a
terminal (`summary_text`). Read in this order: `store_tables` reads the rows; `recommendations`,
`slo_answers`, `score_means` and `feasibility` arrange them; `all_figures` draws (with
`latency_figures` and `score_figures`); `write` and `terminal` put it together.
"""
