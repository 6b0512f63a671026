"""How good recommendations are: success rate, relative overspend, S/O (LLM-Pilot, eq. 5-7)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.decide.sizing import size_replicas
from sextant.points.frame import IDENTIFIERS, TARGETS


def so_score(success_rate: float, overspend: float | None) -> float:
    """Return the harmonic mean of success rate and 1 - overspend, the latter at least 0 (eq. 7).
    Without any success there is no overspend (None) and the score is 0, as it is in the limit."""
    if overspend is None or success_rate == 0:
        return 0.0
    thrift = max(0.0, 1.0 - overspend)
    return 2 * success_rate * thrift / (success_rate + thrift)


def score_recommendation(
    recommendations: pd.DataFrame, truth: pd.DataFrame, optimum: pd.DataFrame, load: float
) -> pd.DataFrame:
    """Return the recommendations with `is_success` (eq. 5) and `overspend` (eq. 6).

    Success is to carry the whole load within the limits in truth; the overspend is the share paid
    above the truly cheapest deployment. It is a failure to recommend no profile, one that truly
    serves no user, or one never measured. An LLM that no profile truly serves cannot be judged:
    both stay null. `recommendations` have `llm_id, gpu_profile_id, replicas, usd_per_hour`, a row
    per LLM; `truth` are `sizing.candidates` of the measured latencies of these LLMs, `optimum` is
    `sizing.recommend` of them; `load` is what the SLO wants served: users, or requests a second.
    """
    served = truth.set_index(IDENTIFIERS)["load_per_replica"]
    best_usd = optimum.set_index("llm_id")["usd_per_hour"]
    pairs = pd.MultiIndex.from_frame(recommendations[IDENTIFIERS])
    needed = size_replicas(load, served.reindex(pairs).to_numpy(float))
    is_enough = recommendations["replicas"].fillna(0).to_numpy(float) >= needed
    best = recommendations["llm_id"].map(best_usd).to_numpy(float)
    success = pd.array(is_enough, dtype="boolean")
    success[np.isnan(best)] = pd.NA
    usd = recommendations["usd_per_hour"].to_numpy(float)
    overspend = np.where(is_enough, (usd - best) / best, np.nan)
    return recommendations.assign(is_success=success, overspend=overspend)


def summarize(judged: pd.DataFrame) -> dict[str, Any]:
    """Return `n_llms` (judged), `n_left_out`, `success_rate`, `overspend` and `so_score`. The
    success rate is the mean over the LLMs that `judge` could judge, the overspend the mean over the
    successes, None where there is none; with no LLM judged all three are None."""
    counted = judged[judged["is_success"].notna()]
    summary = {"n_llms": len(counted), "n_left_out": len(judged) - len(counted)}
    if counted.empty:
        return summary | {"success_rate": None, "overspend": None, "so_score": None}
    success_rate = float(counted["is_success"].astype(float).mean())
    spent = counted.loc[counted["is_success"].astype(bool), "overspend"]
    overspend = float(spent.mean()) if len(spent) else None
    return summary | {
        "success_rate": success_rate,
        "overspend": overspend,
        "so_score": so_score(success_rate, overspend),
    }


def mape(predicted: pd.DataFrame, measured: pd.DataFrame) -> dict[str, float]:
    """Return `mape_nttft` and `mape_itl`, the mean of |predicted - measured| / measured. Both
    frames have `llm_id, gpu_profile_id, users, nttft_ms, itl_ms`; the mean is over the rows that
    they share (NaN if none), as a fraction. Measured latencies are above 0."""
    both = measured.merge(predicted, on=[*IDENTIFIERS, "users"], suffixes=("", "_predicted"))
    errors = {t: (both[f"{t}_predicted"] - both[t]).abs() / both[t] for t in TARGETS}
    return {f"mape_{t.removesuffix('_ms')}": float(error.mean()) for t, error in errors.items()}


class StaticPolicy(NamedTuple):
    """What every LLM gets; all null where no profile serves any LLM."""

    gpu_profile_id: str | None = None
    replicas: int | None = None
    usd_per_hour: float | None = None  # of all replicas

    def decide(self, llm_ids: Sequence[str]) -> pd.DataFrame:
        """Return `llm_id, gpu_profile_id, replicas, usd_per_hour`: the policy for each LLM."""
        return pd.DataFrame({"llm_id": llm_ids, **self._asdict()})


def best_policy(truth: pd.DataFrame, optimum: pd.DataFrame, load: float) -> StaticPolicy:
    """Return the policy that is best in hindsight, LLM-Pilot's baseline (section V-C). It is the
    pair of profile and replicas with the highest S/O (eq. 7) over all measured LLMs, those it is
    judged on included, as in the paper: no predictor knows as much. Ties go to the cheaper one,
    then to the first profile by identifier. Replica counts tried on a profile are those that some
    LLM truly needs there: between two of them no further LLM succeeds while all pay more, so no
    other count can win. Arguments are those of `judge`."""
    llm_ids = sorted(truth["llm_id"].unique())
    tried = truth.loc[truth["status"] == "meets", list(StaticPolicy._fields)].drop_duplicates()
    ranked = []
    for policy in map(StaticPolicy._make, tried.itertuples(index=False, name=None)):
        score = summarize(score_recommendation(policy.decide(llm_ids), truth, optimum, load))[
            "so_score"
        ]
        # Rounded as prices are, or the last digit would decide between equal scores.
        ranked.append((-round(score, 9), policy.usd_per_hour, policy.gpu_profile_id, policy))
    return min(ranked)[-1] if ranked else StaticPolicy()
