"""What the decisions of a sheet are worth in each draw, and what they would be worth told more.

Each draw is a possible truth: it says what every option costs, and what a measurement would show.
Told of a measurement, a decision maker expects of an option the mean of its worth over the draws
that look alike there. That mean is a regression of the worth on what is measured (Strong, Oakley
and Brennan, Medical Decision Making 2014), so nothing is fitted again. A draw is left out of the
regression that it is judged by: what draws have in common by chance is no gain.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.decide.decision import numbers_of_replicas, price_ratios, worth_of
from sextant.decide.recommend import load_served
from sextant.decide.score import so_score
from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.points.characterizations.points import IDENTIFIERS, LENGTHS
from sextant.predict.draws import Draws

_OPTIONS = 24
"""Options of a decision that are weighed: those of the highest worth, and those that win."""
_NUMBERS = 8_000_000
_FEWEST_DRAWS = 200
_NOISE = 0.05
"""Standard deviation of the logarithm of a measurement, as of `sextant.predict.own_points`."""
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
