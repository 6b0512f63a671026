"""What a predictor is, and which there are.

A predictor is given rows to learn from, and measurements on two reference profiles. `PREDICTORS`
has those that a configuration may name.
"""

from collections.abc import Collection, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.points.frame import Facts


class Rows(NamedTuple):
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


def reference_profiles(profiles: Mapping[str, GPUProfile]) -> tuple[str, str]:
    """Return the weakest and the strongest GPU profile, where a new LLM is measured first.

    PARIS (Yadwadkar et al., SoCC 2017) measures on the two ends of the range; LLM-Pilot
    (section V-C) takes 1×T4 and 4×H100. Profiles are ordered by the memory of all devices,
    then by bandwidth, then by arithmetic; the first by identifier of equal ones.
    """
    ordered = sorted(sorted(profiles), key=lambda name: _strength(profiles[name]))
    return ordered[0], ordered[-1]


def _strength(profile: GPUProfile) -> tuple[float, float, float]:
    gpu, n = profile.gpu, profile.n_gpus
    return n * gpu.memory_gib, n * gpu.memory_bandwidth_gb_s, n * gpu.dense_16bit_tflops


class Predictor(Protocol):
    """What both kinds share. A predictor is made for one SLO and fitted on measured points."""

    depends_on: tuple[str, ...]
    """Attributes of the SLO that a fit depends on: SLOs alike in them share one fit."""
    min_training_llms: int
    """With fewer measured LLMs it cannot be fitted."""
    uses_references: bool
    """Whether a new LLM is measured on the two reference profiles before it is predicted."""

    def __init__(self, slo: SLO, profiles: Mapping[str, GPUProfile], seed: int) -> None: ...

    def design(self, keys: pd.DataFrame, facts: Facts) -> pd.DataFrame:
        """Return what the predictor learns from: `llm_id, gpu_profile_id, users`, then columns.

        Args:
            keys: `llm_id, gpu_profile_id, users, input_tokens, output_tokens`, one row
                per point; the lengths are the workload's means, NaN where they are not known.
            facts: facts of these LLMs and GPU profiles.
        """

    def fit(self, training: Rows, references: Rows | None = None) -> Self:
        """Fit on points, and on those few that were measured of the LLM to be predicted."""


@runtime_checkable
class PointPredictor(Predictor, Protocol):
    """Predicts one latency for each row: eq. 1-3 of LLM-Pilot recommend from it."""

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms, itl_ms`, above 0 and indexed as `X`, which `design` returned."""


@runtime_checkable
class JointPredictor(Predictor, Protocol):
    """Draws what the latencies may be: medians, intervals and probabilities follow."""

    def sample(self, X: pd.DataFrame) -> np.ndarray:
        """Return joint draws of nTTFT and ITL in ms, shape (draws, rows of `X`, 2).

        They are joint over all rows: an LLM that is slower than expected on one GPU profile is
        so on the others. A row has the same draws whatever other rows are asked for.
        """


@runtime_checkable
class EnergyPredictor(JointPredictor, Protocol):
    """Goes from draws of ITL to the energy of an output token."""

    def energy(
        self, training: pd.DataFrame, asked: pd.DataFrame, facts: Facts, itl_ms: np.ndarray
    ) -> pd.DataFrame | None:
        """Return `sextant.predict.latencies.JOULES`, indexed as `asked`.

        Null for devices whose TDP is not known; None where too few LLMs have energy.

        Args:
            training: measured points: keys as `design` takes them, `itl_ms, energy_j_per_token`.
            asked: keys of the rows to predict.
            facts: facts of the LLMs and GPU profiles of both.
            itl_ms: draws of the asked rows' ITL, shape (draws, rows).
        """


class Place(NamedTuple):
    """Where a class is, and which optional libraries it needs."""

    class_name: str
    module: str
    libraries: tuple[str, ...] = ()
    """Modules of the extra `baselines` of pyproject.toml."""

    def load(self) -> Any:
        """Import the class."""
        return getattr(import_module(self.module), self.class_name)


_KERAS = ("keras", "jax")

PREDICTORS = {
    "roofline": Place("Roofline", "sextant.predict.roofline"),
    "llm_pilot": Place("LLMPilot", "sextant.predict.llm_pilot"),
    "rf": Place("RandomForest", "sextant.predict.rf"),
    "paris": Place("PARIS", "sextant.predict.paris"),
    "selecta": Place("Selecta", "sextant.predict.selecta", ("surprise",)),
    "perfnet": Place("PerfNet", "sextant.predict.perfnet", _KERAS),
    "perfnetv2": Place("PerfNetV2", "sextant.predict.perfnetv2", _KERAS),
    "morphling": Place("Morphling", "sextant.predict.morphling", _KERAS),
}


def predictor_class(name: str) -> type[PointPredictor] | type[JointPredictor]:
    """Return the class of a predictor, a key of `PREDICTORS`.

    Raises:
        InputError: a library that it needs is not installed.
    """
    check_installed([name])
    return PREDICTORS[name].load()


def check_installed(names: Collection[str], field: str = "predictor") -> None:
    """Raise InputError where a predictor needs a library that is not installed.

    Args:
        names: names of predictors; those that are not in `PREDICTORS` need none.
        field: the option or key that named them.
    """
    for name in names:
        libraries = PREDICTORS[name].libraries if name in PREDICTORS else ()
        missing = [library for library in libraries if find_spec(library) is None]
        if missing:
            problem = f"{name} needs {' and '.join(missing)}, not installed here"
            fix = "run `make baselines`, or `pip install -r requirements-baselines.lock`"
            raise InputError(problem, field=field, fix=fix)


def draws_samples(name: str) -> bool:
    """Return whether a predictor draws joint samples: it implements `JointPredictor`."""
    return name in PREDICTORS and hasattr(predictor_class(name), "sample")


PREDICTOR = "roofline"
"""The default: it draws, so it states how certain it is."""
MEASURED = "measured"
"""Recommendations straight from the points: the optimum."""
STATIC_POLICY = "static_policy"
"""One answer for all LLMs, chosen in hindsight (`sextant.decide.score.best_policy`)."""


def configurable() -> tuple[str, ...]:
    """Return the names that a configuration may list under `predictors`."""
    return (*PREDICTORS, STATIC_POLICY)
