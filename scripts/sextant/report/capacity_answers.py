"""What the report says of SLOs whose replicas were simulated: a line an LLM, and a page each."""

import math
from collections.abc import Sequence

from sextant.answer.capacity.answer_text import profile_cells
from sextant.base.ids import file_name
from sextant.base.rows import Row, group_by
from sextant.decide.headroom import HOURS_PER_MONTH
from sextant.pages.wording import aligned, number, plural
from sextant.report.slo_answers import slo_words
from sextant.report.store_tables import Tables


def capacity_answers(tables: Tables) -> list[Row]:
    """Return `heading, words` (limits and load), `page` and `rows` of each SLO that was simulated.

    `page` is relative to the report's folder. A row has the LLM, then what is chosen, its price
    and probability, why, what a month costs, and what a replica's failure in the busiest minute
    does; or the profile that comes nearest and why it misses.
    """
    slos = {row["slo_id"]: row for row in (*tables["slo"], *tables["trace_slo"])}
    found = []
    for (source, slo_id), rows in group_by(tables["capacity"], "source", "slo_id").items():
        found.append(
            {
                "heading": slo_id,
                "words": slo_words(slos[slo_id]),
                "page": f"../capacity/{file_name(source)}/{file_name(slo_id)}/index.html",
                "rows": [
                    [llm_id, *_cells(of_llm)]
                    for (llm_id,), of_llm in group_by(rows, "llm_id").items()
                ],
            }
        )
    return found


def _cells(rows: Sequence[Row]) -> list[str]:
    if rows[0]["gpu_profile_id"] is None:
        return ["no answer", "", "", rows[0]["reason"], "", ""]
    nearest = min(rows, key=lambda row: (not row["is_chosen"], row["alone_ratio"] or math.inf))
    name, price, probability, why = profile_cells(nearest)
    if not nearest["is_chosen"]:
        return [name, price, probability, why, "", ""]
    month = f"{number(HOURS_PER_MONTH * nearest['usd_per_hour'])} USD"
    missed = plural(nearest["n_windows_missed_by_failure"], "window")
    return [name, price, probability, why, month, f"{missed} of {nearest['n_windows']} missed"]


def capacity_blocks(tables: Tables) -> list[str]:
    """Return the same as text, a block an SLO."""
    return [
        "\n".join(
            [f"{each['heading']}: {each['words']}, simulated"]
            + [f"  {line}" for line in aligned([row[:5] for row in each["rows"]])]
        )
        for each in capacity_answers(tables)
    ]
