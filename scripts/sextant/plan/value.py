"""The value of information of measurements, and the order in which to measure cells.

Each joint draw of the latencies is a possible truth: it says what every option costs, and what a
measurement would show. After a measurement an option is expected to be worth the mean of its worth
over the draws that look alike there. That mean is a regression of the worth on what is measured
(Strong, Oakley and Brennan, Medical Decision Making 2014), so nothing is fitted again. A draw is
judged by a regression without it: what draws have in common by chance is no gain.

The gain of a cell is the expected rise of the mean worth of all decisions. The largest gain per
cost comes first; each choice takes the cells before it as measured.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.decide.decision import numbers_of_replicas, price_ratios, sustained, worth_of
from sextant.decide.sizing import size_replicas
from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.judge.score import so_score
from sextant.law.calibration import MEASUREMENT_NOISE
from sextant.points.frame import IDENTIFIERS
from sextant.predict.draws import Draws

_OPTIONS = 24  # Of a decision are weighed: those of the highest worth, and those that win.
_NUMBERS = 8_000_000
_FEWEST_DRAWS = 200
_OWN, _OTHERS = 6, 4  # Principal components of measured latencies of the LLM, and of others.
_RIDGE = 1.0  # Pseudo-observations that say a feature has no effect.
_MOST_LEVELS = 8
_UNSURE = (0.05, 0.95)
"""A level is worth a measurement where limits hold with a probability between these."""
_CONTENDER = 0.01  # A GPU profile that is the cheapest in fewer draws than this is not compared.
_STANDARD_ERRORS = 2.0  # By which a gain has to exceed 0.


class Decision(NamedTuple):
    """One LLM for one SLO."""

    slo_id: str
    llm_id: str
    limits: int  #: Index of the SLO's limits in `Decisions.met`.


class Decisions(NamedTuple):
    """Decisions, and what each of their options costs in every draw."""

    X: pd.DataFrame  #: `llm_id, gpu_profile_id, users`, one row per point.
    seen: np.ndarray  #: Log-latencies that a measurement would show, shape (draws, rows, 2).
    met: np.ndarray  #: Whether the limits hold, (sets of limits, draws, rows).
    decisions: list[Decision]
    options: pd.DataFrame  # `gpu_profile_id, replicas, usd_per_hour`, by decision and option.
    ratios: np.ndarray
    """Price over the cheapest that meets the SLO, or inf; (draws, decisions, options)."""
    worth: np.ndarray  #: Of the options, as `bounded_worth` says.
    can_be_met: np.ndarray  #: Whether any option meets the SLO, (draws, decisions).

    def rows(self, llm_id: str, gpu_profile_id: str, users: Sequence[int]) -> np.ndarray:
        """Return the positions of a cell's rows, by rising users."""
        is_it = (self.X["llm_id"] == llm_id) & (self.X["gpu_profile_id"] == gpu_profile_id)
        return np.flatnonzero((is_it & self.X["users"].isin(users)).to_numpy())

    def contenders(self) -> set[tuple[str, str, int]]:
        """Return the LLMs, GPU profiles and limits for which the profile may be the cheapest."""
        contenders, wins = set(), (self.ratios == 1).mean(axis=0)
        for place, decision in enumerate(self.decisions):
            names = self.options.loc[place, "gpu_profile_id"].to_numpy()
            share = pd.Series(wins[place, : len(names)]).groupby(names).sum()
            for name in share.index[share >= _CONTENDER]:
                contenders.add((decision.llm_id, name, decision.limits))
        return contenders

    def ratios_of(self, chosen: np.ndarray) -> np.ndarray:
        """Return the price ratios of an option for each draw and decision, (draws, decisions)."""
        return np.take_along_axis(self.ratios, chosen[..., None], axis=-1)[..., 0]

    def chosen_after(self, measuring: "Sequence[CellChoice]") -> np.ndarray:
        """Return the option chosen in each draw once cells are measured, (draws, decisions)."""
        cells = [self.rows(*each[:3]) for each in measuring]
        llm_ids, chosen = self.X["llm_id"].to_numpy(), np.empty(self.ratios.shape[:2], dtype=int)
        measured = {llm_ids[rows[0]] for rows in cells}
        places: dict[tuple[str, int], list[int]] = {}
        for place, decision in enumerate(self.decisions):
            # All LLMs that are not measured see the same of the others.
            known = decision.llm_id in measured
            key = (decision.llm_id, decision.limits) if known else ("", 0)
            places.setdefault(key, []).append(place)
        shared: dict[str, np.ndarray] = {}
        for (llm_id, limits), same in places.items():
            own = [rows for rows in cells if llm_ids[rows[0]] == llm_id]
            if llm_id not in shared:
                others = [rows for rows in cells if llm_ids[rows[0]] != llm_id]
                parts = [self._components(own, _OWN), self._components(others, _OTHERS)]
                shared[llm_id] = np.hstack([np.ones((len(self.seen), 1)), *parts])
            held = [np.logical_and.accumulate(self.met[limits][:, rows], axis=1) for rows in own]
            features = np.hstack([shared[llm_id], *held])
            chosen[:, same] = _worth_given(features, self.worth[:, same]).argmax(axis=-1)
        return chosen

    def _components(self, cells: Sequence[np.ndarray], most: int) -> np.ndarray:
        """Return the principal components of the log-latencies of cells, (draws, components)."""
        if not cells:
            return np.empty((len(self.seen), 0))
        values = self.seen[:, np.concatenate(cells)].reshape(len(self.seen), -1)
        left, _, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
        return np.asarray(left[:, :most] * np.sqrt(len(left)))


def weigh_decisions(
    draws: Draws, profiles: Mapping[str, GPUProfile], slos: Sequence[SLO], seed: int
) -> Decisions:
    """Return the decisions of each LLM for each SLO. `draws` are joint draws of latencies, of each
    pair at the users that it may serve; `slos` are at their percentiles; `seed` is of the errors.
    """
    llm_ids = list(dict.fromkeys(draws.X["llm_id"]))
    n = max(_NUMBERS // (len(llm_ids) * len(slos) * _OPTIONS), _FEWEST_DRAWS)
    order = draws.X.reset_index(drop=True).sort_values([*IDENTIFIERS, "users"]).index
    X, samples_ms = draws.X.iloc[order].reset_index(drop=True), draws.samples_ms[:n, order]
    noise = np.random.default_rng(seed).normal(0, MEASUREMENT_NOISE, samples_ms.shape)
    of_limits: dict[tuple[Any, ...], int] = {}
    met: list[np.ndarray] = []
    decisions, weighed = [], []
    served: dict[tuple[int, bool], pd.DataFrame] = {}
    for slo in slos:
        limits = of_limits.setdefault(tuple(slo.limits.items()), len(of_limits))
        if limits == len(met):
            met.append(Draws(X, samples_ms).is_met(slo))
        key = limits, slo.users is None
        if key not in served:
            served[key] = sustained(Draws(X, samples_ms), slo, of_load=True)
        for llm_id, part in X.groupby("llm_id", sort=False):
            decisions.append(Decision(slo.slo_id, str(llm_id), limits))
            weighed.append(_weigh(served[key][llm_id], part["users"].unique(), profiles, slo))
    options, ratios, can_be_met = zip(*weighed, strict=True)
    return Decisions(
        X=X,
        seen=np.log(samples_ms) + noise,
        met=np.stack(met),
        decisions=decisions,
        options=pd.concat(options, keys=range(len(options))),
        ratios=(stacked := np.stack(ratios, axis=1)),
        worth=bounded_worth(stacked),
        can_be_met=np.stack(can_be_met, axis=1),
    )


def _weigh(
    served: pd.DataFrame, users: np.ndarray, profiles: Mapping[str, GPUProfile], slo: SLO
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return the options of one LLM for an SLO, their price ratios, and where one meets it."""
    needed = size_replicas(slo.load, served.to_numpy())
    price = np.array([profiles[str(name)].usd_per_hour for name in served])
    counts = numbers_of_replicas(users, needed, slo)
    ratios = price_ratios(needed, price, counts).reshape(len(needed), -1)
    promise = worth_of(ratios).mean(axis=0) + (ratios == 1).mean(axis=0)
    kept = np.sort(np.argsort(-promise, kind="stable")[:_OPTIONS])
    options = pd.DataFrame(
        {
            "gpu_profile_id": np.repeat(served.columns, len(counts))[kept],
            "replicas": np.tile(counts, served.shape[1])[kept],
            "usd_per_hour": np.round(price[:, None] * counts, 9).ravel()[kept],
        }
    )
    padded = np.full((len(ratios), _OPTIONS), np.inf, dtype=np.float32)
    padded[:, : len(kept)] = ratios[:, kept]
    return options, padded, np.asarray(np.isfinite(needed).any(axis=1))


def bounded_worth(ratios: np.ndarray) -> np.ndarray:
    """Return what options are worth, 0 to 1: twice the least price is as bad as a limit broken.
    Without a bound a few draws far out would decide what the mean is."""
    return np.asarray(np.maximum(worth_of(ratios), 0.0))


def _worth_given(features: np.ndarray, worth: np.ndarray) -> np.ndarray:
    """Return the expected worth of options given the features, (draws, decisions, options). Ridge
    regression over all other draws; the first feature is constant."""
    flat = worth.reshape(len(worth), -1)
    ridge = np.diag([0.0, *[_RIDGE] * (features.shape[1] - 1)])
    weights = np.linalg.solve(features.T @ features + ridge, features.T).T
    own = np.clip((weights * features).sum(axis=1), 0, 0.99)[:, None]
    # What a regression without its own draw would say of each draw.
    weights, own = (weights / (1 - own)).astype(flat.dtype), (own / (1 - own)).astype(flat.dtype)
    fitted = weights @ (features.T.astype(flat.dtype) @ flat)
    return np.asarray((fitted - own * flat).reshape(worth.shape))


def expected_so(slo_ids: Sequence[str], ratios: np.ndarray, can_be_met: np.ndarray) -> float:
    """Return the mean over SLOs of the S/O that decisions are expected to have (eq. 5-7). `slo_ids`
    has the SLO of each decision, `ratios` the price ratios of what is chosen and `can_be_met`
    whether any option meets the SLO, both (draws, decisions); what cannot be met is not judged. An
    overspend counts as 1 at most, as in `bounded_worth`."""
    met = np.isfinite(ratios)
    spent = np.where(met, np.minimum(ratios - 1, 1.0), 0.0).sum(axis=0)
    sums = pd.DataFrame({"met": met.sum(axis=0), "judged": can_be_met.sum(axis=0), "spent": spent})
    each = sums.groupby(np.asarray(slo_ids)).sum()
    judged = each[each["judged"] > 0]
    scores = [
        so_score(row.met / row.judged, row.spent / row.met if row.met else None)
        for row in judged.itertuples()
    ]
    return float(np.mean(scores)) if scores else 0.0


class Candidate(NamedTuple):
    """A cell that may be measured."""

    llm_id: str
    gpu_profile_id: str
    levels: tuple[int, ...]  #: Users that may be measured, ascending.
    start_hours: float  #: Of all server starts, and of what else a cell takes whatever its levels.
    level_hours: float  #: Of each level.
    n_devices: int
    usd_per_hour: float  #: Of all devices.


class Budget(NamedTuple):
    """How far to plan; None does not limit."""

    gpu_hours: float | None = None  #: Devices times hours that may be spent.
    at_once: int = 1  #: Cells of a round.
    of_profile: int | None = None
    """Most cells of a round on one GPU profile: servers that run at once."""
    rounds: int | None = None


class CellChoice(NamedTuple):
    """A cell that is worth measuring."""

    llm_id: str
    gpu_profile_id: str
    levels: tuple[int, ...]  #: Those where it is not sure whether limits hold.
    hours: float
    gpu_hours: float
    usd: float
    gain: float  #: Expected rise of the mean worth of a decision, whose largest value is 1.


class Expectation(NamedTuple):
    """What would be answered, and how good that is expected to be."""

    expected_so: float
    answers: pd.DataFrame
    """One row per decision: the option, `probability_met`, and `share`, how likely this is the
    answer once the cells are measured."""


class Round(NamedTuple):
    """Cells that are measured at once, and what is expected after them."""

    cells: tuple[CellChoice, ...]
    after: Expectation


class Stop(StrEnum):
    """Why no further cell is chosen."""

    BUDGET = "the rest of the budget pays for no cell that is worth measuring"
    NOTHING_GAINED = "no cell is expected to change an answer for the better"
    ALL_MEASURED = "no cell is left to measure"
    ENOUGH_ROUNDS = "as many rounds as asked for"


class MeasurementPlan(NamedTuple):
    """What to measure, round by round."""

    now: Expectation
    rounds: tuple[Round, ...]
    stopped: Stop


def order_cells(
    decisions: Sequence[Decisions], candidates: Sequence[Candidate], budget: Budget
) -> MeasurementPlan:
    """Return the cells to measure, in rounds, and what is expected after each. `decisions` has one
    entry for each set of percentiles, with rows of every cell of `candidates`."""
    planner, left = _Planner(decisions, budget), []
    known = [(each, each.contenders()) for each in decisions]
    for each in candidates:
        levels = _unsure_levels(each, known)
        hours = each.start_hours + len(levels) * each.level_hours
        cost = hours, hours * each.n_devices, hours * each.usd_per_hour
        left.append(CellChoice(*each[:2], levels, *cost, gain=0.0))
    rounds: list[Round] = []
    now, stopped = planner.expectation(), None
    while stopped is None:
        if budget.rounds is not None and len(rounds) >= budget.rounds:
            stopped = Stop.ENOUGH_ROUNDS
        elif chosen := planner.take_round(left):
            rounds.append(Round(chosen, planner.expectation()))
            taken = {each[:2] for each in chosen}
            left = [each for each in left if each[:2] not in taken]
        elif not left:
            stopped = Stop.ALL_MEASURED
        else:
            stopped = Stop.NOTHING_GAINED if planner.best(left) is None else Stop.BUDGET
    return MeasurementPlan(now, tuple(rounds), stopped)


class _Planner:
    """The cells that are taken as measured so far, and what they cost."""

    def __init__(self, decisions: Sequence[Decisions], budget: Budget) -> None:
        self.decisions, self.budget = decisions, budget
        self.spent_gpu_hours = 0.0
        self.cells: list[CellChoice] = []
        self.gains: dict[tuple[str, str], float] = {}
        self.worth = self._worth([])

    def take_round(self, left: Sequence[CellChoice]) -> tuple[CellChoice, ...]:
        """Take the cells of the next round as measured; none if none is worth it."""
        chosen: list[CellChoice] = []
        hours, most = self.budget.gpu_hours, self.budget.of_profile or len(left)
        while len(chosen) < self.budget.at_once:
            on_profile = Counter(each.gpu_profile_id for each in chosen)
            taken = {each[:2] for each in chosen}
            best = self.best(
                each
                for each in left
                if each[:2] not in taken
                and on_profile[each.gpu_profile_id] < most
                and (hours is None or self.spent_gpu_hours + each.gpu_hours <= hours)
            )
            if best is None:
                break
            chosen.append(best)
            self.cells.append(best)
            self.spent_gpu_hours += best.gpu_hours
            self.worth = self._worth(self.cells)
        return tuple(chosen)

    def best(self, cells: Iterable[CellChoice]) -> CellChoice | None:
        """Return the cell of the largest gain per cost, None where none is more than chance. A gain
        seldom rises as more is measured: most earlier ones are kept (Minoux's lazy greedy search).
        """

        def last_rate(cell: CellChoice) -> float:
            return self.gains.get(cell[:2], np.inf) / max(cell.gpu_hours, 1e-9)

        best, best_rate = None, 0.0
        for each in sorted(cells, key=lambda each: -last_rate(each)):
            if last_rate(each) <= best_rate:
                break
            gains = self._worth([*self.cells, each]) - self.worth
            gain, error = float(gains.mean()), float(gains.std()) / np.sqrt(len(gains))
            self.gains[each[:2]] = gain
            if gain > _STANDARD_ERRORS * error and last_rate(each) > best_rate:
                best, best_rate = each._replace(gain=gain), last_rate(each)
        return best

    def _ratios(self, cells: Sequence[CellChoice]) -> np.ndarray:
        """Return the price ratios of what is chosen after measuring cells, (draws, decisions)."""
        return _side_by_side([each.ratios_of(each.chosen_after(cells)) for each in self.decisions])

    def _worth(self, cells: Sequence[CellChoice]) -> np.ndarray:
        return np.asarray(bounded_worth(self._ratios(cells)).mean(axis=1))

    def expectation(self) -> Expectation:
        """Return the likeliest answers after the cells taken so far."""
        names = [decision.slo_id for each in self.decisions for decision in each.decisions]
        can_be_met = _side_by_side([each.can_be_met for each in self.decisions])
        so = expected_so(names, self._ratios(self.cells), can_be_met)
        parts = [_likeliest_answers(each, self.cells) for each in self.decisions]
        return Expectation(so, pd.concat(parts, ignore_index=True))


def _side_by_side(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the decisions of all percentiles in one, (draws, decisions)."""
    n_draws = min(map(len, parts))
    return np.concatenate([each[:n_draws] for each in parts], axis=1)


def _unsure_levels(
    candidate: Candidate, known: Sequence[tuple[Decisions, set[tuple[str, str, int]]]]
) -> tuple[int, ...]:
    """Return the levels where it is not sure whether limits hold that may decide. Those are the
    limits for which the cell's GPU profile may be the cheapest. Without any, three levels are left,
    which still inform about other cells. Of many they are the ends and some evenly between."""
    levels, is_unsure = np.array(candidate.levels), np.zeros(len(candidate.levels), dtype=bool)
    for each, contenders in known:
        rows = each.rows(candidate.llm_id, candidate.gpu_profile_id, candidate.levels)
        for limits, met in enumerate(each.met):
            if (*candidate[:2], limits) in contenders:
                holds = np.logical_and.accumulate(met[:, rows], axis=1).mean(axis=0)
                is_unsure |= (holds > _UNSURE[0]) & (holds < _UNSURE[1])
    chosen, most = (levels[is_unsure], _MOST_LEVELS) if is_unsure.any() else (levels, 3)
    spaced = np.linspace(0, len(chosen) - 1, min(len(chosen), most)).round().astype(int)
    return tuple(int(level) for level in chosen[spaced])


def _likeliest_answers(decisions: Decisions, cells: Sequence[CellChoice]) -> pd.DataFrame:
    """Return the likeliest answer of each decision once cells are measured; null without one."""
    rows, chosen = [], decisions.chosen_after(cells)
    ratios = decisions.ratios_of(chosen)
    for place, decision in enumerate(decisions.decisions):
        counts = np.bincount(chosen[:, place])
        best = int(counts.argmax())
        met = np.isfinite(ratios[chosen[:, place] == best, place]).mean()
        row = {"slo_id": decision.slo_id, "llm_id": decision.llm_id}
        if met > 0:
            row |= decisions.options.loc[(place, best)].to_dict()
        rows.append(row | {"probability_met": met, "share": counts[best] / len(chosen)})
    columns = ["slo_id", "llm_id", *decisions.options, "probability_met", "share"]
    return pd.DataFrame(rows, columns=columns).astype({"replicas": "Int64"})
