"""The best fixed answer: the same GPU profile and number of replicas for every LLM."""

from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from sextant.decide.score import judge, summarize


class Policy(NamedTuple):
    """What every LLM gets; all null where no profile serves any LLM."""

    gpu_profile_id: str | None = None
    replicas: int | None = None
    usd_per_hour: float | None = None
    """Of all replicas."""

    def decide(self, llm_ids: Sequence[str]) -> pd.DataFrame:
        """Return `llm_id, gpu_profile_id, replicas, usd_per_hour`: the policy for each LLM."""
        return pd.DataFrame({"llm_id": llm_ids, **self._asdict()})


def best_policy(truth: pd.DataFrame, optimum: pd.DataFrame, load: float) -> Policy:
    """Return the policy that is best in hindsight, LLM-Pilot's baseline (section V-C).

    It is the pair of profile and replicas with the highest S/O (eq. 7) over all measured LLMs,
    those it is judged on included, as in the paper: no predictor knows as much. Ties go to the
    cheaper one, then to the first profile by identifier. Replica counts tried on a profile are
    those that some LLM truly needs there: between two of them no further LLM succeeds while all
    pay more, so no other count can win.

    Args:
        truth: `sextant.decide.recommend.candidates` of the measured latencies.
        optimum: `sextant.decide.recommend.recommend` of `truth`.
        load: what the SLO wants served: users, or requests a second.
    """
    llm_ids = sorted(truth["llm_id"].unique())
    tried = truth.loc[truth["status"] == "meets", list(Policy._fields)].drop_duplicates()
    ranked = []
    for policy in map(Policy._make, tried.itertuples(index=False, name=None)):
        score = summarize(judge(policy.decide(llm_ids), truth, optimum, load))["so_score"]
        # Rounded as prices are, or the last digit would decide between equal scores.
        ranked.append((-round(score, 9), policy.usd_per_hour, policy.gpu_profile_id, policy))
    return min(ranked)[-1] if ranked else Policy()
