"""A production trace in its publisher's format becomes the normalised trace.

In: a CSV, JSON-lines or Parquet file. Out: the trace as Parquet, the malformed lines, and a report.
Read `trace_format` (the contract and the formats), `job` (all steps), `reading`, `cells` (how lines
are parsed), `rules` (which lines are requests), `write` (the files, and rows put in order).
"""

from sextant.trace.job import MAX_RATE_RPS, ingest_trace
from sextant.trace.reading import some_of

__all__ = ["MAX_RATE_RPS", "ingest_trace", "some_of"]
