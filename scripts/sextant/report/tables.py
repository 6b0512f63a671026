"""What the report says, as rows: the store's tables arranged into answers and warnings."""

from collections.abc import Sequence

from sextant.experiment.scenarios import KINDS, level_to_json
from sextant.experiment.slo import PERCENTILE_PREFIX
from sextant.load.lag import SHAPING_FRACTION
from sextant.pages.words import Row
from sextant.report.read import MEASURED, Tables, group_by

_ANSWER = ("gpu_profile_id", "replicas", "users_per_replica", "usd_per_hour")
SETTING = ("source", "workload_id", "scenario_id", "variant_id")
"""What points share that may be compared in one figure."""

LEVEL_NAMES = {kind: scenario.level_words for kind, scenario in KINDS.items()}
"""What a level is, by the kind of scenario."""

LIMIT_NAMES = {"nttft": "nTTFT", "itl": "ITL"}

FEW_REQUESTS = 20
"""With fewer successful requests even a median is rough."""
WARNINGS = {
    "n_failed": "Requests failed; they are in no latency",
    "n_ok": f"Fewer than {FEW_REQUESTS} successful requests, so the latencies are rough",
    "client_lag_p99_ms": (
        f"The load client's lag (p99) exceeds {SHAPING_FRACTION:.0%} of the median ITL, so the "
        "latencies are partly its own"
    ),
    "send_lag_p99_ms": (
        "Requests left late: the load client's lag in sending (p99) exceeds "
        f"{SHAPING_FRACTION:.0%} of the median TTFT"
    ),
    "mean_itl_ms": (
        f"The client's mean ITL differs from the server's own by more than {SHAPING_FRACTION:.0%}, "
        "or its median is 0: tokens waited for the client and were seen in bunches"
    ),
}
"""What makes a point doubtful, by the column that shows it."""


def recommendations(tables: Tables) -> list[Row]:
    """Return the answers: from points where an LLM was measured, else from each predictor.

    Columns: `source, slo_id, llm_id, predictor, basis` (`measured` or `predicted`),
    `gpu_profile_id` (None: nobody meets the SLO), `replicas, users_per_replica,
    usd_per_hour, alternatives` (other profiles that meet it, cheapest first),
    `nearest_miss` (only where nobody does; None if no latency tells), `does_not_fit` and
    `not_measured` (profiles without latencies, by the reason).
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
    """Return what predictors recommended for measured LLMs that they were not shown.

    Rows of table `recommendation`, with `is_success` and `overspend` against the optimum.
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
        {
            **{name: option[name] for name in _ANSWER},
            # Rounded, as the prices are: 0.3 - 0.1 is not 0.2.
            "extra_usd_per_hour": round(option["usd_per_hour"] - row["usd_per_hour"], 9),
        }
        for option in candidates
        if option["status"] == "meets" and option["gpu_profile_id"] != profile_id
    ]
    return {
        **{name: row[name] for name in ("source", "slo_id", "llm_id", "predictor")},
        "basis": "measured" if row["predictor"] == MEASURED else "predicted",
        **{name: row[name] for name in _ANSWER},
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
        "limit": "itl" if nearest["itl_ratio"] >= nearest["nttft_ratio"] else "nttft",
        "ratio": nearest["limit_ratio"],
        "users": nearest["fewest_users"],
    }


def points_with_costs(tables: Tables) -> list[Row]:
    """Return the points with `output_tokens_per_usd`, output of successful requests per price of
    the GPU profile; None where the price is not known, or no token came.
    """
    prices = {row["gpu_profile_id"]: row["usd_per_hour"] for row in tables["gpu_profile"]}
    return [
        {
            **point,
            "output_tokens_per_usd": _ratio(
                _product(point["throughput_tok_s"], 3600), prices.get(point["gpu_profile_id"])
            ),
        }
        for point in tables["point"]
    ]


def _product(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a * b


def _ratio(a: float | None, b: float | None) -> float | None:
    return None if a is None or not b else a / b


def doubts(point: Row) -> set[str]:
    """Return the columns that make a point doubtful, keys of `WARNINGS`."""
    found = set()
    if point["n_failed"]:
        found.add("n_failed")
    if point["n_ok"] is not None and point["n_ok"] < FEW_REQUESTS:
        found.add("n_ok")
    for lag, latency in (("client_lag", "itl"), ("send_lag", "ttft")):
        share = _ratio(point[f"{lag}_p99_ms"], point[f"median_{latency}_ms"])
        if share is not None and share > SHAPING_FRACTION:
            found.add(f"{lag}_p99_ms")
    agreement = _ratio(point["mean_itl_ms"], point["server_mean_itl_ms"])
    is_apart = agreement is not None and abs(agreement - 1) > SHAPING_FRACTION
    if is_apart or point["median_itl_ms"] == 0:
        found.add("mean_itl_ms")
    return found


def warnings(points: Sequence[Row]) -> list[Row]:
    """Return `column, text, n_points, places` for each doubt that any point raises.

    A place is an LLM on a GPU profile in a setting, with the `levels` concerned.
    """
    found = []
    for column, text in WARNINGS.items():
        doubtful = [point for point in points if column in doubts(point)]
        key = ("llm_id", "gpu_profile_id", *SETTING, "scenario_kind")
        places = [
            {
                **dict(zip(key, place, strict=True)),
                "levels": [level_to_json(row["level"]) for row in rows],
            }
            for place, rows in group_by(doubtful, *key).items()
        ]
        if places:
            row = {"column": column, "text": text, "n_points": len(doubtful), "places": places}
            found.append(row)
    return found


def decision_points(tables: Tables) -> list[Row]:
    """Return the points that recommendations rest on (table `decision`)."""
    chosen = {(d["source"], d["workload_id"], d["scenario_id"]) for d in tables["decision"]}
    return [
        point
        for point in tables["point"]
        if (point["source"], point["workload_id"], point["scenario_id"]) in chosen
    ]


def prediction_pairs(tables: Tables, slo: Row, source: str, predictor: str) -> list[Row]:
    """Return held-out predictions beside the truth, at the SLO's percentile.

    Columns: `llm_id, gpu_profile_id, users, {nttft,itl}_ms, true_{nttft,itl}_ms`.
    """
    prefix = PERCENTILE_PREFIX[slo["percentile"]]
    truth = {
        (p["llm_id"], p["gpu_profile_id"], p["users"]): p
        for p in decision_points(tables)
        if p["source"] == source
    }
    asked = (source, slo["slo_id"], predictor)
    pairs = []
    for row in tables["prediction"]:
        point = truth.get((row["llm_id"], row["gpu_profile_id"], row["users"]))
        if point and (row["source"], row["slo_id"], row["predictor"]) == asked:
            true = {f"true_{name}_ms": point[f"{prefix}_{name}_ms"] for name in LIMIT_NAMES}
            pairs.append({**row, **true})
    return pairs
