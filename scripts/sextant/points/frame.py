"""The points of a characterization as frames: their columns, and latencies at a percentile."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from sextant.facts.slo import ENDS, PERCENTILE_PREFIX, between, end_column, factor

IDENTIFIERS = ["llm_id", "gpu_profile_id"]
KEYS = [*IDENTIFIERS, "users"]
"""What names a point of a closed loop."""
_SOFTWARE = ["engine", "engine_version", "precision", "kv_precision"]
_LAYOUT = ["tensor_parallel", "data_parallel", "expert_parallel"]
SERVING = [*_SOFTWARE, *_LAYOUT]
"""How an LLM was served. Layers are split over `tensor_parallel` devices, or all of the profile if
it is null; there are `data_parallel` copies of the attention layers."""
LENGTHS = ["input_tokens", "output_tokens"]
"""Mean lengths of a point's requests."""
LOAD = ["users", "request_rate_rps"]
"""A closed loop has `users`; its `request_rate_rps` is then a result."""
TARGETS = ["nttft_ms", "itl_ms"]
_FIRST = "nttft_ms"
BOUNDS = {name: [end_column(name, end) for end in ENDS] for name in TARGETS}
"""Columns of the ends of their intervals."""
FLOOR_MS = 1e-6
"""What a predicted latency of 0 ms or less becomes, so that it still counts as a latency.

A network whose last unit never fires and a clipped factorisation predict 0 ms. LLM-Pilot's
scoring takes this as a latency that meets every limit; `has_latency` would take it for a point
where nothing succeeded.
"""
STATISTICS = ("mean", "median", "p90", "p95", "p99")
LATENCIES = ("ttft_ms", "nttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
LATENCY_COLUMNS = [f"{statistic}_{name}" for statistic in STATISTICS for name in LATENCIES]
INTERVAL_COLUMNS = [
    end_column(f"{prefix}_{name}", end)
    for name in LATENCIES
    for prefix in PERCENTILE_PREFIX.values()
    for end in ENDS
]
"""Ends of the 90% intervals of percentiles: columns that a frame of points may have, too."""
_COUNTS, _NAMES = ["n_ok", "n_failed"], ["measured_on", "run_id"]
_RATES = ["throughput_tok_s", "energy_j_per_token"]
COLUMNS = [
    *(*IDENTIFIERS, *SERVING, *LENGTHS, *LOAD),
    *(*LATENCY_COLUMNS, *_RATES, *_COUNTS, *_NAMES),
]
"""Every frame of points has these, null where its source lacks them; one row per measurement."""
TYPES = {
    **dict.fromkeys(COLUMNS, "float64"),
    **dict.fromkeys((*_LAYOUT, "users", *_COUNTS), "Int64"),
    **dict.fromkeys((*IDENTIFIERS, *_SOFTWARE, *_NAMES), "str"),
}

Pair = tuple[str, str]
"""(`llm_id`, `gpu_profile_id`)"""


def complete(points: pd.DataFrame, defaults: Mapping[str, Any] | None = None) -> pd.DataFrame:
    """Return points with all of `COLUMNS`, typed, then their other columns.

    A missing value comes from `defaults`, or is computed from others of its row: nTTFT = TTFT /
    input tokens (exact for requests of one length, else a ratio of means); mean TPOT = (E2E − TTFT)
    / (output tokens − 1), where the row has neither TPOT nor ITL; and, of mean and median, ITL and
    TPOT from each other, where the row has only one of them.
    """
    others = [name for name in points if name not in TYPES]
    frame = points.reindex(columns=[*COLUMNS, *others])
    for name, value in (defaults or {}).items():
        frame[name] = frame[name].astype(object).where(frame[name].notna(), value)
    frame = frame.astype(TYPES)
    for statistic in STATISTICS:
        ratio = frame[f"{statistic}_ttft_ms"] / frame["input_tokens"]
        frame[f"{statistic}_nttft_ms"] = frame[f"{statistic}_nttft_ms"].fillna(ratio)
    steps = (frame["output_tokens"] - 1).where(frame["output_tokens"] > 1)
    tpot_ms = (frame["mean_e2e_ms"] - frame["mean_ttft_ms"]) / steps
    without = frame[["mean_itl_ms", "mean_tpot_ms"]].isna().all(axis=1)
    frame["mean_tpot_ms"] = frame["mean_tpot_ms"].mask(without & (tpot_ms > 0), tpot_ms)
    for statistic in ("mean", "median"):
        gap, per_output = f"{statistic}_itl_ms", f"{statistic}_tpot_ms"
        for one, other in ((gap, per_output), (per_output, gap)):
            frame[one] = frame[one].fillna(frame[other])
    return frame


def points_of_store(points: pd.DataFrame) -> pd.DataFrame:
    """Return rows of the store's table `point` as a frame of points (`COLUMNS`)."""
    names = {
        "mean_input_tokens": "input_tokens",
        "mean_output_tokens": "output_tokens",
        "energy_per_output_token_j": "energy_j_per_token",
    }
    return complete(points.rename(columns=names))


def at_percentile(
    points: pd.DataFrame, percentiles: tuple[int, int], first_token: str = "nttft"
) -> pd.DataFrame:
    """Return the points at percentiles, sorted by LLM, GPU profile and users.

    Columns are `IDENTIFIERS`, `LOAD`, `SERVING`, `LENGTHS`, the latencies `nttft_ms, itl_ms`, each
    at its percentile (of the first token, of the tokens after it), `BOUNDS` (the ends of their 90%
    intervals, NaN where not known), throughput and energy; and `source`, if points have it. A
    percentile that a point lacks is estimated from those that it has; `estimated` says so.

    Where there is a request rate and no `users`, they are those in flight by Little's law.

    With `first_token` of `ttft`, `nttft_ms` is TTFT at the percentile over the mean input tokens
    (`SLO.first_token`): where requests differ in length, TTFT spreads less than nTTFT.
    """
    frame = points.reindex(columns=list(dict.fromkeys([*points, *COLUMNS])))
    for target, percentile in zip(TARGETS, percentiles, strict=True):
        frame[[target, *BOUNDS[target]]] = _latency(points, target, percentile)
    if first_token == "ttft":
        ttft_ms = _latency(points, "ttft_ms", percentiles[0])
        per_token = ttft_ms.div(frame["input_tokens"].astype(float), axis=0)
        columns = [_FIRST, *BOUNDS[_FIRST]]
        known = per_token.iloc[:, 0].notna()
        frame.loc[known, columns] = per_token[known].to_numpy()
    frame["users"] = frame["users"].astype("Int64").fillna(_in_flight(frame))
    bounds = [name for ends in BOUNDS.values() for name in ends]
    numbers = [*LENGTHS, *TARGETS, *bounds, *_RATES]
    source = ["source"] if "source" in frame else []
    chosen = frame[[*source, *IDENTIFIERS, *LOAD, *SERVING, *numbers]]
    ordered = chosen.sort_values([*IDENTIFIERS, "users"], ignore_index=True, kind="stable")
    users = "int64" if ordered["users"].notna().all() else "Int64"
    types = dict.fromkeys([*numbers, "request_rate_rps"], "float64")
    return ordered.astype({**types, "users": users})


def _in_flight(points: pd.DataFrame) -> pd.Series:
    """Return request rate × E2E of each point, at least 1; null without a latency of tokens.

    E2E is as measured, else TTFT + (output tokens − 1) × ITL; means, or medians without them.
    """
    e2e_ms = pd.Series(np.nan, points.index)
    for statistic in ("mean", "median"):
        values = {name: points[f"{statistic}_{name}"].astype(float) for name in LATENCIES}
        steps = (points["output_tokens"].astype(float) - 1).clip(lower=0)
        made = values["ttft_ms"].fillna(0) + steps * values["itl_ms"]
        e2e_ms = e2e_ms.fillna(values["e2e_ms"]).fillna(made)
    users = (points["request_rate_rps"].astype(float) * e2e_ms / 1000).round().clip(lower=1)
    return users.astype("Int64")


def _latency(points: pd.DataFrame, target: str, percentile: int) -> pd.DataFrame:
    """Return a latency at a percentile and the ends of its interval, estimated alike."""
    latency = pd.DataFrame(np.nan, points.index, ["", *ENDS])
    for columns, rows in _estimates(points, target, percentile):
        (first, *_) = columns
        for end in latency:
            names = [end_column(name, end) if end else name for name in columns.values()]
            values = [rows[name].astype(float) for name in names if name in rows]
            if len(values) < len(names):
                continue  # a source without intervals
            if len(columns) == 1:
                latency.loc[rows.index, end] = values[0] * factor(target, first, percentile)
            else:
                weight = between(first, max(columns), percentile)
                latency.loc[rows.index, end] = values[0] ** (1 - weight) * values[1] ** weight
    return latency


def _estimates(
    points: pd.DataFrame, target: str, percentile: int
) -> Iterator[tuple[dict[int, str], pd.DataFrame]]:
    """Yield the columns that give a latency, by percentile, with the rows that have them.

    That is its own column; else the two around it; else the nearest one. A mean stands in for the
    median where that is asked for, or where a row has no percentile at all. Rows without the
    latency are left out.
    """
    names = {number: f"{prefix}_{target}" for number, prefix in PERCENTILE_PREFIX.items()}
    given = points.reindex(columns=[*names.values(), f"mean_{target}"]).notna().to_numpy()
    for pattern in np.unique(given, axis=0):
        known = {
            number: name for (number, name), has in zip(names.items(), pattern, strict=False) if has
        }
        if pattern[-1] and 50 not in known and (percentile == 50 or not known):
            known = {50: f"mean_{target}", **known}
        below = [number for number in known if number < percentile][-1:]
        above = [number for number in known if number > percentile][:1]
        chosen = [percentile] if percentile in known else [*below, *above]
        if chosen:
            rows = points[(given == pattern).all(axis=1)]
            yield {number: known[number] for number in chosen}, rows


def estimated(points: pd.DataFrame, percentiles: tuple[int, int]) -> dict[str, list[str]]:
    """Return the columns that a latency is estimated from, where a point lacks its percentile."""
    sources: dict[str, list[str]] = {}
    for target, percentile in zip(TARGETS, percentiles, strict=True):
        own = f"{PERCENTILE_PREFIX[percentile]}_{target}"
        used = [
            name for known, _ in _estimates(points, target, percentile) for name in known.values()
        ]
        if set(used) - {own}:
            sources[target] = [*dict.fromkeys(used)]
    return sources


def has_latency(latencies: pd.DataFrame) -> pd.Series:
    """Return which rows have both `nttft_ms` and `itl_ms`, finite and above 0."""
    values = latencies[TARGETS]
    return ((values > 0) & np.isfinite(values)).all(axis=1)
