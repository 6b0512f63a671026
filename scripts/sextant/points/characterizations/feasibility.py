"""What came of each LLM on each GPU profile, as a published characterization tells it."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from sextant.points.cells.verdict import Outcome, Verdict

OUTCOMES = {
    "measured": Outcome.FEASIBLE,
    "too_small": Outcome.MEMORY_TOO_SMALL,
    "omitted": Outcome.OMITTED,
}
"""What came of a pair, by its `status` in a sheet."""


def feasibility_table(rows: Iterable[Mapping[str, Any]], source: str) -> pd.DataFrame:
    """Return rows of table `feasibility` for rows `llm_id, gpu_profile_id, status[, reason]`."""
    tried = pd.DataFrame(rows, columns=["llm_id", "gpu_profile_id", "status", "reason"])
    reasons = {name: Verdict(outcome, source=source).reason for name, outcome in OUTCOMES.items()}
    return tried.drop(columns="status").assign(
        is_feasible=tried["status"] == "measured",
        verdict=tried["status"].map(OUTCOMES),
        reason=tried["reason"].astype("str").fillna(tried["status"].map(reasons)),
        memory_utilization=float("nan"),
    )
