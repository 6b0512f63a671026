"""A task: the points that predictors are judged on, and the pairs that they may recommend."""

from collections.abc import Collection
from dataclasses import dataclass
from itertools import product

import pandas as pd

from sextant.decide.sizing import ruled_out
from sextant.points.characterization import Characterization
from sextant.points.frame import IDENTIFIERS, FactTables, Pair


@dataclass(frozen=True)
class Task:
    """What a predictor is given to learn from, and which pairs it may recommend."""

    source: str  #: Name of the characterization.
    points: pd.DataFrame  #: Closed-loop points of one workload and scenario, as the store has them.
    facts: FactTables  #: Of all LLMs, measured or not, and of the GPU profiles on offer.
    feasible: Collection[Pair]  #: (LLM, GPU profile) pairs that memory facts allow.
    failed: Collection[Pair] = frozenset()
    """Pairs that were tried and do not fit; no predictor knows of them."""
    served: Collection[Pair] = frozenset()
    """Pairs that were measured, whatever memory facts say; no predictor knows of them."""
    has_fixed_lengths: bool = False
    """Whether each point has requests of its own lengths, not one workload's for all."""


def task_of(
    source: str,
    points: pd.DataFrame,
    tried: pd.DataFrame,
    facts: FactTables,
    longest_request_tokens: int | None,
    memory_utilization: float,
    *,
    has_fixed_lengths: bool = False,
) -> Task:
    """Return what a predictor is judged on, with the pairs that it may recommend. Those are the
    pairs that memory facts allow, as what a probe has shown of an LLM is not known of one that is
    held out; for an archive, whose longest request is not known, those that it found feasible, of
    held-out LLMs too: so did LLM-Pilot. The points are of one workload and scenario, `tried` are
    rows of table `feasibility`, `facts` of all LLMs and of the candidate GPU profiles; with
    `has_fixed_lengths` each point has its own lengths."""
    pairs = pd.Series([*tried[IDENTIFIERS].itertuples(index=False, name=None)], dtype=object)
    is_feasible = tried["is_feasible"].to_numpy(bool)
    found, failed = {*pairs[is_feasible]}, {*pairs[~is_feasible]}
    served = {pair for pair in found if pair[1] in facts.profiles}
    if longest_request_tokens is not None:
        how = facts.profiles, longest_request_tokens, memory_utilization
        reasons = {llm_id: ruled_out(llm, *how) for llm_id, llm in facts.llms.items()}
        every = product(facts.llms, facts.profiles)
        found = {(llm_id, name) for llm_id, name in every if name not in reasons[llm_id]}
    return Task(source, points, facts, found, failed, served, has_fixed_lengths)


def task_of_characterization(known: Characterization) -> Task:
    """Return what a predictor is judged on by all points of a characterization."""
    return task_of(
        known.source,
        known.points,
        known.feasibility,
        FactTables(known.llms, known.profiles, known.features),
        known.longest_request_tokens,
        known.memory_utilization,
        has_fixed_lengths=known.has_fixed_lengths,
    )
