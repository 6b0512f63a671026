"""What the decisions of a sheet are worth in each draw, and what they would be worth told more.

Each draw is a possible truth: it says what every option costs, and what a measurement would show.
Told of a measurement, a decision maker expects of an option the mean of its worth over the draws
that look alike there. That mean is a regression of the worth on what is measured (Strong, Oakley
and Brennan, Medical Decision Making 2014), so nothing is fitted again. A draw is left out of the
regression that it is judged by: what draws have in common by chance is no gain.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.decide.decision import numbers_of_replicas, price_ratios, worth_of
from sextant.decide.score import so_score
from sextant.decide.sizing import load_served
from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.points.characterizations.points import IDENTIFIERS, LENGTHS
from sextant.predict.latencies import Draws

_OPTIONS = 24
"""Options of a decision that are weighed: those of the highest worth, and those that win."""
_NUMBERS = 8_000_000
_FEWEST_DRAWS = 200
_NOISE = 0.05
"""Standard deviation of the logarithm of a measurement, as of `sextant.predict.calibration`."""
_OWN, _OTHERS = 6, 4
"""Principal components of what is measured of the LLM itself, and of other LLMs."""
_RIDGE = 1.0
"""Pseudo-observations that say a feature tells nothing."""


class Decision(NamedTuple):
    """One LLM for one SLO."""

    slo_id: str
    llm_id: str
    limits: int
    """Index of the SLO's limits in `Stakes.met`."""


class Stakes(NamedTuple):
    """Decisions, and what each of their options costs in every draw."""

    X: pd.DataFrame
    """`llm_id, gpu_profile_id, users`, a row a point."""
    seen: np.ndarray
    """Log-latencies that a measurement would show, shape (draws, rows, 2)."""
    met: np.ndarray
    """Whether the limits hold, (sets of limits, draws, rows)."""
    decisions: list[Decision]
    options: pd.DataFrame
    """`gpu_profile_id, replicas, usd_per_hour`, indexed by decision and option."""
    ratios: np.ndarray
    """Price over that of the cheapest option that meets the SLO, infinite where the option does
    not meet it; (draws, decisions, options)."""
    worth: np.ndarray
    """Of the options, as `bounded_worth` says."""
    can_be_met: np.ndarray
    """Whether any option meets the SLO, (draws, decisions)."""

    def rows(self, llm_id: str, gpu_profile_id: str, users: Sequence[int]) -> np.ndarray:
        """Return the places of a cell's rows, by rising users."""
        is_it = (self.X["llm_id"] == llm_id) & (self.X["gpu_profile_id"] == gpu_profile_id)
        return np.flatnonzero((is_it & self.X["users"].isin(users)).to_numpy())

    def rivals(self, llm_id: str, least: float) -> dict[str, set[int]]:
        """Return the sets of limits for which each GPU profile is the cheapest that meets an SLO
        in at least so large a part of the draws, for one LLM.
        """
        found: dict[str, set[int]] = {}
        wins = (self.ratios == 1).mean(axis=0)
        for place, decision in enumerate(self.decisions):
            if decision.llm_id == llm_id:
                names = self.options.loc[place, "gpu_profile_id"].to_numpy()
                share = pd.Series(wins[place, : len(names)]).groupby(names).sum()
                for name in share.index[share >= least]:
                    found.setdefault(name, set()).add(decision.limits)
        return found

    def ratios_of(self, chosen: np.ndarray) -> np.ndarray:
        """Return the price ratios of an option for each draw and decision, (draws, decisions)."""
        return np.take_along_axis(self.ratios, chosen[..., None], axis=-1)[..., 0]

    def chosen_after(self, cells: Sequence[np.ndarray]) -> np.ndarray:
        """Return the option that would be chosen in each draw, (draws, decisions).

        Args:
            cells: what is measured: the places of the rows of each cell, by rising users.
        """
        chosen = np.empty(self.ratios.shape[:2], dtype=int)
        for features, places in self._features(cells):
            chosen[:, places] = _told(features, self.worth[:, places]).argmax(axis=-1)
        return chosen

    def _features(self, cells: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, list[int]]]:
        """Yield what the measurements show, (draws, features), of decisions that see the same."""
        llm_ids = self.X["llm_id"].to_numpy()
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
            yield np.hstack([shared[llm_id], *held]), same

    def _components(self, cells: Sequence[np.ndarray], most: int) -> np.ndarray:
        """Return what varies most of the log-latencies of cells, (draws, components)."""
        if not cells:
            return np.empty((len(self.seen), 0))
        values = self.seen[:, np.concatenate(cells)].reshape(len(self.seen), -1)
        left, _, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
        return left[:, :most] * np.sqrt(len(left))


def stakes_of(
    draws: Draws, profiles: Mapping[str, GPUProfile], slos: Sequence[SLO], seed: int
) -> Stakes:
    """Return the decisions of each LLM for each SLO.

    Args:
        draws: joint draws of the latencies of LLMs; of each pair the users that it may serve.
        profiles: GPU profiles with their prices.
        slos: SLOs at the percentiles of the draws.
        seed: seed of the errors of measurements.
    """
    llm_ids = list(dict.fromkeys(draws.X["llm_id"]))
    n = max(_NUMBERS // (len(llm_ids) * len(slos) * _OPTIONS), _FEWEST_DRAWS)
    order = draws.X.reset_index(drop=True).sort_values([*IDENTIFIERS, "users"]).index
    X, samples_ms = draws.X.iloc[order].reset_index(drop=True), draws.samples_ms[:n, order]
    noise = np.random.default_rng(seed).normal(0, _NOISE, samples_ms.shape)
    lengths = X[LENGTHS].to_numpy(float)
    of_limits: dict[tuple, int] = {}
    met: list[np.ndarray] = []
    decisions, found = [], []
    loads: dict[tuple, pd.DataFrame] = {}
    for slo in slos:
        limits = of_limits.setdefault(tuple(slo.limits.items()), len(of_limits))
        if limits == len(met):
            met.append(slo.meets(samples_ms, lengths))
        for llm_id, part in X.groupby("llm_id", sort=False):
            key = limits, slo.users is None, llm_id
            if key not in loads:
                loads[key] = _loads(part, samples_ms, lengths, slo)
            decisions.append(Decision(slo.slo_id, str(llm_id), limits))
            found.append(_weighed(loads[key], part["users"].unique(), profiles, slo))
    options, ratios, can_be_met = zip(*found, strict=True)
    return Stakes(
        X=X,
        seen=np.log(samples_ms) + noise,
        met=np.stack(met),
        decisions=decisions,
        options=pd.concat(options, keys=range(len(options))),
        ratios=(stacked := np.stack(ratios, axis=1)),
        worth=bounded_worth(stacked),
        can_be_met=np.stack(can_be_met, axis=1),
    )


def _loads(X: pd.DataFrame, samples_ms: np.ndarray, lengths: np.ndarray, slo: SLO) -> pd.DataFrame:
    """Return the most load that a replica serves in each draw, a column a GPU profile."""
    users, served = X["users"].to_numpy(), {}
    for name, places in X.groupby("gpu_profile_id").indices.items():
        rows = X.index[places]
        served[name] = load_served(users[places], samples_ms[:, rows], lengths[rows], slo)
    return pd.DataFrame(served)


def _weighed(
    served: pd.DataFrame, users: np.ndarray, profiles: Mapping[str, GPUProfile], slo: SLO
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Return the options of one LLM for an SLO, their price ratios, and where one meets it."""
    loads = served.to_numpy()
    with np.errstate(divide="ignore"):
        needed = np.where(loads > 0, np.ceil(slo.load / loads), np.inf)
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

    Without a bound a few draws far out would decide what the mean is.
    """
    return np.maximum(worth_of(ratios), 0.0)


def _told(features: np.ndarray, worth: np.ndarray) -> np.ndarray:
    """Return what options are worth to one who sees the features: ridge regression over all other
    draws, (draws, decisions, options); the first feature is constant.
    """
    flat = worth.reshape(len(worth), -1)
    ridge = np.diag([0.0, *[_RIDGE] * (features.shape[1] - 1)])
    weights = np.linalg.solve(features.T @ features + ridge, features.T).T
    own = np.clip((weights * features).sum(axis=1), 0, 0.99)[:, None]
    # What a regression without its own draw would say of each draw.
    weights, own = (weights / (1 - own)).astype(flat.dtype), (own / (1 - own)).astype(flat.dtype)
    fitted = weights @ (features.T.astype(flat.dtype) @ flat)
    return (fitted - own * flat).reshape(worth.shape)


def expected_so(slo_ids: Sequence[str], ratios: np.ndarray, can_be_met: np.ndarray) -> float:
    """Return the mean over SLOs of the S/O that decisions are expected to have (eq. 5-7).

    An overspend counts as 1 at most, as in `bounded_worth`.

    Args:
        slo_ids: the SLO of each decision.
        ratios: price ratios of what is chosen, (draws, decisions).
        can_be_met: where any option meets the SLO; what cannot be met is not judged.
    """
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
