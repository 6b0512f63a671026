"""What the report says, as rows: the store's tables arranged into answers and warnings."""

from collections.abc import Sequence

import numpy as np

from sextant.base.rows import Row, group_by
from sextant.decide.headroom import beside
from sextant.experiment.scenarios import KINDS
from sextant.facts.slo import PERCENTILE_PREFIX, SLO, worst_limit
from sextant.points.trust import ratio
from sextant.report.store_tables import MEASURED, Tables

_ANSWER = ("gpu_profile_id", "replicas", "users_per_replica", "usd_per_hour")

LEVEL_NAMES = {kind: scenario.level_words for kind, scenario in KINDS.items()}
"""What a level is, by the kind of scenario."""


_LENGTHS = ("mean_input_tokens", "mean_output_tokens")
TARGET_NAMES = {"nttft": "nTTFT", "itl": "ITL"}
"""The latencies that predictors predict."""


def recommendations(tables: Tables) -> list[Row]:
    """Return the answers: from points where an LLM was measured, else from each predictor.

    Columns: `source, slo_id, llm_id, predictor, basis` (`measured` or `predicted`),
    `gpu_profile_id` (None: no profile meets the SLO), `replicas, users_per_replica, usd_per_hour,
    probability_met` (None: not known), `alternatives` (others that meet it, cheapest first; see
    `outlook.beside`), `nearest_miss` (where none does; None if
    no latency tells), `does_not_fit` and `not_measured` (profiles without latencies, by the
    reason).
    """
    key = ("source", "slo_id", "predictor", "llm_id")
    candidates = group_by(tables["candidate"], *key)
    measured = _measured(tables)
    return [
        _answer(row, candidates.get(tuple(row[name] for name in key), []))
        for row in tables["recommendation"]
        if row["predictor"] == MEASURED or _place(row) not in measured
    ]


def held_out(tables: Tables) -> list[Row]:
    """Return what predictors recommended for measured LLMs that they were not shown: rows of table
    `recommendation`, with `is_success` and `overspend` against the optimum.
    """
    measured = _measured(tables)
    rows = tables["recommendation"]
    return [row for row in rows if row["predictor"] != MEASURED and _place(row) in measured]


def _measured(tables: Tables) -> set[tuple]:
    return {_place(row) for row in tables["recommendation"] if row["predictor"] == MEASURED}


def _place(row: Row) -> tuple:
    return row["source"], row["slo_id"], row["llm_id"]


def _answer(row: Row, candidates: Sequence[Row]) -> Row:
    profile_id = row["gpu_profile_id"]
    others = [
        beside(row, option)
        for option in candidates
        if option["status"] == "meets" and option["gpu_profile_id"] != profile_id
    ]
    return {
        **{name: row[name] for name in ("source", "slo_id", "llm_id", "predictor")},
        "basis": "measured" if row["predictor"] == MEASURED else "predicted",
        **{name: row[name] for name in (*_ANSWER, "probability_met")},
        "alternatives": sorted(others, key=lambda o: (o["usd_per_hour"], o["gpu_profile_id"])),
        "nearest_miss": None if profile_id else _nearest_miss(candidates),
        **{
            status: [c["gpu_profile_id"] for c in candidates if c["status"] == status]
            for status in ("does_not_fit", "not_measured")
        },
    }


def _nearest_miss(candidates: Sequence[Row]) -> Row | None:
    """Return the profile whose worse latency, at its fewest users, is least above its limit."""
    slow = [c for c in candidates if c["status"] == "too_slow" and c["limit_ratio"] is not None]
    if not slow:
        return None
    nearest = min(slow, key=lambda c: (c["limit_ratio"], c["gpu_profile_id"]))
    return {
        "gpu_profile_id": nearest["gpu_profile_id"],
        "limit": worst_limit(nearest),
        "ratio": nearest["limit_ratio"],
        "users": nearest["fewest_users"],
    }


def points_with_costs(tables: Tables) -> list[Row]:
    """Return the points with `output_tokens_per_usd`, output of successful requests per price of
    the GPU profile; None where the price is not known, or no token came.
    """
    prices = {row["gpu_profile_id"]: row["usd_per_hour"] for row in tables["gpu_profile"]}

    def per_usd(point: Row) -> float | None:
        per_s, usd_per_hour = point["throughput_tok_s"], prices.get(point["gpu_profile_id"])
        return None if per_s is None else ratio(3600 * per_s, usd_per_hour)

    return [{**point, "output_tokens_per_usd": per_usd(point)} for point in tables["point"]]


def decision_points(tables: Tables) -> list[Row]:
    """Return the points that recommendations rest on (table `decision`)."""
    setting = ("source", "workload_id", "scenario_id")
    chosen, points = group_by(tables["decision"], *setting), tables["point"]
    return [point for point in points if tuple(point[name] for name in setting) in chosen]


def prediction_pairs(tables: Tables, slo: Row, source: str, predictor: str) -> list[Row]:
    """Return held-out predictions beside the truth, at the SLO's percentile: `llm_id,
    gpu_profile_id, users, {nttft,itl}_ms, true_{nttft,itl}_ms`. Points of other requests than the
    SLO's are left out.
    """
    wanted = SLO(**slo)
    columns = {
        target: f"{PERCENTILE_PREFIX[percentile]}_{target}_ms"
        for target, percentile in zip(TARGET_NAMES, wanted.percentiles, strict=True)
    }
    place = ("llm_id", "gpu_profile_id", "users")
    own = [p for p in decision_points(tables) if p["source"] == source]
    if wanted.lengths:
        own = [p for p in own if wanted.is_of(np.array([p[name] for name in _LENGTHS], float))]
    truth = group_by(own, *place)
    asked = group_by(tables["prediction"], "source", "slo_id", "predictor")
    pairs = []
    for row in asked.get((source, slo["slo_id"], predictor), ()):
        for point in truth.get(tuple(row[name] for name in place), ())[-1:]:
            true = {f"true_{name}_ms": point.get(column) for name, column in columns.items()}
            pairs.append({**row, **true})
    return pairs
