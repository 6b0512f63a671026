"""A task: the points that predictors are judged on, and the pairs that they may recommend."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import product

import pandas as pd

from sextant.base.errors import InputError
from sextant.decide.sizing import check_curves, ruled_out
from sextant.facts.slo import SLO
from sextant.points.characterization import Characterization
from sextant.points.frame import IDENTIFIERS, LENGTHS, FactTables, Pair


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

    def check_points(self) -> None:
        """Raise InputError where points name what is unknown, or are no curves over users."""
        for column, facts in zip(IDENTIFIERS, (self.facts.llms, self.facts.profiles), strict=True):
            for name in self.points[column].unique():
                if name not in facts:
                    fix = f"add {name!r} to its sheet or remove its points"
                    raise InputError(f"points name the unknown {name!r}", field=column, fix=fix)
        check_curves(self.points)

    def for_slo(self, slo: SLO) -> "Task":
        """Return the task with the points that can judge an SLO: their requests are like the SLO's.

        Raises InputError: there are none, and nothing else is predicted either.
        """
        is_alike = slo.is_of(self.points[LENGTHS].to_numpy(float)) if slo.lengths else None
        if is_alike is None or is_alike.all():
            return self
        if self.has_fixed_lengths and not is_alike.any():
            lengths = self.points[LENGTHS].dropna().drop_duplicates().sort_values(LENGTHS)
            measured = ", ".join(f"{row[0]:.0f}/{row[1]:.0f}" for row in lengths.to_numpy())
            wanted = " and ".join(f"{value:g} {name}" for name, value in slo.lengths.items())
            problem = f"no point of {self.source} has requests like those of {slo.slo_id}: {wanted}"
            fix = f"use lengths that were measured, or leave them out; input/output: {measured}"
            raise InputError(problem, field="input_tokens, output_tokens", fix=fix)
        points = self.points[is_alike]
        if not self.has_fixed_lengths:  # LLMs without such a point are predicted
            return replace(self, points=points)
        llms = {name: self.facts.llms[name] for name in points["llm_id"].unique()}
        return replace(self, points=points, facts=self.facts._replace(llms=llms))


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
    while that LLM is held out. The longest request of an archive is not known: there it may
    recommend the pairs that were measured as feasible, of held-out LLMs too, as in LLM-Pilot.

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
