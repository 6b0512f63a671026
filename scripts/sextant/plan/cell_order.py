"""The order in which to measure cells.

The gain of a cell is the expected rise of the mean worth of all decisions (`value`). The largest
gain per cost comes first; each choice takes the cells before it as measured.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.files import jsonable
from sextant.plan.value import Contender, Decisions, bounded_worth, expected_so

_MOST_LEVELS = 8
_LEVELS_WITHOUT_DOUBT = 3
_UNSURE = (0.05, 0.95)
"""A level is worth a measurement where limits hold with a probability between these."""
_STANDARD_ERRORS = 2.0  # By which a gain has to exceed 0.


@dataclass(frozen=True)
class Candidate:
    """A cell that may be measured."""

    llm_id: str
    gpu_profile_id: str
    levels: tuple[int, ...]  #: Users that may be measured, ascending.
    start_hours: float  #: Of all server starts, and of what else a cell takes whatever its levels.
    level_hours: float  #: Of each level.
    n_devices: int
    usd_per_hour: float  #: Of all devices.

    @property
    def least_gpu_hours(self) -> float:
        """Devices times hours with one level."""
        return (self.start_hours + self.level_hours) * self.n_devices

    def unsure_levels(
        self, decisions: Sequence[Decisions], contenders: Sequence[set[Contender]]
    ) -> tuple[int, ...]:
        """Return the levels at which to measure the cell.

        A level counts if it is not sure whether limits hold there, for limits within which the
        GPU profile may be the cheapest (`contenders`, for each of `decisions`). Without such a
        level, three levels are returned: they still inform about other cells. If too many levels
        count, the ends and some evenly between are returned.
        """
        levels = np.array(self.levels)
        is_unsure = np.zeros(len(levels), dtype=bool)
        for of_percentiles, of_contenders in zip(decisions, contenders, strict=True):
            rows = of_percentiles.rows(self.llm_id, self.gpu_profile_id, self.levels)
            for limits, met in enumerate(of_percentiles.met):
                if Contender(self.llm_id, self.gpu_profile_id, limits) in of_contenders:
                    holds = np.logical_and.accumulate(met[:, rows], axis=1).mean(axis=0)
                    is_unsure |= (holds > _UNSURE[0]) & (holds < _UNSURE[1])

        most = _LEVELS_WITHOUT_DOUBT
        if is_unsure.any():
            levels = levels[is_unsure]
            most = _MOST_LEVELS
        spaced = np.linspace(0, len(levels) - 1, min(len(levels), most)).round().astype(int)
        return tuple(int(level) for level in levels[spaced])

    def at(self, levels: tuple[int, ...]) -> "CellChoice":
        """Return the cell with its cost at some levels; its gain is not known yet."""
        hours = self.start_hours + len(levels) * self.level_hours
        return CellChoice(
            llm_id=self.llm_id,
            gpu_profile_id=self.gpu_profile_id,
            levels=levels,
            hours=hours,
            gpu_hours=hours * self.n_devices,
            usd=hours * self.usd_per_hour,
            gain=0.0,
        )


@dataclass(frozen=True)
class Budget:
    """How far to plan; None does not limit."""

    gpu_hours: float | None = None  #: Devices times hours that may be spent.
    at_once: int = 1  #: Cells of a round.
    of_profile: int | None = None
    """Most cells of a round on one GPU profile: servers that run at once."""
    rounds: int | None = None


@dataclass(frozen=True)
class CellChoice:
    """A cell that is worth measuring."""

    llm_id: str
    gpu_profile_id: str
    levels: tuple[int, ...]  #: Users at which it is not sure whether limits hold.
    hours: float
    gpu_hours: float
    usd: float
    gain: float  #: Expected rise of the mean worth of a decision, whose largest value is 1.

    @property
    def pair(self) -> tuple[str, str]:
        """LLM and GPU profile."""
        return self.llm_id, self.gpu_profile_id


@dataclass(frozen=True)
class Expectation:
    """What would be answered, and how good that is expected to be."""

    expected_so: float
    answers: pd.DataFrame
    """One row per decision: the option, `probability_met`, and `share`, how likely this is the
    answer once the cells are measured."""


@dataclass(frozen=True)
class Round:
    """Cells that are measured at once, and what is expected after them."""

    cells: tuple[CellChoice, ...]
    after: Expectation


class Stop(StrEnum):
    """Why no further cell is chosen."""

    BUDGET = "the rest of the budget pays for no cell that is worth measuring"
    NOTHING_GAINED = "no cell is expected to change an answer for the better"
    ALL_MEASURED = "no cell is left to measure"
    ENOUGH_ROUNDS = "as many rounds as asked for"


@dataclass(frozen=True)
class MeasurementPlan:
    """What to measure, round by round."""

    now: Expectation
    rounds: tuple[Round, ...]
    stopped: Stop
    notes: tuple[str, ...] = ()  #: What the answers assume.

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON value: the fields, and the name of the `Stop`."""
        return {**jsonable(asdict(self)), "stopped": self.stopped.name.lower()}


def order_cells(
    decisions: Sequence[Decisions], candidates: Sequence[Candidate], budget: Budget
) -> MeasurementPlan:
    """Return the cells to measure, in rounds, and what is expected after each. `decisions` has one
    entry for each set of percentiles, with rows of every cell of `candidates`."""
    planner = _Planner(decisions, budget)
    contenders = [of_percentiles.contenders() for of_percentiles in decisions]
    cells_left = [
        candidate.at(candidate.unsure_levels(decisions, contenders)) for candidate in candidates
    ]

    now = planner.expectation()
    rounds: list[Round] = []
    stopped = None
    while stopped is None:
        if budget.rounds is not None and len(rounds) >= budget.rounds:
            stopped = Stop.ENOUGH_ROUNDS
        elif chosen := planner.take_round(cells_left):
            rounds.append(Round(chosen, planner.expectation()))
            taken = {cell.pair for cell in chosen}
            cells_left = [cell for cell in cells_left if cell.pair not in taken]
        elif not cells_left:
            stopped = Stop.ALL_MEASURED
        else:
            is_any_worth_it = planner.best(cells_left) is not None
            stopped = Stop.BUDGET if is_any_worth_it else Stop.NOTHING_GAINED
    return MeasurementPlan(now, tuple(rounds), stopped)


class _Planner:
    """The cells that are taken as measured so far, and what they cost."""

    def __init__(self, decisions: Sequence[Decisions], budget: Budget) -> None:
        self.decisions = decisions
        self.budget = budget
        self.spent_gpu_hours = 0.0
        self.cells: list[CellChoice] = []
        self.gains: dict[tuple[str, str], float] = {}
        self.worth = self._worth([])

    def take_round(self, cells_left: Sequence[CellChoice]) -> tuple[CellChoice, ...]:
        """Take the cells of the next round as measured; none if none is worth it."""
        chosen: list[CellChoice] = []
        while len(chosen) < self.budget.at_once:
            best = self.best(self._affordable(cells_left, chosen))
            if best is None:
                break
            chosen.append(best)
            self.cells.append(best)
            self.spent_gpu_hours += best.gpu_hours
            self.worth = self._worth(self.cells)
        return tuple(chosen)

    def _affordable(
        self, cells_left: Sequence[CellChoice], chosen: Sequence[CellChoice]
    ) -> list[CellChoice]:
        """Return the cells that may join the chosen ones of a round."""
        budget_hours = self.budget.gpu_hours
        most_of_profile = self.budget.of_profile or len(cells_left)
        n_on_profile = Counter(cell.gpu_profile_id for cell in chosen)
        taken = {cell.pair for cell in chosen}
        return [
            cell
            for cell in cells_left
            if cell.pair not in taken
            and n_on_profile[cell.gpu_profile_id] < most_of_profile
            and (budget_hours is None or self.spent_gpu_hours + cell.gpu_hours <= budget_hours)
        ]

    def best(self, cells: Iterable[CellChoice]) -> CellChoice | None:
        """Return the cell of the largest gain per cost, None where none is more than chance. A gain
        seldom rises as more is measured: most earlier ones are kept (Minoux's lazy greedy search).
        """

        def last_rate(cell: CellChoice) -> float:
            return self.gains.get(cell.pair, np.inf) / max(cell.gpu_hours, 1e-9)

        best = None
        best_rate = 0.0
        for cell in sorted(cells, key=lambda cell: -last_rate(cell)):
            if last_rate(cell) <= best_rate:
                break
            gains = self._worth([*self.cells, cell]) - self.worth
            gain = float(gains.mean())
            error = float(gains.std()) / np.sqrt(len(gains))
            self.gains[cell.pair] = gain
            if gain > _STANDARD_ERRORS * error and last_rate(cell) > best_rate:
                best = replace(cell, gain=gain)
                best_rate = last_rate(cell)
        return best

    def _ratios(self, cells: Sequence[CellChoice]) -> np.ndarray:
        """Return the price ratios of what is chosen after measuring cells, (draws, decisions)."""
        return _side_by_side(
            [
                of_percentiles.ratios_of(_chosen_after(of_percentiles, cells))
                for of_percentiles in self.decisions
            ]
        )

    def _worth(self, cells: Sequence[CellChoice]) -> np.ndarray:
        """Return the mean worth of all decisions after measuring cells, (draws,)."""
        return np.asarray(bounded_worth(self._ratios(cells)).mean(axis=1))

    def expectation(self) -> Expectation:
        """Return the likeliest answers after the cells taken so far."""
        slo_ids = [
            decision.slo_id
            for of_percentiles in self.decisions
            for decision in of_percentiles.decisions
        ]
        can_be_met = _side_by_side([of_percentiles.can_be_met for of_percentiles in self.decisions])
        so = expected_so(slo_ids, self._ratios(self.cells), can_be_met)
        answers = [
            of_percentiles.likeliest_answers(_chosen_after(of_percentiles, self.cells))
            for of_percentiles in self.decisions
        ]
        return Expectation(so, pd.concat(answers, ignore_index=True))


def _chosen_after(decisions: Decisions, cells: Sequence[CellChoice]) -> np.ndarray:
    """Return the option chosen in each draw once cells are measured, (draws, decisions)."""
    return decisions.chosen_after(
        [decisions.rows(cell.llm_id, cell.gpu_profile_id, cell.levels) for cell in cells]
    )


def _side_by_side(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the decisions of all percentiles in one, (draws, decisions)."""
    n_draws = min(map(len, parts))
    return np.concatenate([part[:n_draws] for part in parts], axis=1)
