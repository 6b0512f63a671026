"""Which (LLM, GPU profile) pairs may be recommended, and which were tried and do not fit."""

from collections.abc import Mapping

import pandas as pd

from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM
from sextant.points.cells.memory import assess
from sextant.points.characterizations.characterization import Characterization
from sextant.points.characterizations.features import Facts
from sextant.points.characterizations.points import IDENTIFIERS, Pair
from sextant.predict.folds import Task


def task_of(
    source: str,
    points: pd.DataFrame,
    tried: pd.DataFrame,
    facts: Facts,
    longest_request_tokens: int | None,
    memory_utilization: float,
    *,
    has_fixed_lengths: bool = False,
) -> Task:
    """Return what a predictor is judged on, with the pairs that it may recommend.

    Those are the pairs that facts allow (`feasible_pairs`); for an archive, whose longest request
    is not known, those that it found feasible, of held-out LLMs too: so did LLM-Pilot.

    Args:
        source: name of the characterization.
        points: points of one workload and scenario.
        tried: rows of table `feasibility`.
        facts: of all LLMs and of the GPU profiles on offer.
        longest_request_tokens: input and output of the workload's longest request, if known.
        memory_utilization: fraction of the memory that servers may use.
        has_fixed_lengths: whether each point has requests of its own lengths.
    """
    is_feasible = tried["is_feasible"].astype(bool)
    found = _pairs(tried[is_feasible])
    served = {pair for pair in found if pair[1] in facts.profiles}
    if longest_request_tokens is not None:
        found = feasible_pairs(facts, longest_request_tokens, memory_utilization)
    failed = _pairs(tried[~is_feasible])
    return Task(source, points, facts, found, failed, served, has_fixed_lengths)


def task_of_characterization(known: Characterization) -> Task:
    """Return what a predictor is judged on by all points of a characterization."""
    return task_of(
        known.source,
        known.points,
        known.feasibility,
        Facts(known.llms, known.profiles, known.features),
        known.longest_request_tokens,
        known.memory_utilization,
        has_fixed_lengths=known.has_fixed_lengths,
    )


def _pairs(tried: pd.DataFrame) -> set[Pair]:
    return set(tried[IDENTIFIERS].itertuples(index=False, name=None))


def feasible_pairs(
    facts: Facts, longest_request_tokens: int, memory_utilization: float
) -> set[Pair]:
    """Return the pairs that facts allow to serve a workload's longest request.

    Facts only: what a probe has shown of an LLM is not known of one that is held out.
    """
    pairs = {(llm_id, profile_id) for llm_id in facts.llms for profile_id in facts.profiles}
    for llm_id, llm in facts.llms.items():
        reasons = ruled_out(llm, facts.profiles, longest_request_tokens, memory_utilization)
        pairs -= {(llm_id, profile_id) for profile_id in reasons}
    return pairs


def ruled_out(
    llm: LLM,
    profiles: Mapping[str, GPUProfile],
    longest_request_tokens: int,
    memory_utilization: float,
) -> dict[str, str]:
    """Return why an LLM cannot serve a workload's longest request, by the profiles that cannot."""
    if llm.context_tokens < longest_request_tokens:
        limit = f"the longest request's {longest_request_tokens}"
        reason = f"its context of {llm.context_tokens} tokens is below {limit}"
        return dict.fromkeys(profiles, reason)
    verdicts = {
        name: assess(llm, each.devices, memory_utilization, longest_request_tokens).verdict
        for name, each in profiles.items()
    }
    return {name: verdict.why for name, verdict in verdicts.items() if verdict.why}
