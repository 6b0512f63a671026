"""Latencies over the load of a replica, measured or predicted: what answers rest on."""

import numpy as np
import pandas as pd

from sextant.facts.slo import SLO
from sextant.points.frame import BOUNDS, LENGTHS, TARGETS, at_percentile, points_of_store
from sextant.report.recommendations import decision_points
from sextant.report.store_tables import MEASURED, Tables

_BOUNDS = [name for target in TARGETS for name in BOUNDS[target]]
_NUMBERS = [*TARGETS, *_BOUNDS, *LENGTHS, "request_rate_rps"]


def load_curves(tables: Tables, source: str, slo: SLO) -> pd.DataFrame:
    """Return what each LLM's answer rests on: `predictor, llm_id, gpu_profile_id, users`, the
    latencies at the SLO's percentiles with their bounds, lengths and `request_rate_rps`.

    Rows have `predictor` of `measured`, or are of a predictor and an LLM that was not measured.
    """
    points = [row for row in decision_points(tables) if row["source"] == source]
    measured = pd.DataFrame(points, columns=[*tables["point"][0]] if tables["point"] else None)
    parts = []
    if len(measured):
        measured = at_percentile(points_of_store(measured), slo.percentiles, slo.first_token)
        parts.append(measured[measured["users"].notna()].assign(predictor=MEASURED))
    known = {row["llm_id"] for row in points}
    rows = [
        row
        for row in tables["prediction"]
        if (row["source"], row["slo_id"]) == (source, slo.slo_id) and row["llm_id"] not in known
    ]
    if rows:
        # As the predictor was asked: the workload's lengths are medians over the points' means.
        lengths = slo.lengths or (measured[LENGTHS].median() if len(measured) else {})
        parts.append(pd.DataFrame(rows).assign(request_rate_rps=np.nan, **lengths))
    keys = ["predictor", "llm_id", "gpu_profile_id", "users"]
    if not parts:
        return pd.DataFrame(columns=[*keys, *_NUMBERS])
    frame = pd.concat([part.reindex(columns=[*keys, *_NUMBERS]) for part in parts])
    frame[_NUMBERS] = frame[_NUMBERS].astype(float)
    # As eq. 3 takes them: where nothing succeeded, no limit is met.
    frame[TARGETS] = frame[TARGETS].where(frame[TARGETS] > 0)
    return frame.astype({"users": int}).sort_values(keys, ignore_index=True)
