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
    """Return what a predictor is judged on, with the pairs that it may recommend.

    It may recommend the pairs that memory facts allow: what a probe shows of an LLM is not known
    while that LLM is held out. The longest request of an archive is not known; its pairs are those
    that were measured as feasible, of held-out LLMs too, as in LLM-Pilot.

    Args:
        source: name of the characterization.
        points: of one workload and scenario.
        tried: rows of the table `feasibility`.
        facts: of all LLMs and of the candidate GPU profiles.
        longest_request_tokens: of the workload; None: not known.
        memory_utilization: share of the memory that servers may use.
        has_fixed_lengths: whether each point has its own lengths.
    """
    pairs = pd.Series([*tried[IDENTIFIERS].itertuples(index=False, name=None)], dtype=object)
    is_feasible = tried["is_feasible"].to_numpy(bool)
    feasible = {*pairs[is_feasible]}
    failed = {*pairs[~is_feasible]}
    served = {pair for pair in feasible if pair[1] in facts.profiles}
    if longest_request_tokens is not None:
        reasons = {
            llm_id: ruled_out(llm, facts.profiles, longest_request_tokens, memory_utilization)
            for llm_id, llm in facts.llms.items()
        }
        every_pair = product(facts.llms, facts.profiles)
        feasible = {pair for pair in every_pair if pair[1] not in reasons[pair[0]]}
    return Task(source, points, facts, feasible, failed, served, has_fixed_lengths)


def task_of_characterization(characterization: Characterization) -> Task:
    """Return what a predictor is judged on by all points of a characterization."""
    return task_of(
        characterization.source,
        characterization.points,
        characterization.feasibility,
        FactTables(characterization.llms, characterization.profiles, characterization.features),
        characterization.longest_request_tokens,
        characterization.memory_utilization,
        has_fixed_lengths=characterization.has_fixed_lengths,
    )
