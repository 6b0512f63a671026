"""Predictors: latencies of an LLM that was never measured on a GPU profile.

In go the points of a characterization and the facts of LLMs and GPU profiles; out come latencies,
or joint draws of them, for every held-out and every new LLM. This file says what a predictor is
given and which there are, and has what is made of draws, the calibration by measurements of the LLM
itself included. Read then `folds`, which fits predictors; `features` and `tuning` are what they
share, `accuracy` judges. Then one file per predictor: `llm_pilot`, `rf` and `paris` (over
`forest`), `selecta`, `perfnet`, `perfnetv2`, `morphling` (over `network`), and `roofline/`.
"""

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.points.frame import FLOOR_MS, LENGTHS, TARGETS, FactTables, is_refused, limited

Settings = dict[str, Any]
"""Hyperparameters by name."""
Profiles = Mapping[str, GPUProfile]


class TrainingRows(NamedTuple):
    """Points as predictors take them, sorted by LLM, GPU profile and users."""

    X: pd.DataFrame
    """Design matrix: `llm_id, gpu_profile_id, users`, then features (NaN: not known)."""
    y: pd.DataFrame
    """`nttft_ms, itl_ms` and `throughput_tok_s` (NaN: not published), indexed as `X`."""

    def where(self, is_kept: pd.Series) -> Self:
        """Return the rows of a boolean mask."""
        return type(self)(self.X[is_kept], self.y[is_kept])

    def of(self, llm_ids: Collection[str]) -> Self:
        """Return the rows of these LLMs."""
        return self.where(self.X["llm_id"].isin(llm_ids))

    def without(self, llm_ids: Collection[str]) -> Self:
        """Return the rows of all other LLMs."""
        return self.where(~self.X["llm_id"].isin(llm_ids))

    def on(self, profile_ids: Collection[str]) -> Self:
        """Return the rows on these GPU profiles."""
        return self.where(self.X["gpu_profile_id"].isin(profile_ids))


def reference_profiles(profiles: Profiles) -> tuple[str, str]:
    """Return the weakest and the strongest GPU profile, where a new LLM is measured first.

    PARIS (Yadwadkar et al., SoCC 2017) measures on the two ends of the range; LLM-Pilot (section
    V-C) takes 1×T4 and 4×H100. They are ordered by the memory of all devices, then by bandwidth,
    arithmetic and identifier.
    """

    def strength(name: str) -> tuple[float, float, float]:
        gpu, n = profiles[name].gpu, profiles[name].n_gpus
        return n * gpu.memory_gib, n * gpu.memory_bandwidth_gb_s, n * gpu.dense_16bit_tflops

    ordered = sorted(sorted(profiles), key=strength)
    return ordered[0], ordered[-1]


class Predictor:
    """What both kinds share. A predictor is made for one SLO and fitted on measured points."""

    depends_on: tuple[str, ...] = ("percentiles", "first_token")
    """Attributes of the SLO that a fit depends on: SLOs alike in them share one fit."""
    min_training_llms = 2
    """With fewer measured LLMs it cannot be fitted."""
    uses_references = False
    """Whether a new LLM is measured on the two reference profiles before it is predicted."""

    def __init__(
        self, slo: SLO, profiles: Profiles, seed: int, settings: Settings | None = None
    ) -> None:
        self.slo, self.profiles, self.seed, self.settings = slo, profiles, seed, settings

    def design(self, keys: pd.DataFrame, facts: FactTables) -> pd.DataFrame:
        """Return what the predictor learns from: `llm_id, gpu_profile_id, users`, then features.

        `keys` have `llm_id, gpu_profile_id, users, input_tokens, output_tokens`, one row per point;
        the lengths are the workload's means, NaN where they are not known.
        """
        from sextant.predict.features import design_matrix  # laws are given facts, not features

        return design_matrix(keys, facts.features)

    def fit(self, training: TrainingRows, references: TrainingRows | None = None) -> Self:
        """Fit on points, and on those few that were measured of the LLM to be predicted."""
        raise NotImplementedError


class PointPredictor(Predictor):
    """Predicts one latency for each row: eq. 1-3 of LLM-Pilot recommend from it."""

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms, itl_ms`, above 0 and indexed as `X`, which `design` returned."""
        raise NotImplementedError


class JointPredictor(Predictor):
    """Draws what the latencies may be: medians, intervals and probabilities follow."""

    def sample(self, X: pd.DataFrame) -> np.ndarray:
        """Return joint draws of nTTFT and ITL in ms, shape (draws, rows of `X`, 2).

        They are joint over all rows: an LLM that is slower than expected on one GPU profile is
        so on the others. A row has the same draws whatever other rows are asked for.
        """
        raise NotImplementedError

    def energy(
        self, training: pd.DataFrame, asked: pd.DataFrame, facts: FactTables, itl_ms: np.ndarray
    ) -> pd.DataFrame | None:
        """Return `JOULES` of an output token, indexed as `asked`; null where TDP is not known.

        `training` are measured points with `itl_ms, energy_j_per_token`, `asked` keys as `design`
        takes them, `itl_ms` draws of theirs, (draws, rows). None where too few LLMs have energy.
        """
        return None


class Place(NamedTuple):
    """Where a class is, and which optional libraries it needs."""

    class_name: str
    module: str
    libraries: tuple[str, ...] = ()  #: Modules of the extra `baselines` of pyproject.toml.


_KERAS = ("keras", "jax")

PREDICTORS = {
    "roofline": Place("Roofline", "sextant.law.roofline"),
    "llm_pilot": Place("LLMPilot", "sextant.predict.llm_pilot"),
    "rf": Place("RandomForest", "sextant.predict.rf"),
    "paris": Place("PARIS", "sextant.predict.paris"),
    "selecta": Place("Selecta", "sextant.predict.selecta", ("surprise",)),
    "perfnet": Place("PerfNet", "sextant.predict.perfnet", _KERAS),
    "perfnetv2": Place("PerfNetV2", "sextant.predict.perfnetv2", _KERAS),
    "morphling": Place("Morphling", "sextant.predict.morphling", _KERAS),
}
"""Those that a configuration may name."""
PREDICTOR = "roofline"
"""The default: it draws, so it states how certain it is."""
MEASURED = "measured"
"""Recommendations straight from the points: the optimum."""
STATIC_POLICY = "static_policy"
"""One answer for all LLMs, chosen in hindsight (`sextant.judge.score.best_policy`)."""


def configurable() -> tuple[str, ...]:
    """Return the names that a configuration may list under `predictors`."""
    return (*PREDICTORS, STATIC_POLICY)


def predictor_class(name: str) -> type[PointPredictor] | type[JointPredictor]:
    """Return the class of a predictor; InputError where a library that it needs is missing."""
    check_installed([name])
    place = PREDICTORS[name]
    return getattr(import_module(place.module), place.class_name)


def check_installed(names: Collection[str], field: str = "predictor") -> None:
    """Raise InputError where a predictor that `field` names needs a library that is not installed.

    Names that are not in `PREDICTORS` need none.
    """
    for name in names:
        libraries = PREDICTORS[name].libraries if name in PREDICTORS else ()
        missing = [library for library in libraries if find_spec(library) is None]
        if missing:
            problem = f"{name} needs {' and '.join(missing)}, not installed here"
            fix = "run `make baselines`, or `pip install -r requirements-baselines.lock`"
            raise InputError(problem, field=field, fix=fix)


def draws_samples(name: str) -> bool:
    """Return whether a predictor draws joint samples."""
    return name in PREDICTORS and issubclass(predictor_class(name), JointPredictor)


INTERVAL = (0.05, 0.95)
JOULES = ["energy_j_per_token", "energy_lo_j_per_token", "energy_hi_j_per_token"]
"""Median and 90% interval of the joules that an output token takes, of all devices."""


class Draws(NamedTuple):
    """Joint draws of what the latencies of some rows may be."""

    X: pd.DataFrame  #: `llm_id, gpu_profile_id, users`, and the mean lengths of requests.
    samples_ms: np.ndarray  #: nTTFT and ITL, shape (draws, rows, 2).

    @property
    def lengths(self) -> np.ndarray:
        """Mean input and output tokens of a request, shape (rows, 2)."""
        return self.X.reindex(columns=LENGTHS).to_numpy(float)

    def of(self, rows: np.ndarray) -> "Draws":
        """Return those of some rows."""
        return Draws(self.X[rows], self.samples_ms[:, rows])

    def is_met(self, slo: SLO) -> np.ndarray:
        """Return whether each row meets all limits in each draw, shape (draws, rows)."""
        return slo.meets(self.samples_ms, self.lengths)

    def carried(self, slo: SLO) -> np.ndarray:
        """Return the load of each row, in the SLO's unit, shape (draws, rows) or (rows,)."""
        return slo.carried(self.X["users"].to_numpy(), self.samples_ms, self.lengths)

    def usual_load(self, slo: SLO) -> np.ndarray:
        """Return the load of each row at median latencies, shape (rows,)."""
        medians_ms = np.median(self.samples_ms, axis=0)
        return slo.carried(self.X["users"].to_numpy(), medians_ms, self.lengths)

    def summary(self) -> pd.DataFrame:
        """Return medians `nttft_ms, itl_ms` and 90% intervals, `nttft_lo_ms` and so on, by row."""
        low, high = np.quantile(self.samples_ms, INTERVAL, axis=0)
        frame = latency_frame(np.median(self.samples_ms, axis=0), self.X.index)
        for column, target in enumerate(("nttft", "itl")):
            frame[f"{target}_lo_ms"] = low[:, column]
            frame[f"{target}_hi_ms"] = high[:, column]
        return frame


def latency_frame(
    latencies_ms: np.ndarray | Sequence[Sequence[float]], index: pd.Index
) -> pd.DataFrame:
    """Return `nttft_ms, itl_ms`, not below `FLOOR_MS`, from values of shape (rows, 2)."""
    values = np.asarray(latencies_ms, dtype=float).reshape(len(index), len(TARGETS))
    return pd.DataFrame(np.maximum(values, FLOOR_MS), columns=TARGETS, index=index)


_REACH = np.log(4.0)
"""A measurement counts for 1/e as much at a fourth, or at four times, of its users."""
MEASUREMENT_NOISE = 0.05
"""Standard deviation of the logarithm of a measurement."""
_NUGGET = 1e-3
"""Added to the diagonal of the kriging matrix, so that repeated loads leave it invertible."""
BROKEN_MS = 1e12
"""Latency of a load that breaks every limit."""
_FAR = np.log(1.2)


class Calibration(NamedTuple):
    """Points of the LLM, and the law's draws at them."""

    points: pd.DataFrame
    """`gpu_profile_id, users, nttft_ms, itl_ms`, at the asked lengths; NaN: not measured. With what
    `points.frame.judged` adds."""
    samples_ms: np.ndarray  #: Shape (draws, points, 2).
    seed: int

    def corrected(self, X: pd.DataFrame, samples_ms: np.ndarray) -> np.ndarray:
        """Return draws that go through what was measured on the same GPU profile.

        Each draw of the law, (draws, rows of `X`, 2), is moved by what it misses there (kriging
        over the logarithm of the users). Away from measurements it moves by an unknown share of
        what they differ from the law: what contradicts the law makes the interval wider.
        """
        samples_ms, random = samples_ms.copy(), np.random.default_rng(self.seed)
        missed = np.log(self.points[TARGETS].to_numpy(float)) - np.log(self.samples_ms)
        missed += random.normal(0, MEASUREMENT_NOISE, missed.shape)
        share = random.uniform(0, 1, (len(missed), 1))
        users = np.log(X["users"].to_numpy(float))

        def nearness(users: np.ndarray, others: np.ndarray) -> np.ndarray:
            return np.exp(-np.abs(users[:, None] - others[None, :]) / _REACH)

        for side, target in enumerate(TARGETS):
            known = self.points[self.points[target].notna()]
            for profile_id, part in known.groupby("gpu_profile_id"):
                rows = np.flatnonzero(X["gpu_profile_id"] == profile_id)
                at = np.log(part["users"].to_numpy(float))
                among = nearness(at, at) + _NUGGET * np.eye(len(at))
                near = np.linalg.solve(among, nearness(users[rows], at).T)
                unknown = np.clip(1 - near.sum(axis=0), 0, 1)
                own = missed[:, part.index, side]
                moved = own @ near + unknown * share * np.median(own)
                samples_ms[:, rows, side] *= np.exp(moved)
        return samples_ms

    def capped(self, X: pd.DataFrame, samples_ms: np.ndarray, slo: SLO) -> np.ndarray:
        """Return draws in which no load is met at or above one measured to break the SLO."""
        of_limits = limited(self.points, slo)
        over = [values > slo.limits[name].limit_ms for name, values in of_limits.items()]
        is_broken = np.logical_or.reduce([is_refused(self.points, slo), *over])
        broken = self.points[is_broken].groupby("gpu_profile_id")["users"].min()
        above = (X["users"] >= X["gpu_profile_id"].map(broken).fillna(np.inf)).to_numpy()
        return np.where(above[:, None], BROKEN_MS, samples_ms)

    def contradictions(self) -> list[dict[str, Any]]:
        """Return the measurements outside of the law's 90% interval, by more than a fifth from its
        median, the farthest first.

        Each has `gpu_profile_id, users, latency, measured_ms, predicted_ms, low_ms, high_ms`.
        """
        bounds, found = np.quantile(self.samples_ms, [0.5, *INTERVAL], axis=0), []
        for place, row in enumerate(self.points.to_dict("records")):
            for side, target in enumerate(TARGETS):
                middle, low, high = map(float, bounds[:, place, side])
                measured = float(row[target])
                far = abs(np.log(measured / middle))
                if not low <= measured <= high and far > _FAR:  # NaN, not measured, is neither
                    about = {"gpu_profile_id": row["gpu_profile_id"], "users": int(row["users"])}
                    about |= {"latency": target.removesuffix("_ms"), "measured_ms": measured}
                    about |= {"predicted_ms": middle, "low_ms": low, "high_ms": high}
                    found.append((far, about))
        return [about for _, about in sorted(found, key=lambda each: -each[0])]
