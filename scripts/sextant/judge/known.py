"""How well a deployment is known, by facts: what its LLM is, and what the training had seen."""

import pandas as pd

from sextant.facts.llm import LLM, served
from sextant.law.fact_rows import fact_rows
from sextant.law.plausible import impossible
from sextant.points.frame import TARGETS, FactTables

FOUR_BITS = "4 bits"
NEW_ATTENTION = "new attention"
EXPERTS = "experts"
DENSE = "dense"
LLM_KINDS = {
    DENSE: "every other LLM: no experts, attention over all tokens, 8 bits or more",
    EXPERTS: "a mixture of experts",
    NEW_ATTENTION: "a latent vector (MLA), windows, or layers that keep a state",
    FOUR_BITS: "weights of 4 bits (INT4, MXFP4, NVFP4)",
}
"""Kinds of LLM as served, from the best known one to the least known one. An LLM that is several
of these counts as the last."""
KNOWN = ["llm_kind", "is_version_new", "is_maker_new", "is_impossible"]
_VERSION = ["engine", "engine_version"]
_MOST_FOUR_BITS = 5.0
"""Bits of a weight of 4 bits with its scales."""


def llm_kind(llm: LLM) -> str:
    """Return the kind of an LLM in the precision in which it is served, one of `LLM_KINDS`."""
    bits = llm.expert_bits or llm.weight_bits
    if 0 < bits <= _MOST_FOUR_BITS:
        return FOUR_BITS
    if llm.kv_latent_size or llm.n_sliding_layers or llm.state_bytes_per_request:
        return NEW_ATTENTION
    return EXPERTS if llm.n_experts else DENSE


def how_known(held_out: pd.DataFrame, training: pd.DataFrame, facts: FactTables) -> pd.DataFrame:
    """Return `KNOWN` of held-out points, indexed as they are.

    Args:
        held_out: points (`at_percentile`), whole deployments.
        training: the points that the predictor has seen.
        facts: of the LLMs and GPU profiles of both.
    """
    ways = held_out[["llm_id", "precision"]].astype(object).where(held_out.notna(), None)
    kinds = {
        way: llm_kind(served(facts.llms[way[0]], way[1]))
        for way in set(ways.itertuples(index=False, name=None))
    }
    versions = _versions(held_out)
    makers = _makers(held_out, facts)
    y_ms = held_out[TARGETS].to_numpy(float)
    return pd.DataFrame(
        {
            "llm_kind": [kinds[way] for way in ways.itertuples(index=False, name=None)],
            "is_version_new": ~versions.isin(_versions(training).unique()),
            "is_maker_new": ~makers.isin(_makers(training, facts).unique()),
            "is_impossible": impossible(fact_rows(held_out, facts), y_ms),
        },
        index=held_out.index,
    )[KNOWN]


def _versions(points: pd.DataFrame) -> pd.Series:
    return points[_VERSION].astype(object).fillna("").agg(" ".join, axis=1)


def _makers(points: pd.DataFrame, facts: FactTables) -> pd.Series:
    makers = {name: profile.gpu.maker for name, profile in facts.profiles.items()}
    return points["gpu_profile_id"].map(makers)
