"""The protocol of predictors: what they are fitted on, what they return, and which there are.

A predictor is a file of its own and a row of `PREDICTORS`. Its class is imported when it is first
used: some need optional libraries.
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
from sextant.points.frame import FLOOR_MS, LENGTHS, TARGETS, FactTables

Settings = dict[str, Any]
"""Hyperparameters by name."""
Profiles = Mapping[str, GPUProfile]
INTERVAL = (0.05, 0.95)
"""Quantiles over the draws: a 90% interval."""
JOULES = ["energy_j_per_token", "energy_lo_j_per_token", "energy_hi_j_per_token"]
"""Median and 90% interval of the joules that an output token takes, of all devices."""


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


class Draws(NamedTuple):
    """Joint draws of the latencies of some rows."""

    X: pd.DataFrame  #: `llm_id, gpu_profile_id, users`, and the mean lengths of requests.
    samples_ms: np.ndarray  #: nTTFT and ITL, shape (draws, rows, 2).

    @property
    def lengths(self) -> np.ndarray:
        """Mean input and output tokens of a request, shape (rows, 2)."""
        return self.X.reindex(columns=LENGTHS).to_numpy(float)

    def of(self, rows: np.ndarray) -> "Draws":
        """Return the draws of some rows."""
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


def reference_profiles(profiles: Profiles) -> tuple[str, str]:
    """Return the weakest and the strongest GPU profile, where a new LLM is measured first.

    PARIS (Yadwadkar et al., SoCC 2017) measures on the two ends of the range; LLM-Pilot (section
    V-C) takes 1×T4 and 4×H100. They are ordered by the memory of all devices, then by bandwidth,
    arithmetic and identifier.
    """

    def strength(name: str) -> tuple[float, float, float]:
        gpu = profiles[name].gpu
        n = profiles[name].n_gpus
        return n * gpu.memory_gib, n * gpu.memory_bandwidth_gb_s, n * gpu.dense_16bit_tflops

    ordered = sorted(sorted(profiles), key=strength)
    return ordered[0], ordered[-1]


class Predictor:
    """What both kinds share. A predictor is made for one SLO and fitted on measured points."""

    depends_on: tuple[str, ...] = ("percentiles", "first_token")
    """Attributes of the SLO that a fit depends on: SLOs with equal ones share one fit."""
    min_training_llms = 2
    """With fewer measured LLMs it cannot be fitted."""
    uses_references = False
    """Whether a new LLM is measured on the two reference profiles before it is predicted."""

    def __init__(
        self, slo: SLO, profiles: Profiles, seed: int, settings: Settings | None = None
    ) -> None:
        self.slo = slo
        self.profiles = profiles
        self.seed = seed
        self.settings = settings

    def design(self, keys: pd.DataFrame, facts: FactTables) -> pd.DataFrame:
        """Return what the predictor learns from: `llm_id, gpu_profile_id, users`, then features.

        `keys` have `llm_id, gpu_profile_id, users, input_tokens, output_tokens`, one row per point;
        the lengths are the workload's means, NaN where they are not known.
        """
        from sextant.predict.features import design_matrix  # laws are given facts, not features

        return design_matrix(keys, facts.features)

    def fit(self, training: TrainingRows, references: TrainingRows | None = None) -> Self:
        """Fit on points, and on the few measurements of the LLM that is to be predicted."""
        raise NotImplementedError


class PointPredictor(Predictor):
    """Predicts one latency for each row: eq. 1-3 of LLM-Pilot recommend from it."""

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms, itl_ms`, above 0 and indexed as `X`, which `design` returned."""
        raise NotImplementedError


class JointPredictor(Predictor):
    """Draws latencies that the LLM may have: medians, intervals and probabilities follow."""

    untold_: "JointPredictor | None" = None
    """The predictor without what the asker measured of the LLM; None: nothing was measured, or it
    is not known apart."""

    def sample(self, X: pd.DataFrame) -> np.ndarray:
        """Return joint draws of nTTFT and ITL in ms, shape (draws, rows of `X`, 2).

        They are joint over all rows: an LLM that is slower than expected on one GPU profile is
        slower on the others. The draws of a row do not depend on the other rows.
        """
        raise NotImplementedError

    def energy(
        self, training: pd.DataFrame, keys: pd.DataFrame, facts: FactTables, itl_ms: np.ndarray
    ) -> pd.DataFrame | None:
        """Return `JOULES` of an output token, indexed as `keys`; null where TDP is not known.

        None where too few LLMs have energy.

        Args:
            training: measured points with `itl_ms, energy_j_per_token`.
            keys: rows to predict, as `design` takes them.
            facts: of the LLMs and GPU profiles.
            itl_ms: draws of the rows' ITL, (draws, rows).
        """
        return None


class Registration(NamedTuple):
    """Where a class is, and which optional libraries it needs."""

    class_name: str
    module: str
    libraries: tuple[str, ...] = ()  #: Modules of the extra `baselines` of pyproject.toml.


_KERAS = ("keras", "jax")

PREDICTORS = {
    "roofline": Registration("Roofline", "sextant.law.roofline"),
    "llm_pilot": Registration("LLMPilot", "sextant.predict.llm_pilot"),
    "rf": Registration("RandomForest", "sextant.predict.rf"),
    "paris": Registration("PARIS", "sextant.predict.paris"),
    "selecta": Registration("Selecta", "sextant.predict.selecta", ("surprise",)),
    "perfnet": Registration("PerfNet", "sextant.predict.perfnet", _KERAS),
    "perfnetv2": Registration("PerfNetV2", "sextant.predict.perfnetv2", _KERAS),
    "morphling": Registration("Morphling", "sextant.predict.morphling", _KERAS),
}
"""Predictors that a configuration may name, beside `static_policy`."""
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
    registered = PREDICTORS[name]
    return getattr(import_module(registered.module), registered.class_name)


def check_predictors(
    names: Collection[str], choices: Collection[str], field: str = "predictor"
) -> None:
    """Raise InputError where a predictor is none of the choices, or lacks a library."""
    for name in names:
        if name not in choices:
            fix = f"use one of {', '.join(choices)}"
            raise InputError(f"unknown predictor {name!r}", field=field, fix=fix)
    check_installed(names, field)


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
