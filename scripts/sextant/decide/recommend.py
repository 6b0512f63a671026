"""From latencies to the cheapest GPU profile and its number of replicas (LLM-Pilot, eq. 1-3)."""

from collections.abc import Collection, Mapping
from math import ceil
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from sextant.characterizations.points import IDENTIFIERS, TARGETS, Pair, has_latency
from sextant.experiment.slo import SLO
from sextant.hardware.gpu import GPUProfile


def u_max(latencies: pd.DataFrame, slo: SLO) -> int:
    """Return the most users one replica serves within both limits, 0 if not even the fewest.

    Eq. 3 of LLM-Pilot: the limits have to hold at every smaller user count too. User counts
    without a row are not asked about, since nobody tried them; a row without latencies
    (`has_latency`: nothing succeeded there, or the client saw no time pass) breaks the limits.

    Args:
        latencies: `users, nttft_ms, itl_ms` of one LLM on one GPU profile.
        slo: the limits.
    """
    return _most_users(_Curve.of(latencies.sort_values("users")), slo)


class _Curve(NamedTuple):
    """Latencies of one LLM on one GPU profile by rising users; plain arrays, as pandas is slow."""

    users: np.ndarray
    latencies_ms: np.ndarray
    """nTTFT and ITL, shape (points, 2); NaN where nothing succeeded."""

    @classmethod
    def of(cls, ordered: pd.DataFrame) -> Self:
        known = ordered[TARGETS].where(has_latency(ordered), np.nan)
        return cls(ordered["users"].to_numpy(), known.to_numpy(float))


def _most_users(curve: _Curve, slo: SLO) -> int:
    # A comparison with NaN is false: a point without latencies breaks the limits.
    meets = (curve.latencies_ms <= (slo.nttft_ms, slo.itl_ms)).all(axis=1)
    n_met = int(np.logical_and.accumulate(meets).sum())
    return int(curve.users[n_met - 1]) if n_met else 0


def pods(users: int, users_per_replica: int) -> int:
    """Return how many replicas serve `users` (LLM-Pilot, eq. 2)."""
    return ceil(users / users_per_replica)


def candidates(
    latencies: pd.DataFrame,
    llm_ids: Collection[str],
    profiles: Mapping[str, GPUProfile],
    slo: SLO,
    feasible: Collection[Pair] | None = None,
) -> pd.DataFrame:
    """Return one row per LLM and GPU profile: what it would take, or why it is no option.

    Columns: `llm_id, gpu_profile_id, status, users_per_replica, replicas, usd_per_hour` (of
    all replicas), `fewest_users, nttft_ratio, itl_ratio, limit_ratio`. The ratios are latency
    over limit at the fewest users, `limit_ratio` the larger of the two: what exceeds 1 is by
    how much the profile misses. `status` is `meets`, `too_slow`, `does_not_fit` (memory facts
    rule it out) or `not_measured` (no latencies); only `meets` has replicas and a price.

    Args:
        latencies: `llm_id, gpu_profile_id, users, nttft_ms, itl_ms`, measured or predicted.
        llm_ids: the LLMs to list.
        profiles: the GPU profiles on offer, by identifier.
        slo: the promise to keep.
        feasible: pairs that memory facts allow; None allows all.
    """
    known = _curves(latencies)
    rows = []
    for llm_id in llm_ids:
        for profile_id in sorted(profiles):
            pair = (llm_id, profile_id)
            row: dict[str, Any] = dict(zip(IDENTIFIERS, pair, strict=True))
            if feasible is not None and pair not in feasible:
                row["status"] = "does_not_fit"
            elif pair not in known:
                row["status"] = "not_measured"
            else:
                row |= _assess(known[pair], profiles[profile_id].usd_per_hour, slo)
            rows.append(row)
    return _typed(rows)


def _curves(latencies: pd.DataFrame) -> dict[Pair, _Curve]:
    ordered = latencies.sort_values([*IDENTIFIERS, "users"], ignore_index=True)
    whole = _Curve.of(ordered)
    rows = ordered.groupby(IDENTIFIERS).indices
    return {pair: _Curve(*(values[places] for values in whole)) for pair, places in rows.items()}


def _assess(curve: _Curve, usd_per_hour: float, slo: SLO) -> dict[str, Any]:
    served = _most_users(curve, slo)
    # Of a point without latencies (NaN) nobody knows by how much it misses the limits.
    nttft_ratio, itl_ratio = (curve.latencies_ms[0] / (slo.nttft_ms, slo.itl_ms)).tolist()
    row = {
        "status": "meets" if served else "too_slow",
        "users_per_replica": served,
        "fewest_users": int(curve.users[0]),
        "nttft_ratio": nttft_ratio,
        "itl_ratio": itl_ratio,
        # A missing latency is no small one: np.maximum keeps NaN.
        "limit_ratio": float(np.maximum(nttft_ratio, itl_ratio)),
    }
    if served:
        replicas = pods(slo.users, served)
        # Rounded, or 3 x 0.1 would not tie with 1 x 0.3.
        row |= {"replicas": replicas, "usd_per_hour": round(replicas * usd_per_hour, 9)}
    return row


def _typed(rows: list[dict[str, Any]]) -> pd.DataFrame:
    types = {
        "llm_id": "str",
        "gpu_profile_id": "str",
        "status": "str",
        "users_per_replica": "Int64",
        "replicas": "Int64",
        "usd_per_hour": "float64",
        "fewest_users": "Int64",
        "nttft_ratio": "float64",
        "itl_ratio": "float64",
        "limit_ratio": "float64",
    }
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def recommend(candidate_rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per LLM: its cheapest candidate that meets the SLO (LLM-Pilot, eq. 1).

    Columns: `llm_id, gpu_profile_id, replicas, users_per_replica, usd_per_hour`. Of equally
    cheap profiles the first by identifier is taken. An LLM whose every candidate fails has
    a row with nothing but its name.
    """
    columns = [*IDENTIFIERS, "replicas", "users_per_replica", "usd_per_hour"]
    ordered = candidate_rows.sort_values(["usd_per_hour", "gpu_profile_id"], kind="stable")
    best = ordered[ordered["status"] == "meets"].drop_duplicates("llm_id")[columns]
    everyone = candidate_rows[["llm_id"]].drop_duplicates()
    return everyone.merge(best, on="llm_id", how="left").reset_index(drop=True)
