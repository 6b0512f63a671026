"""What the report says of each SLO, as rows: recommendations, predictions, curves, and words."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sextant.base.files import Row, group_by
from sextant.decide.headroom import compare_options
from sextant.experiment.scenarios import KINDS
from sextant.facts.slo import METRICS, PERCENTILE_PREFIX, SLO, worst_limit
from sextant.pages.wording import number, percent, plural
from sextant.points.frame import BOUNDS, LENGTHS, TARGETS, judged, points_of_store
from sextant.predict import MEASURED
from sextant.report.store_tables import Tables, detailed_slos

_ANSWER = ("gpu_profile_id", "replicas", "users_per_replica", "usd_per_hour")
LEVEL_NAMES = {kind: scenario.level_words for kind, scenario in KINDS.items()}
"""What a level is, by the kind of scenario."""
TARGET_NAMES = {"nttft": "nTTFT", "itl": "ITL"}
"""The latencies that predictors predict."""
_BOUNDS = [name for target in TARGETS for name in BOUNDS[target]]
_NUMBERS = [*TARGETS, *_BOUNDS, *LENGTHS, "request_rate_rps"]


def recommendations(tables: Tables) -> list[Row]:
    """Return the answers: from points where an LLM was measured, else from each predictor.

    Columns: `source, slo_id, llm_id, predictor, basis` (`measured` or `predicted`),
    `gpu_profile_id` (None: no profile meets the SLO), `replicas, users_per_replica, usd_per_hour,
    probability_met` (None: not known), `alternatives` (others that meet it, cheapest first; see
    `headroom.compare_options`), `nearest_miss` (where none does; None if
    no latency tells), `does_not_fit`, `not_measured` and `fails` (profiles without a load that
    counts, by the reason: the last had more failures than the SLO allows).
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
        compare_options(row, option)
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
            for status in ("does_not_fit", "not_measured", "fails")
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


def decision_points(tables: Tables) -> list[Row]:
    """Return the points that recommendations rest on (table `decision`)."""
    setting = ("source", "workload_id", "scenario_id")
    chosen, points = group_by(tables["decision"], *setting), tables["point"]
    return [point for point in points if tuple(point[name] for name in setting) in chosen]


def prediction_pairs(tables: Tables, slo: Row, source: str, predictor: str) -> list[Row]:
    """Return held-out predictions with the measured latencies, at the SLO's percentile: `llm_id,
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
        own = [p for p in own if wanted.is_of(np.array([p[name] for name in LENGTHS], float))]
    truth = group_by(own, *place)
    asked = group_by(tables["prediction"], "source", "slo_id", "predictor")
    pairs = []
    for row in asked.get((source, slo["slo_id"], predictor), ()):
        for point in truth.get(tuple(row[name] for name in place), ())[-1:]:
            true = {f"true_{name}_ms": point.get(column) for name, column in columns.items()}
            pairs.append({**row, **true})
    return pairs


def load_curves(tables: Tables, source: str, slo: SLO) -> pd.DataFrame:
    """Return what each LLM's answer rests on: `predictor, llm_id, gpu_profile_id, users`, the
    latencies at the SLO's percentiles with their bounds, lengths and `request_rate_rps`.

    Rows have `predictor` of `measured`, or are of a predictor and an LLM that was not measured.
    """
    points = [row for row in decision_points(tables) if row["source"] == source]
    measured = pd.DataFrame(points, columns=[*tables["point"][0]] if tables["point"] else None)
    parts = []
    if len(measured):
        measured = judged(points_of_store(measured), slo)
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
    own = [name for name in measured if name.startswith("own_") or name.endswith("_is_derived")]
    numbers = [*_NUMBERS, *own, "served_rps", "failed_share"]
    frame = pd.concat([part.reindex(columns=[*keys, *numbers]) for part in parts])
    frame[numbers] = frame[numbers].astype(float)
    # As eq. 3 takes them: where nothing succeeded, no limit is met.
    frame[TARGETS] = frame[TARGETS].where(frame[TARGETS] > 0)
    return frame.astype({"users": int}).sort_values(keys, ignore_index=True)


def slo_answers(tables: Tables) -> list[Row]:
    """Return what there is to say of each SLO shown in full, by source where there are several.

    Keys: `source, slo, heading, answers, scores` (of predictors) and `held_out_by`
    (recommendations for hidden LLMs by predictor and LLM).
    """
    names = sources(tables)
    parts = recommendations(tables), tables["score"], held_out(tables)
    by_slo = [group_by(rows, "source", "slo_id") for rows in parts]
    found = []
    for source in names:
        for slo in detailed_slos(tables):
            answers, scores, guesses = (rows.get((source, slo["slo_id"]), []) for rows in by_slo)
            scores = [row for row in scores if row["predictor"] != MEASURED]
            # Better judged predictors first; what has no score comes last.
            rank = {row["predictor"]: -(row["so_score"] or 0) for row in scores}
            answers = sorted(
                answers,
                key=lambda row: (row["basis"], row["llm_id"], rank.get(row["predictor"], 1)),
            )
            found.append(
                {
                    "source": source,
                    "slo": slo,
                    "heading": slo["slo_id"] if len(names) < 2 else f"{slo['slo_id']} · {source}",
                    "answers": answers,
                    "scores": scores,
                    "held_out_by": {
                        predictor: {row["llm_id"]: row for row in rows}
                        for (predictor,), rows in group_by(guesses, "predictor").items()
                    },
                }
            )
    return found


def sources(tables: Tables) -> list[str]:
    """Return the characterizations in the store, `measured` if there is none yet."""
    return sorted({row["source"] for name in ("point", "score") for row in tables[name]}) or [
        MEASURED
    ]


def deployment(row: Row) -> str:
    """Write replicas and profile, e.g. `2 × 1xA100`."""
    if row["gpu_profile_id"] is None:
        return "none"
    return f"{number(row['replicas'])} × {row['gpu_profile_id']}"


def verdict(row: Row) -> str:
    """Return the outcome of a held-out recommendation."""
    if row["is_success"] is None:
        return "(not judged)"
    return f"✓ +{percent(row['overspend'])}" if row["is_success"] else "✗"


def miss_words(row: Row) -> str:
    """Say why an LLM has no recommendation, and by how much the nearest profile misses."""
    miss = row["nearest_miss"]
    if miss:
        return (
            f"nearest: {miss['gpu_profile_id']} misses {METRICS[miss['limit']]} "
            f"by {number(miss['ratio'])}× with {plural(miss['users'], 'user')}"
        )
    if row["fails"]:
        return f"more requests failed than may on {', '.join(row['fails'])}"
    if row["does_not_fit"] and not row["not_measured"]:
        return "fits on no GPU profile"
    return "no latency is known"


def slo_words(slo: Row) -> str:
    """Write an SLO's limits and load as a sentence would."""
    asked = SLO(**slo)
    limits = [
        f"{PERCENTILE_PREFIX[limit.percentile]} {METRICS[name]} ≤ {number(limit.limit_ms)} ms"
        f"{' per input token' if name == 'nttft' else ''}"
        for name, limit in asked.limits.items()
    ]
    load = f"the traffic of {asked.trace_id}"
    if asked.trace_id is None:
        unit = "users" if asked.users is not None else "requests a second"
        load = f"{number(asked.load)} {unit}"
    words = f"{' and '.join(limits)}, for {load}"
    if not asked.lengths:
        return words
    inputs, outputs = (number(value) for value in asked.lengths.values())
    return f"{words} of {inputs} input and {outputs} output tokens"
