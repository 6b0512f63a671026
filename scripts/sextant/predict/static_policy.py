"""The best fixed answer: the same GPU profile and number of replicas for every LLM."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

import pandas as pd

from sextant.characterizations.points import IDENTIFIERS, TARGETS
from sextant.decide.recommend import candidates, recommend
from sextant.decide.score import judge, summarize
from sextant.experiment.slo import SLO
from sextant.hardware.gpu import GPUProfile
from sextant.predict.references import Rows


class Policy(NamedTuple):
    """What every LLM gets."""

    gpu_profile_id: str | None
    replicas: int | None
    usd_per_hour: float | None
    """Of all replicas."""


class StaticPolicy:
    """The baseline without a prediction (LLM-Pilot, section V-C), the best in hindsight.

    The policy is the pair of profile and replicas with the highest S/O (eq. 7) over all
    measured LLMs, those it is judged on included, as in the paper: no other predictor knows
    as much. Ties go to the cheaper one, then to the first profile by identifier. Replica
    counts tried on a profile are those that some LLM truly needs there: between two of them
    no further LLM succeeds while all pay more, so none other can win.
    """

    depends_on = ("nttft_ms", "itl_ms", "percentile", "users")
    min_training_llms = 1

    def __init__(self, slo: SLO, profiles: Mapping[str, GPUProfile], seed: int) -> None:
        self.slo, self.profiles = slo, profiles

    def fit(self, training: Rows) -> Self:
        """Choose the policy; a row without a latency meets no limit."""
        latencies = training.X[[*IDENTIFIERS, "users"]].join(training.y[TARGETS])
        llm_ids = sorted(latencies["llm_id"].unique())
        truth = candidates(latencies, llm_ids, self.profiles, self.slo)
        optimum = recommend(truth)
        columns = list(Policy._fields)
        tried = truth.loc[truth["status"] == "meets", columns].drop_duplicates()
        ranked = []
        for policy in map(Policy._make, tried.itertuples(index=False, name=None)):
            judged = judge(_apply(policy, llm_ids), truth, optimum, self.slo.users)
            # Rounded as prices are, or the last digit would decide between equal scores.
            score = round(summarize(judged)["so_score"], 9)
            ranked.append((-score, policy.usd_per_hour, policy.gpu_profile_id, policy))
        self.policy_ = min(ranked)[-1] if ranked else None
        return self

    def decide(self, llm_ids: Sequence[str]) -> pd.DataFrame:
        """Return `llm_id, gpu_profile_id, replicas, usd_per_hour`: the policy for each LLM.

        All but `llm_id` are null where no profile served any training LLM.
        """
        return _apply(self.policy_ or Policy(None, None, None), llm_ids)


def _apply(policy: Policy, llm_ids: Sequence[str]) -> pd.DataFrame:
    return pd.DataFrame({"llm_id": llm_ids, **policy._asdict()})
