"""The order in which to measure cells: the largest expected gain per cost comes first.

A gain is by how much the mean worth of all decisions is expected to rise (`stakes`). Within a round
cells are chosen one after another, those before assumed measured; so are rounds.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.answer.plan.stakes import Stakes, bounded_worth, expected_so

_MOST_LEVELS = 8
_UNSURE = (0.05, 0.95)
"""A level is worth a measurement where limits hold with a probability between these."""
_RIVAL = 0.01
"""A GPU profile that is the cheapest in fewer draws than this is not compared."""
_SURE = 2.0
"""Standard errors by which a gain has to exceed 0."""


_Rivals = dict[str, dict[str, set[int]]]
"""By LLM and GPU profile, the sets of limits for which that may be the cheapest profile."""


class Candidate(NamedTuple):
    """A cell that was not measured."""

    llm_id: str
    gpu_profile_id: str
    levels: tuple[int, ...]
    """Users that may be measured, ascending."""
    start_hours: float
    """Of all server starts, and of what else a cell takes whatever its levels."""
    level_hours: float
    """Of each level."""
    n_devices: int
    usd_per_hour: float
    """Of all devices."""


class Limits(NamedTuple):
    """How far to plan; None does not limit."""

    gpu_hours: float | None = None
    """Devices times hours that may be spent."""
    usd: float | None = None
    until_so: float | None = None
    """The expected S/O that is enough."""
    at_once: int = 1
    """Cells of a round."""
    of_profile: int | None = None
    """Most cells of a round on one GPU profile: servers that run at once."""
    rounds: int | None = None


class Choice(NamedTuple):
    """A cell that is worth measuring."""

    llm_id: str
    gpu_profile_id: str
    levels: tuple[int, ...]
    """Those where it is not sure whether limits hold."""
    hours: float
    gpu_hours: float
    usd: float
    gain: float
    """Expected rise of the mean worth of a decision, whose largest value is 1."""


class Outlook(NamedTuple):
    """What would be answered, and how good that is expected to be."""

    expected_so: float
    answers: pd.DataFrame
    """`slo_id, llm_id, gpu_profile_id, replicas, usd_per_hour, probability_met, share`, a row a
    decision; `share` is how likely this is the answer, told of the measurements."""


class Round(NamedTuple):
    """Cells that are measured at once, and what is expected to be known after them."""

    cells: tuple[Choice, ...]
    after: Outlook


class Stop(StrEnum):
    """Why no further cell is chosen."""

    BUDGET = "what is left of the budget pays for no cell that is worth it"
    SURE = "the answers are as sure as asked for"
    NOTHING_GAINED = "no cell is expected to change an answer for the better"
    ALL_MEASURED = "no cell is left to measure"
    ENOUGH_ROUNDS = "as many rounds as asked for"


class Order(NamedTuple):
    """What to measure, round by round."""

    now: Outlook
    rounds: tuple[Round, ...]
    stopped: Stop


def order(stakes: Sequence[Stakes], candidates: Sequence[Candidate], limits: Limits) -> Order:
    """Return the cells to measure, in rounds, and what is expected after each.

    Args:
        stakes: what is to decide; one for each set of percentiles. Every cell has rows in each.
        candidates: cells that may be measured.
        limits: the budget, and what is enough.
    """
    planner = _Planner(stakes, limits)
    rivals = [
        {llm_id: each.rivals(llm_id, _RIVAL) for llm_id in {it.llm_id for it in candidates}}
        for each in stakes
    ]
    left = [planner.choice(each, rivals) for each in candidates]
    rounds: list[Round] = []
    now, stopped = planner.outlook(), None
    while stopped is None:
        if limits.until_so is not None and planner.expected_so() >= limits.until_so:
            stopped = Stop.SURE
        elif limits.rounds is not None and len(rounds) >= limits.rounds:
            stopped = Stop.ENOUGH_ROUNDS
        elif chosen := planner.take_round(left):
            rounds.append(Round(chosen, planner.outlook()))
            taken = {each[:2] for each in chosen}
            left = [each for each in left if each[:2] not in taken]
        else:
            stopped = planner.why_none(left)
    return Order(now, tuple(rounds), stopped)


class _Planner:
    """What is assumed measured so far, and what is spent on it."""

    def __init__(self, stakes: Sequence[Stakes], limits: Limits) -> None:
        self.stakes, self.limits = stakes, limits
        self.spent_gpu_hours = self.spent_usd = 0.0
        self.cells: list[Choice] = []
        self.gains: dict[tuple[str, str], float] = {}
        self.worth = self._worth([])

    def choice(self, candidate: Candidate, rivals: Sequence[_Rivals]) -> Choice:
        """Return a candidate with the levels that are worth measuring, and what these cost."""
        levels = _unsure_levels(self.stakes, candidate, rivals)
        hours = candidate.start_hours + len(levels) * candidate.level_hours
        cost = hours, hours * candidate.n_devices, hours * candidate.usd_per_hour
        return Choice(*candidate[:2], levels, *cost, gain=0.0)

    def take_round(self, left: Sequence[Choice]) -> tuple[Choice, ...]:
        """Return the cells of the next round, assumed measured; none if none is worth it."""
        chosen: list[Choice] = []
        while len(chosen) < self.limits.at_once:
            on_profile = Counter(each.gpu_profile_id for each in chosen)
            most, taken = self.limits.of_profile or len(left), {each[:2] for each in chosen}
            best = self._best(
                each
                for each in left
                if each[:2] not in taken
                and on_profile[each.gpu_profile_id] < most
                and self._is_affordable(each)
            )
            if best is None:
                break
            chosen.append(best)
            self.cells.append(best)
            self.spent_gpu_hours += best.gpu_hours
            self.spent_usd += best.usd
            self.worth = self._worth(self.cells)
        return tuple(chosen)

    def _best(self, cells: Iterable[Choice]) -> Choice | None:
        """Return the cell of the largest gain per cost, None where no gain is more than chance.

        A gain seldom rises by what was measured before, so most of those that were found before
        need no second look (Minoux's lazy greedy search).
        """
        by_old = sorted(cells, key=lambda each: -self._old_rate(each))
        best, best_rate = None, 0.0
        for each in by_old:
            if self._old_rate(each) <= best_rate:
                break
            gains = self._worth([*self.cells, each]) - self.worth
            gain, error = float(gains.mean()), float(gains.std()) / np.sqrt(len(gains))
            self.gains[each[:2]] = gain
            if gain > _SURE * error and gain / self._cost(each) > best_rate:
                best, best_rate = each._replace(gain=gain), gain / self._cost(each)
        return best

    def _old_rate(self, cell: Choice) -> float:
        return self.gains.get(cell[:2], np.inf) / self._cost(cell)

    def _cost(self, cell: Choice) -> float:
        return max(cell.gpu_hours if self.limits.usd is None else cell.usd, 1e-9)

    def _is_affordable(self, cell: Choice) -> bool:
        hours, usd = self.limits.gpu_hours, self.limits.usd
        return (hours is None or self.spent_gpu_hours + cell.gpu_hours <= hours) and (
            usd is None or self.spent_usd + cell.usd <= usd
        )

    def why_none(self, left: Sequence[Choice]) -> Stop:
        """Say why no cell was chosen of those that are left."""
        if not left:
            return Stop.ALL_MEASURED
        return Stop.NOTHING_GAINED if self._best(left) is None else Stop.BUDGET

    def _rows(self, stakes: Stakes, cells: Sequence[Choice]) -> list[np.ndarray]:
        return [stakes.rows(each.llm_id, each.gpu_profile_id, each.levels) for each in cells]

    def _ratios(self, cells: Sequence[Choice]) -> np.ndarray:
        """Return what is chosen costs over the least price, (draws, decisions), told of cells."""
        found = [it.ratios_of(it.chosen_after(self._rows(it, cells))) for it in self.stakes]
        return self._of_all(found)

    def _of_all(self, parts: Sequence[np.ndarray]) -> np.ndarray:
        """Return the decisions of all percentiles in one, (draws, decisions)."""
        n_draws = min(map(len, parts))
        return np.concatenate([each[:n_draws] for each in parts], axis=1)

    def _worth(self, cells: Sequence[Choice]) -> np.ndarray:
        """Return the mean worth over all decisions in each draw, told of the cells."""
        return bounded_worth(self._ratios(cells)).mean(axis=1)

    def expected_so(self) -> float:
        """Return the S/O that decisions are expected to have, told of what is assumed measured."""
        names = [decision.slo_id for each in self.stakes for decision in each.decisions]
        can_be_met = self._of_all([each.can_be_met for each in self.stakes])
        return expected_so(names, self._ratios(self.cells), can_be_met)

    def outlook(self) -> Outlook:
        """Return the likeliest answers, told of what is assumed measured."""
        parts = [_answers(each, self._rows(each, self.cells)) for each in self.stakes]
        return Outlook(self.expected_so(), pd.concat(parts, ignore_index=True))


def _unsure_levels(
    stakes: Sequence[Stakes], candidate: Candidate, rivals: Sequence[_Rivals]
) -> tuple[int, ...]:
    """Return the levels where it is not sure whether limits hold that may decide.

    Those are the limits for which the cell's GPU profile may be the cheapest. Without any, three
    levels are left: they still tell of other cells. Of many they are the ends and what lies evenly
    between.
    """
    levels, is_unsure = np.array(candidate.levels), np.zeros(len(candidate.levels), dtype=bool)
    for each, rival in zip(stakes, rivals, strict=True):
        rows = each.rows(candidate.llm_id, candidate.gpu_profile_id, candidate.levels)
        for limits in rival[candidate.llm_id].get(candidate.gpu_profile_id, ()):
            holds = np.logical_and.accumulate(each.met[limits][:, rows], axis=1).mean(axis=0)
            is_unsure |= (holds > _UNSURE[0]) & (holds < _UNSURE[1])
    chosen, most = (levels[is_unsure], _MOST_LEVELS) if is_unsure.any() else (levels, 3)
    spaced = np.linspace(0, len(chosen) - 1, min(len(chosen), most)).round().astype(int)
    return tuple(int(level) for level in chosen[spaced])


def _answers(stakes: Stakes, cells: Sequence[np.ndarray]) -> pd.DataFrame:
    """Return the likeliest answer of each decision, told of cells; null where no option serves."""
    rows, chosen = [], stakes.chosen_after(cells)
    ratios = stakes.ratios_of(chosen)
    for place, decision in enumerate(stakes.decisions):
        counts = np.bincount(chosen[:, place])
        best = int(counts.argmax())
        met = np.isfinite(ratios[chosen[:, place] == best, place]).mean()
        row = {"slo_id": decision.slo_id, "llm_id": decision.llm_id}
        if met > 0:
            row |= stakes.options.loc[(place, best)].to_dict()
        rows.append(row | {"probability_met": met, "share": counts[best] / len(chosen)})
    columns = ["slo_id", "llm_id", *stakes.options, "probability_met", "share"]
    return pd.DataFrame(rows, columns=columns).astype({"replicas": "Int64"})
