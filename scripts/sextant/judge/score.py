"""How good recommendations are: success rate, relative overspend, S/O (LLM-Pilot, eq. 5-7)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.decide.sizing import size_replicas
from sextant.points.frame import IDENTIFIERS, TARGETS


def so_score(success_rate: float, overspend: float | None) -> float:
    """Return the harmonic mean of success rate and 1 - overspend, the latter at least 0 (eq. 7).

    Without any success there is no overspend (None) and the score is 0, as it is in the limit.
    """
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
    both stay null.

    Args:
        recommendations: `llm_id, gpu_profile_id, replicas, usd_per_hour`, one row per LLM.
        truth: `decide.sizing.candidates` of the measured latencies of these LLMs.
        optimum: `decide.sizing.recommend_cheapest` of `truth`.
        load: the load to serve: users, or requests a second.
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


class ScoreSummary(NamedTuple):
    """How good the recommendations of several LLMs are."""

    n_llms: int  #: LLMs that could be judged.
    n_left_out: int  #: LLMs that no profile truly serves.
    success_rate: float | None  #: Mean over the judged LLMs; None: there are none.
    overspend: float | None  #: Mean over the successes; None: there are none.
    so_score: float | None  #: None: no LLM could be judged.


def summarize(judged: pd.DataFrame) -> ScoreSummary:
    """Return the scores of judged recommendations (`score_recommendation`)."""
    counted = judged[judged["is_success"].notna()]
    n_left_out = len(judged) - len(counted)
    if counted.empty:
        return ScoreSummary(0, n_left_out, None, None, None)
    success_rate = float(counted["is_success"].astype(float).mean())
    spent = counted.loc[counted["is_success"].astype(bool), "overspend"]
    overspend = float(spent.mean()) if len(spent) else None
    score = so_score(success_rate, overspend)
    return ScoreSummary(len(counted), n_left_out, success_rate, overspend, score)


def mean_scores(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the means of scores over the SLOs, by predictor; `scores` is `Evaluation.scores`."""
    names = ("so_score", "success_rate", "overspend", "mape_nttft", "mape_itl")
    return scores.groupby("predictor", sort=False).agg(
        **{name: (name, "mean") for name in names},
        n_scenarios=("slo_id", "size"),
        # SLOs that share a fit state the same number: it was spent once.
        fit_seconds=("fit_seconds", lambda seconds: seconds.drop_duplicates().sum()),
    )


class LatencyErrors(NamedTuple):
    """Means of |predicted - measured| / measured, fractions; NaN: there are no rows."""

    mape_nttft: float
    mape_itl: float


def mape(predicted: pd.DataFrame, measured: pd.DataFrame) -> LatencyErrors:
    """Return the errors over the rows that both frames have.

    Both have `llm_id, gpu_profile_id, users, nttft_ms, itl_ms`; measured latencies are above 0.
    """
    both = measured.merge(predicted, on=[*IDENTIFIERS, "users"], suffixes=("", "_predicted"))
    errors = [(both[f"{name}_predicted"] - both[name]).abs() / both[name] for name in TARGETS]
    return LatencyErrors(*(float(error.mean()) for error in errors))


class StaticPolicy(NamedTuple):
    """What every LLM gets; all null where no profile serves any LLM."""

    gpu_profile_id: str | None = None
    replicas: int | None = None
    usd_per_hour: float | None = None  #: Of all replicas.

    def decide(self, llm_ids: Sequence[str]) -> pd.DataFrame:
        """Return `llm_id, gpu_profile_id, replicas, usd_per_hour`: the policy for each LLM."""
        return pd.DataFrame({"llm_id": llm_ids, **self._asdict()})


def best_policy(truth: pd.DataFrame, optimum: pd.DataFrame, load: float) -> StaticPolicy:
    """Return the policy that is best in hindsight, LLM-Pilot's baseline (section V-C).

    It is the pair of profile and replicas with the highest S/O (eq. 7) over all measured LLMs,
    the judged ones included, as in the paper: no predictor knows as much. Ties go to the cheaper
    one, then to the first profile by identifier. Tried are the replica counts that some LLM truly
    needs: between two of them no further LLM succeeds while all pay more, so no other count can
    win. Arguments are those of `score_recommendation`.
    """
    llm_ids = sorted(truth["llm_id"].unique())
    tried = truth.loc[truth["status"] == "meets", list(StaticPolicy._fields)].drop_duplicates()
    ranked = []
    for policy in map(StaticPolicy._make, tried.itertuples(index=False, name=None)):
        judged = score_recommendation(policy.decide(llm_ids), truth, optimum, load)
        # Rounded as prices are, or the last digit would decide between equal scores.
        score = round(summarize(judged).so_score or 0.0, 9)
        ranked.append((-score, policy.usd_per_hour, policy.gpu_profile_id, policy))
    return min(ranked)[-1] if ranked else StaticPolicy()
