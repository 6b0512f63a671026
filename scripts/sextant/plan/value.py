"""What measurements are worth to the decisions that answers make.

Each joint draw of the latencies is a possible truth: it says what every option costs, and what a
measurement would show. After a measurement an option is expected to be worth the mean of its worth
over the draws that look alike there. That mean is a regression of the worth on what is measured
(Strong, Oakley and Brennan, Medical Decision Making 2014), so nothing is fitted again. A draw is
judged by a regression without it: what draws have in common by chance is no gain.
"""

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.decide.decision import numbers_of_replicas, price_ratios, sustained, worth_of
from sextant.decide.sizing import size_replicas
from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.judge.score import so_score
from sextant.law.calibration import MEASUREMENT_NOISE
from sextant.points.frame import IDENTIFIERS, KEYS
from sextant.predict.predictor import Draws

_OPTIONS = 24
"""Options of a decision that are compared: the options of the highest worth and those that are the
cheapest in most draws."""
_NUMBERS = 8_000_000  # Price ratios that are held at once.
_FEWEST_DRAWS = 200
_COMPONENTS = 6  # Principal components of the measured latencies of the decision's LLM.
_COMPONENTS_OF_OTHERS = 4  # Principal components of the measured latencies of other LLMs.
_RIDGE = 1.0  # Pseudo-observations that say a feature has no effect.
_CONTENDER = 0.01  # A GPU profile that is the cheapest in fewer draws than this is not compared.


Needs = Mapping[tuple[str, str], pd.DataFrame]
"""Replicas by SLO and LLM: a row per draw, a column per GPU profile; infinite: none are enough."""


class LLMDecision(NamedTuple):
    """One LLM for one SLO."""

    slo_id: str
    llm_id: str
    limits: int  #: Index of the SLO's limits in `Decisions.met`.


class Point(NamedTuple):
    """An LLM on a GPU profile at a number of users."""

    llm_id: str
    gpu_profile_id: str
    users: int


class Contender(NamedTuple):
    """A GPU profile that may be the cheapest for an LLM within some limits."""

    llm_id: str
    gpu_profile_id: str
    limits: int  #: As of `LLMDecision`.


class Decisions(NamedTuple):
    """Decisions, and what each of their options costs in every draw."""

    points: Sequence[Point]  #: One per row.
    seen: np.ndarray  #: Log-latencies that a measurement would show, shape (draws, rows, 2).
    met: np.ndarray  #: Whether the limits hold, (sets of limits, draws, rows).
    decisions: list[LLMDecision]
    options: pd.DataFrame  # `gpu_profile_id, replicas, usd_per_hour`, by decision and option.
    ratios: np.ndarray
    """Price over the cheapest that meets the SLO, or inf; (draws, decisions, options)."""
    worth: np.ndarray  #: Of the options, as `bounded_worth` says.
    can_be_met: np.ndarray  #: Whether any option meets the SLO, (draws, decisions).

    def rows(self, llm_id: str, gpu_profile_id: str, users: Collection[int]) -> np.ndarray:
        """Return the positions of a cell's rows, by rising users."""
        return np.array(
            [
                row
                for row, point in enumerate(self.points)
                if point.llm_id == llm_id
                and point.gpu_profile_id == gpu_profile_id
                and point.users in users
            ],
            dtype=int,
        )

    def contenders(self) -> set[Contender]:
        """Return the GPU profiles that may be the cheapest, by LLM and limits."""
        contenders = set()
        wins = (self.ratios == 1).mean(axis=0)
        for index, decision in enumerate(self.decisions):
            profile_ids = self.options.loc[index, "gpu_profile_id"].to_numpy()
            share = pd.Series(wins[index, : len(profile_ids)]).groupby(profile_ids).sum()
            for profile_id in share.index[share >= _CONTENDER]:
                contenders.add(Contender(decision.llm_id, profile_id, decision.limits))
        return contenders

    def ratios_of(self, chosen: np.ndarray) -> np.ndarray:
        """Return the price ratios of an option for each draw and decision, (draws, decisions)."""
        return np.take_along_axis(self.ratios, chosen[..., None], axis=-1)[..., 0]

    def chosen_after(self, cells: Sequence[np.ndarray]) -> np.ndarray:
        """Return the option chosen in each draw once cells are measured, (draws, decisions). A cell
        is the positions of its measured rows, as `rows` returns them."""
        measured_llms = {self.points[rows[0]].llm_id for rows in cells}

        # Decisions about LLMs that are not measured see the same of the others.
        alike: dict[tuple[str, int], list[int]] = {}
        for index, decision in enumerate(self.decisions):
            is_measured = decision.llm_id in measured_llms
            key = (decision.llm_id, decision.limits) if is_measured else ("", 0)
            alike.setdefault(key, []).append(index)

        chosen = np.empty(self.ratios.shape[:2], dtype=int)
        latencies: dict[str, np.ndarray] = {}  # features by LLM
        for (llm_id, limits), indices in alike.items():
            of_llm = [rows for rows in cells if self.points[rows[0]].llm_id == llm_id]
            if llm_id not in latencies:
                of_others = [rows for rows in cells if self.points[rows[0]].llm_id != llm_id]
                latencies[llm_id] = np.hstack(
                    [
                        np.ones((len(self.seen), 1)),
                        self._components(of_llm, _COMPONENTS),
                        self._components(of_others, _COMPONENTS_OF_OTHERS),
                    ]
                )
            holds_up_to = [
                np.logical_and.accumulate(self.met[limits][:, rows], axis=1) for rows in of_llm
            ]
            features = np.hstack([latencies[llm_id], *holds_up_to])
            chosen[:, indices] = _worth_given(features, self.worth[:, indices]).argmax(axis=-1)
        return chosen

    def likeliest_answers(self, chosen: np.ndarray) -> pd.DataFrame:
        """Return the option that most draws choose for each decision; null where it meets the SLO
        in no draw. `chosen` is shaped (draws, decisions)."""
        ratios = self.ratios_of(chosen)
        rows = []
        for index, decision in enumerate(self.decisions):
            counts = np.bincount(chosen[:, index])
            best = int(counts.argmax())
            met = np.isfinite(ratios[chosen[:, index] == best, index]).mean()
            row = {"slo_id": decision.slo_id, "llm_id": decision.llm_id}
            if met > 0:
                row |= self.options.loc[(index, best)].to_dict()
            rows.append(row | {"probability_met": met, "share": counts[best] / len(chosen)})

        columns = ["slo_id", "llm_id", *self.options, "probability_met", "share"]
        return pd.DataFrame(rows, columns=columns).astype({"replicas": "Int64"})

    def _components(self, cells: Sequence[np.ndarray], most: int) -> np.ndarray:
        """Return the principal components of the log-latencies of cells, (draws, components)."""
        if not cells:
            return np.empty((len(self.seen), 0))
        values = self.seen[:, np.concatenate(cells)].reshape(len(self.seen), -1)
        left, _, _ = np.linalg.svd(values - values.mean(axis=0), full_matrices=False)
        return np.asarray(left[:, :most] * np.sqrt(len(left)))


def weigh_decisions(
    draws: Draws,
    profiles: Mapping[str, GPUProfile],
    slos: Sequence[SLO],
    seed: int,
    sized: Needs = MappingProxyType({}),
) -> Decisions:
    """Return the decisions of each LLM for each SLO.

    Args:
        draws: joint draws of latencies, of each pair at the users that it may serve.
        profiles: by name.
        slos: at the percentiles of the draws.
        seed: of the measurements' errors.
        sized: what request rates need, from the same draws; other loads follow from latencies.
    """
    llm_ids = list(dict.fromkeys(draws.X["llm_id"]))
    n_draws = max(_NUMBERS // (len(llm_ids) * len(slos) * _OPTIONS), _FEWEST_DRAWS)
    order = draws.X.reset_index(drop=True).sort_values([*IDENTIFIERS, "users"]).index
    X = draws.X.iloc[order].reset_index(drop=True)
    samples_ms = draws.samples_ms[:n_draws, order]
    ordered = Draws(X, samples_ms)
    noise = np.random.default_rng(seed).normal(0, MEASUREMENT_NOISE, samples_ms.shape)

    index_of_limits: dict[tuple[Any, ...], int] = {}
    met: list[np.ndarray] = []
    decisions: list[LLMDecision] = []
    weighed: list[_WeighedOptions] = []
    loads: dict[tuple[int, bool], pd.DataFrame] = {}
    for slo in slos:
        limits = index_of_limits.setdefault(tuple(slo.limits.items()), len(index_of_limits))
        if limits == len(met):
            met.append(ordered.is_met(slo))
        key = limits, slo.users is None
        if key not in loads:
            loads[key] = sustained(ordered, slo, of_load=True)
        for llm_id, rows in X.groupby("llm_id", sort=False):
            decisions.append(LLMDecision(slo.slo_id, str(llm_id), limits))
            served = loads[key][llm_id]
            needed = pd.DataFrame(size_replicas(slo.load, served), columns=served.columns)
            if (slo.slo_id, str(llm_id)) in sized:
                of_draws = sized[slo.slo_id, str(llm_id)].iloc[: len(samples_ms)]
                needed = of_draws.reindex(columns=served.columns, fill_value=np.inf)
            weighed.append(_weigh(needed, rows["users"].unique(), profiles, slo))

    ratios = np.stack([options.ratios for options in weighed], axis=1)
    return Decisions(
        points=[Point(*key) for key in X[KEYS].itertuples(index=False, name=None)],
        seen=np.log(samples_ms) + noise,
        met=np.stack(met),
        decisions=decisions,
        options=pd.concat([options.options for options in weighed], keys=range(len(weighed))),
        ratios=ratios,
        worth=bounded_worth(ratios),
        can_be_met=np.stack([options.can_be_met for options in weighed], axis=1),
    )


class _WeighedOptions(NamedTuple):
    """The options of one decision, as `Decisions` has them of all."""

    options: pd.DataFrame
    ratios: np.ndarray  #: (draws, options)
    can_be_met: np.ndarray  #: (draws,)


def _weigh(
    needs: pd.DataFrame, users: np.ndarray, profiles: Mapping[str, GPUProfile], slo: SLO
) -> _WeighedOptions:
    """Return the options of one LLM for an SLO. `needs` are the replicas that it takes, by draw and
    GPU profile; `users` are the levels of its latencies."""
    needed = needs.to_numpy(float)
    price = np.array([profiles[str(profile_id)].usd_per_hour for profile_id in needs])
    counts = numbers_of_replicas(users, needed, slo)
    ratios = price_ratios(needed, price, counts).reshape(len(needed), -1)

    promise = worth_of(ratios).mean(axis=0) + (ratios == 1).mean(axis=0)
    kept = np.sort(np.argsort(-promise, kind="stable")[:_OPTIONS])
    options = pd.DataFrame(
        {
            "gpu_profile_id": np.repeat(needs.columns, len(counts))[kept],
            "replicas": np.tile(counts, needs.shape[1])[kept],
            "usd_per_hour": np.round(price[:, None] * counts, 9).ravel()[kept],
        }
    )
    padded = np.full((len(ratios), _OPTIONS), np.inf, dtype=np.float32)
    padded[:, : len(kept)] = ratios[:, kept]
    return _WeighedOptions(options, padded, np.asarray(np.isfinite(needed).any(axis=1)))


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
    leverage = np.clip((weights * features).sum(axis=1), 0, 0.99)[:, None]

    # What a regression without a draw says of that draw.
    weights = (weights / (1 - leverage)).astype(flat.dtype)
    odds = (leverage / (1 - leverage)).astype(flat.dtype)
    fitted = weights @ (features.T.astype(flat.dtype) @ flat)
    return np.asarray((fitted - odds * flat).reshape(worth.shape))


def expected_so(slo_ids: Sequence[str], ratios: np.ndarray, can_be_met: np.ndarray) -> float:
    """Return the mean over SLOs of the S/O that decisions are expected to have (eq. 5-7).

    An SLO that no option can meet is not judged. An overspend counts as 1 at most, as in
    `bounded_worth`.

    Args:
        slo_ids: the SLO of each decision.
        ratios: price ratios of the chosen options, (draws, decisions).
        can_be_met: whether any option meets the SLO, (draws, decisions).
    """
    met = np.isfinite(ratios)
    spent = np.where(met, np.minimum(ratios - 1, 1.0), 0.0).sum(axis=0)
    sums = pd.DataFrame({"met": met.sum(axis=0), "judged": can_be_met.sum(axis=0), "spent": spent})
    by_slo = sums.groupby(np.asarray(slo_ids)).sum()
    judged = by_slo[by_slo["judged"] > 0]
    scores = [
        so_score(row.met / row.judged, row.spent / row.met if row.met else None)
        for row in judged.itertuples()
    ]
    return float(np.mean(scores)) if scores else 0.0
