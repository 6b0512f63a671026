"""Which points are doubtful: failed or few requests, or a load client that shaped latencies."""

from collections.abc import Sequence

from sextant.base.rows import Row, group_by
from sextant.experiment.scenarios import level_to_json
from sextant.points.cells.metrics import SHAPING_FRACTION

SETTING = ("source", "workload_id", "scenario_id", "variant_id")
"""What points share that may be compared in one figure."""

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


def doubts(point: Row) -> set[str]:
    """Return the columns that make a point doubtful, keys of `WARNINGS`."""
    found = set()
    if point["n_failed"]:
        found.add("n_failed")
    if point["n_ok"] is not None and point["n_ok"] < FEW_REQUESTS:
        found.add("n_ok")
    for lag, latency in (("client_lag", "itl"), ("send_lag", "ttft")):
        share = ratio(point[f"{lag}_p99_ms"], point[f"median_{latency}_ms"])
        if share is not None and share > SHAPING_FRACTION:
            found.add(f"{lag}_p99_ms")
    agreement = ratio(point["mean_itl_ms"], point["server_mean_itl_ms"])
    is_apart = agreement is not None and abs(agreement - 1) > SHAPING_FRACTION
    if is_apart or point["median_itl_ms"] == 0:
        found.add("mean_itl_ms")
    return found


def ratio(a: float | None, b: float | None) -> float | None:
    """Return a / b, None where either is not known or b is 0."""
    return None if a is None or not b else a / b


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
