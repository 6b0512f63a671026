"""The report of a store: the answer to each SLO and how much to trust it.

In goes the store; out come a page, JSON, a folder of figures (`write_report`) and text for a
terminal (`summary_text`). Read in this order: `store_tables` reads the rows; `recommendations`,
`slo_answers`, `score_means` and `feasibility` arrange them; `all_figures` draws (with
`latency_figures`, `score_figures` and `profile_looks`); `write` and `terminal` put it together.
"""

from sextant.report.terminal import summary_text
from sextant.report.write import write_report

__all__ = ["summary_text", "write_report"]
