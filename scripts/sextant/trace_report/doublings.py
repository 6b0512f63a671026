"""How often traffic doubles within minutes."""

from collections.abc import Mapping, Sequence
from typing import Any

from sextant.base.rows import jsonable
from sextant.pages.sections import Table
from sextant.pages.wording import MINUTE_S, number
from sextant.trace_report.trace_file import SHORTEST_BUCKET_S, TraceFile, rows_of
from sextant.workload.windows import count_doublings, summarize_doublings

DOUBLING_MINUTES = (SHORTEST_BUCKET_S // MINUTE_S, 10)
"""BurstGPT, III-B: how often the number of requests doubles within 5 and 10 minutes."""
BUSY_REQUESTS = 10
"""Of fewer requests in a window, chance alone doubles many: of Poisson counts with mean 3, 23%
of windows double; with mean 10, 0.1% of those that have 10 or more."""


def measure_doublings(
    trace: TraceFile, groups: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return how often requests double within 5 and 10 minutes (BurstGPT, III-B): a row a duration
    and group, with `name`, `minutes`, the columns of `summarize_doublings`, and
    `n_busy_doublings`, those from `BUSY_REQUESTS` requests or more.
    """
    found = []
    for minutes in DOUBLING_MINUTES:
        totals = summarize_doublings(count_doublings(trace.path, minutes))
        busy = summarize_doublings(count_doublings(trace.path, minutes, min_count=BUSY_REQUESTS))
        for group in groups:
            own = rows_of(totals, group).drop(columns=["llm", "service"]).iloc[0].to_dict()
            known = jsonable(own)
            known["n_busy_doublings"] = float(rows_of(busy, group)["n_doublings"].iloc[0])
            found.append({"name": group["name"], "minutes": minutes, **known})
    return found


def doubling_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the table of what `measure_doublings` found."""
    header = ("Requests double, LLM · service", "Within", "Times",
              f"Of them from {BUSY_REQUESTS} or more", "Per day", "Per workday",
              "Rises from none")  # fmt: skip
    counts = ("n_doublings", "n_busy_doublings", "per_day", "per_workday", "n_from_zero")
    return Table(
        header,
        [
            (row["name"], f"{row['minutes']} minutes", *(number(row[name]) for name in counts))
            for row in rows
        ],
    )
