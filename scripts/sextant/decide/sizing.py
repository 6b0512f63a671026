"""From latencies to the cheapest GPU profile and its number of replicas (LLM-Pilot, eq. 1-3)."""

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from sextant.base.errors import InputError
from sextant.decide.most_replicas import MOST_REPLICAS
from sextant.facts.engine import AS_SHIPPED, ServerOptions
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.facts.slo import METRICS, SLO
from sextant.points.frame import IDENTIFIERS, Pair, is_refused, limited, replica_load
from sextant.points.verdict import assess

RATIOS = [f"{name}_ratio" for name in METRICS]  # Latency over limit, by metric: null without one.


def users_served(users: np.ndarray, is_met: np.ndarray) -> np.ndarray:
    """Return the most users that a replica serves within all limits (LLM-Pilot, eq. 3).

    The limits have to hold at every smaller number of users that was tried, too. The result is 0
    where they do not hold at the fewest users.

    Args:
        users: rising, (points,).
        is_met: whether all limits hold at these users, (..., points); the result has shape (...).
    """
    n_met = np.logical_and.accumulate(is_met, axis=-1).sum(axis=-1)
    return np.asarray(np.concatenate([[0], users])[n_met])


def load_served(carried: np.ndarray, is_met: np.ndarray) -> np.ndarray:
    """Return the most load, users or requests a second, that a replica serves within all limits.

    A replica may carry a higher request rate with fewer users in flight than `users_served`. A
    point whose load is not known (NaN in `carried`) does not count. Shapes as in `users_served`.
    """
    met = np.logical_and.accumulate(is_met, axis=-1)
    return np.asarray(np.where(met, np.nan_to_num(carried), 0).max(axis=-1))


def u_max(latencies: pd.DataFrame, slo: SLO) -> int:
    """Return the most users one replica serves, by points of one LLM on one GPU profile."""
    (curve,) = curves(latencies.assign(llm_id="", gpu_profile_id=""), slo).values()
    return int(users_served(curve.users, curve.is_met))


class LoadCurve(NamedTuple):
    """What is known of one LLM on one GPU profile, by rising users; each of shape (points,)."""

    users: np.ndarray
    latencies_ms: Mapping[str, np.ndarray]  #: What each limit is compared with; NaN: unknown.
    carried: np.ndarray  #: The load, in the SLO's unit.
    is_met: np.ndarray  #: Whether all limits hold, and few enough requests failed.
    failed_share: np.ndarray

    def candidate(self, slo: SLO, usd_per_hour: float) -> dict[str, Any]:
        """Return the columns of `candidates` from `status` on; a replica costs `usd_per_hour`."""
        load = float(load_served(self.carried, self.is_met))
        # By how much a point without latencies (NaN) misses the limits is not known.
        ratios = {
            name: float(values[0]) / slo.limits[name].limit_ms
            for name, values in self.latencies_ms.items()
        }
        is_refused_at_once = bool(self.failed_share[0] > slo.allowed_failures)
        row = {
            "status": "meets" if load else "fails" if is_refused_at_once else "too_slow",
            "users_per_replica": int(users_served(self.users, self.is_met)),
            "fewest_users": int(self.users[0]),
            "failed_share": float(self.failed_share[0]),
            **{f"{name}_ratio": ratio for name, ratio in ratios.items()},
            # A missing latency is not a small one: np.max keeps NaN.
            "limit_ratio": float(np.max([*ratios.values()])),
        }
        if load:
            replicas = int(size_replicas(slo.load, load))
            # Rounded, or 3 x 0.1 would not tie with 1 x 0.3.
            row |= {"replicas": replicas, "usd_per_hour": round(replicas * usd_per_hour, 9)}
            row["load_per_replica"] = load
        return row


def size_replicas(
    load: npt.ArrayLike, load_per_replica: npt.ArrayLike, slack: float = 0.0
) -> np.ndarray:
    """Return how many replicas serve a load: users, or requests a second (LLM-Pilot, eq. 2).

    The result has whole numbers in the shape of `load_per_replica`, the load that one replica
    serves within the limits; infinite where that is 0 or NaN. A quotient counts as the whole number
    that it exceeds by `slack` or less.
    """
    served = np.asarray(load_per_replica, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(served > 0, np.ceil(np.asarray(load) / served - slack), np.inf)


def check_curves(points: pd.DataFrame) -> None:
    """Raise InputError unless the points of each LLM and GPU profile are one curve over users."""
    if points["users"].isna().any():
        fix = "choose a closed loop by --scenario-id, or measure one (`sextant load --users`)"
        raise InputError("some points have no users", field="scenario_id", fix=fix)
    keys = [*IDENTIFIERS, "users"]
    if (is_twice := points.duplicated(keys)).any():
        first = ", ".join(map(str, points.loc[is_twice, keys].iloc[0]))
        fix = "select one workload and one scenario"
        raise InputError(f"more than one point of {first} users", field="users", fix=fix)


def ruled_out(
    llm: LLM,
    profiles: Mapping[str, GPUProfile],
    longest_request_tokens: int,
    memory_utilization: float | None,
    engine: str | None = None,
    data_parallel: float = 1,
    options: ServerOptions = AS_SHIPPED,
) -> dict[str, str]:
    """Return why an LLM cannot serve a workload's longest request, by the profiles that cannot.

    There are `data_parallel` copies of attention, but no more than a profile has GPUs.
    """
    if llm.context_tokens < longest_request_tokens:
        limit = f"the longest request's {longest_request_tokens}"
        reason = f"the LLM's context of {llm.context_tokens} tokens is below {limit}"
        return dict.fromkeys(profiles, reason)
    reasons = {}
    for name, profile in profiles.items():
        copies = min(data_parallel, profile.n_gpus)
        assessed = assess(
            llm,
            profile.devices,
            memory_utilization,
            longest_request_tokens,
            engine,
            copies,
            options,
        )
        if why := assessed.verdict.why:
            reasons[name] = why
    return reasons


def candidates(
    latencies: pd.DataFrame,
    llm_ids: Collection[str],
    profiles: Mapping[str, GPUProfile],
    slo: SLO,
    feasible: Collection[Pair] | None = None,
) -> pd.DataFrame:
    """Return one row per LLM and GPU profile: what it would take, or why it is not an option.

    Columns: `llm_id, gpu_profile_id, status, users_per_replica, replicas, usd_per_hour` (of all
    replicas), `load_per_replica` (users, or requests a second), `fewest_users`; and at the fewest
    users `<metric>_ratio` (latency over limit; null without a limit), `limit_ratio` (the largest of
    the ratios; above 1 the profile misses the SLO) and `failed_share` of the requests. `status` is
    `meets`, `too_slow`, `fails` (more requests failed at the fewest users than may), `does_not_fit`
    (memory facts rule it out) or `not_measured` (no latencies). Only `meets` has replicas and a
    price.

    Args:
        latencies: measured ones (`points.frame.judged`), or predicted ones: `llm_id,
            gpu_profile_id, users, nttft_ms, itl_ms`, and the mean `input_tokens, output_tokens` if
            a limit or the load needs them.
        llm_ids: the LLMs.
        profiles: on offer.
        slo: limits and load.
        feasible: pairs that memory facts allow; None: all.
    """
    curve_of = curves(latencies, slo)
    rows = []
    for llm_id in llm_ids:
        for profile_id in sorted(profiles):
            pair = (llm_id, profile_id)
            row: dict[str, Any] = dict(zip(IDENTIFIERS, pair, strict=True))
            if feasible is not None and pair not in feasible:
                row["status"] = "does_not_fit"
            elif pair not in curve_of:
                row["status"] = "not_measured"
            else:
                row |= curve_of[pair].candidate(slo, profiles[profile_id].usd_per_hour)
            rows.append(row)
    types = {
        **dict.fromkeys([*IDENTIFIERS, "status"], "str"),
        **dict.fromkeys(["users_per_replica", "replicas"], "Int64"),
        "usd_per_hour": "float64",
        "fewest_users": "Int64",
        **dict.fromkeys([*RATIOS, "limit_ratio", "load_per_replica", "failed_share"], "float64"),
    }
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def curves(latencies: pd.DataFrame, slo: SLO) -> dict[Pair, LoadCurve]:
    """Return what was measured or predicted of each LLM on each GPU profile, users rising.

    A latency that is missing or 0 (nothing succeeded, or no time passed) breaks its limit.
    """
    # Plain arrays: a frame per pair would take most of the time.
    ordered = latencies.sort_values([*IDENTIFIERS, "users"], ignore_index=True)
    groups = ordered.groupby(IDENTIFIERS).indices
    users = ordered["users"].to_numpy()
    of_limits = limited(ordered, slo)
    carried = replica_load(ordered, slo)
    is_bad = is_refused(ordered, slo)
    is_met = slo.are_met(of_limits) & ~is_bad & (np.isfinite(carried) | (slo.users is not None))
    failed = ordered.get("failed_share", pd.Series(np.nan, ordered.index)).to_numpy(float)
    return {
        pair: LoadCurve(
            users[rows],
            {name: values[rows] for name, values in of_limits.items()},
            carried[rows],
            is_met[rows],
            failed[rows],
        )
        for pair, rows in groups.items()
    }


def recommend_cheapest(candidate_rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per LLM: its cheapest candidate that meets the SLO (LLM-Pilot, eq. 1).

    Columns: `llm_id, gpu_profile_id, replicas, users_per_replica, usd_per_hour`. Of equally cheap
    profiles the likelier one is taken, where probabilities are known, then the one of fewer
    `devices`, then the first by identifier. An LLM without such a candidate has its name alone.
    """
    order = {"usd_per_hour": True, "probability_met": False}
    return best_of_each(candidate_rows, candidate_rows["status"] == "meets", order)


def best_of_each(
    options: pd.DataFrame, is_kept: pd.Series, order: Mapping[str, bool]
) -> pd.DataFrame:
    """Return one row per LLM: the first kept option; the LLM's name alone if none is kept.

    Args:
        options: of all LLMs.
        is_kept: which rows may be chosen.
        order: columns to sort by, and whether the least comes first. Devices and identifier follow.
    """
    order = {name: up for name, up in order.items() if name in options}
    order |= {name: True for name in ("devices", "gpu_profile_id") if name in options}
    columns = [*IDENTIFIERS, "replicas", "users_per_replica", "usd_per_hour", "probability_met"]
    ordered = options[is_kept].sort_values([*order], ascending=[*order.values()], kind="stable")
    best = ordered.drop_duplicates("llm_id")[[name for name in columns if name in options]]
    everyone = options[["llm_id"]].drop_duplicates()
    return everyone.merge(best, on="llm_id", how="left").reset_index(drop=True)


RATE_STEPS = 128
"""Steps per octave of the request rate that a replica bears: a page holds it in few bits."""


def in_steps(rates: np.ndarray) -> np.ndarray:
    """Return the number of the step (`RATE_STEPS`) that each rate above 0 reaches."""
    return np.asarray(np.floor(RATE_STEPS * np.log2(rates)))


def reached_by(values: np.ndarray, share: float) -> float:
    """Return the least of some values that this share of them does not exceed."""
    position = max(int(np.ceil(share * len(values) - 1e-9)), 1) - 1
    return float(np.sort(values)[position])


def fewest_replicas(
    meets: Callable[[int], bool], start: int, most: int = MOST_REPLICAS, *, is_steady: bool = False
) -> int | None:
    """Return the fewest replicas that meet a target by simulation, None if `most` do not.

    More replicas meet a target better in the mean. A number may meet it by luck where a larger one
    misses it: it is taken if the next larger one meets it too, unless the simulations are steady.
    From `start` the steps double until the answer lies between a number that misses and one that
    meets; bisection finds it.
    """
    meets = cache(meets)
    low, high = _bracket(meets, min(max(start, 1), most), most)
    while high is not None:
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if meets(middle) else (middle, high)
        if is_steady or high == most or meets(high + 1):
            return high
        low, high = _bracket(meets, min(high + 2, most), most, least=high + 1)
    return None


def _bracket(
    meets: Callable[[int], bool], start: int, most: int, least: int = 0
) -> tuple[int, int | None]:
    """Return a number of replicas that misses, or `least`, and a larger one that meets, or None."""
    step = 1
    if meets(start):
        high = start
        while (low := max(high - step, least)) > least and meets(low):
            high = low
            step = 2 * step
        return low, high
    low = start
    while low < most:
        high = min(low + step, most)
        if meets(high):
            return low, high
        low = high
        step = 2 * step
    return low, None
