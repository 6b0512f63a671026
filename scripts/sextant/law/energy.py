"""Energy of an output token, of an LLM that was not measured.

A device draws a share of its TDP in every step, and more while it reads and multiplies. The law at
the device's peak rates gives the time of both. A step makes one token per user.
docs/predictor.md has the equations.
"""

from collections.abc import Mapping
from statistics import NormalDist
from typing import NamedTuple, Self

import numpy as np
import pandas as pd

from sextant.law.fact_rows import fact_rows
from sextant.law.posterior import Columns, Design, Parameter, columns_of, design_of, levels, normal
from sextant.law.terms import NAMES, step_law
from sextant.points.frame import FactTables
from sextant.predict.predictor import INTERVAL, JOULES

PARAMETERS = {
    "idle": Parameter("share of TDP that a device draws in a step, whatever it does", 0.5, 0.3),
    "memory": Parameter("further share while it reads at its peak bandwidth", 0.4, 0.4),
    "compute": Parameter("further share while it multiplies at its peak rate", 1.0, 0.5),
}
_ARCHITECTURE = dict.fromkeys(PARAMETERS, 0.2)
_CAP = 4.0
"""Exponent of the smooth minimum of TDP and the power that a step would need."""
_NOISE = 0.15
"""Scale of the errors of log energy: weighs points against priors."""
_FREEDOM = 4.0
_MIN_LLMS = 2
_PEAK_SHARES = {
    *("bandwidth", "expert_bandwidth", "kv_bandwidth", "flops", "expert_flops", "attention_flops"),
    *("touch", "link"),
}
_AT_PEAK = np.array([0.0 if name in _PEAK_SHARES else -np.inf for name in NAMES])
"""Log parameters at the device's peak rates: shares are 1, times beside them 0."""
_MEASURED = ["energy_j_per_token", "itl_ms"]
_SHAPE = ["n_layers", "n_experts", "reduced_bytes"]


def energy_rows(keys: pd.DataFrame, facts: FactTables) -> pd.DataFrame:
    """Return what the energy depends on beside the ITL, for `keys` as `fact_rows` takes them."""
    X = fact_rows(keys, facts)
    columns = columns_of(X)
    law = step_law(np.tile(_AT_PEAK, (len(X), 1)), columns)
    users = columns["users"]
    inputs = columns["input_tokens"]
    outputs = columns["output_tokens"]
    context = users * (inputs + outputs / 2)
    prompt_ms = law.prefill_token_ms + law.prefill_pair_ms * inputs / 2
    prompt_ms = prompt_ms * inputs * columns["prefill_share"]
    tdp_w = [facts.profiles[name].gpu.tdp_w for name in X["gpu_profile_id"]]
    return X[["users", "n_gpus", "architecture"]].assign(
        # LLMs of one shape say nothing new of each other.
        shape=X[_SHAPE].astype(str).agg(" ".join, axis=1),
        tdp_w=np.array(tdp_w, float),
        read_ms=law.weights_ms(users) + law.kv_token_ms * context,
        product_ms=law.sequence_ms * users + (users - 1) * prompt_ms / outputs,
    )


def energy_points(points: pd.DataFrame, facts: FactTables) -> pd.DataFrame | None:
    """Return `energy_rows` of the points with energy and ITL, and these two.

    None where fewer than two LLMs have both on devices whose TDP is known.
    """
    is_measured = points[[*_MEASURED, "users"]].gt(0).all(axis=1)
    has_tdp = [facts.profiles[name].gpu.tdp_w is not None for name in points["gpu_profile_id"]]
    points = points[is_measured & np.array(has_tdp)]
    if points["llm_id"].nunique() < _MIN_LLMS:
        return None
    return energy_rows(points, facts).join(points[["llm_id", *_MEASURED]])


def log_energy(phi: np.ndarray, facts: Columns, itl_ms: np.ndarray) -> np.ndarray:
    """Return log joules per output token, of all devices together, shape (..., rows).

    Args:
        phi: logarithms of `PARAMETERS`, (..., rows, 3).
        facts: columns of `energy_rows`.
        itl_ms: shape (..., rows).
    """
    idle, memory, compute = np.moveaxis(np.exp(phi), -1, 0)
    needed_ms = idle * itl_ms + memory * facts["read_ms"] + compute * facts["product_ms"]
    full_ms = (needed_ms**-_CAP + itl_ms**-_CAP) ** (-1 / _CAP)
    return np.log(facts["n_gpus"] * facts["tdp_w"] * full_ms / 1000 / facts["users"])


def _design(X: pd.DataFrame) -> Design:
    return design_of(X, PARAMETERS, levels(X["architecture"], "architecture", _ARCHITECTURE))


class _Problem(NamedTuple):
    """The points that the energy is fitted to."""

    design: Design
    facts: Columns
    itl_ms: np.ndarray
    observed: np.ndarray  #: Log joules per output token.

    def missed(self, coefficients: np.ndarray) -> np.ndarray:
        """Return log(measured / predicted) of each point."""
        phi = self.design.parameters(coefficients)
        return self.observed - log_energy(phi, self.facts, self.itl_ms)

    def most_likely(self, rows: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Return the most likely coefficients by some rows."""
        from scipy.optimize import least_squares  # its import takes longer than the fit

        def cost(coefficients: np.ndarray) -> np.ndarray:
            scaled = self.missed(coefficients)[rows] / _NOISE
            # Square roots of the cost of Student-t errors: a few points are far off.
            tails = np.sqrt((_FREEDOM + 1) * np.log1p(scaled**2 / _FREEDOM))
            prior = (coefficients - self.design.mean) / self.design.sd
            return np.append(np.sign(scaled) * tails, prior)

        return least_squares(cost, start, ftol=1e-5, xtol=1e-4).x


class Energy(NamedTuple):
    """The power that devices draw, as learned from measured points."""

    coefficients: dict[tuple[str, str], float]  #: By (parameter, effect).
    spread: float
    """Standard deviation of log energy between a new LLM and this fit, at a known ITL."""
    n_llms: int

    @classmethod
    def fitted(cls, points: pd.DataFrame, facts: FactTables) -> Self | None:
        """Learn from points with `energy_j_per_token, itl_ms` and what `energy_rows` takes.

        None where they are too few (`energy_points`).
        """
        X = energy_points(points, facts)
        if X is None:
            return None
        joules, itl_ms = X[_MEASURED].to_numpy(float).T
        problem = _Problem(_design(X), columns_of(X), itl_ms, np.log(joules))
        best = problem.most_likely(np.ones(len(X), bool), problem.design.mean)

        errors = np.empty(len(X))
        for shape in X["shape"].unique():
            is_held_out = (X["shape"] == shape).to_numpy()
            others = problem.most_likely(~is_held_out, best)
            errors[is_held_out] = problem.missed(others)[is_held_out]
        low, high = INTERVAL
        spread = np.quantile(np.abs(errors), high - low) / NormalDist().inv_cdf(high)
        return cls(
            dict(zip(problem.design.names, best, strict=True)), float(spread), X["llm_id"].nunique()
        )

    def arrays(self) -> dict[str, np.ndarray]:
        """Return all that was learned, for `restored`."""
        return {
            "names": np.array([*self.coefficients]),
            "values": np.array([*self.coefficients.values()]),
            "spread": np.array(self.spread),
            "n_llms": np.array(self.n_llms),
        }

    @classmethod
    def restored(cls, arrays: Mapping[str, np.ndarray]) -> Self:
        """Return what was learned, from its `arrays`."""
        names = [(str(parameter), str(effect)) for parameter, effect in arrays["names"]]
        values = dict(zip(names, arrays["values"].tolist(), strict=True))
        return cls(values, float(arrays["spread"]), int(arrays["n_llms"]))

    def predict(
        self, keys: pd.DataFrame, facts: FactTables, itl_ms: np.ndarray, seed: int
    ) -> pd.DataFrame:
        """Return `JOULES` of keys; null where the TDP is not known.

        Args:
            keys: as `energy_rows` takes them.
            facts: of the LLMs and GPU profiles.
            itl_ms: joint draws, (draws, rows), at the percentile of the fit's points.
            seed: of the draws of effects that the fit has not seen.
        """
        X = energy_rows(keys, facts)
        n_draws = len(itl_ms)
        design = _design(X)
        drawn = np.empty((n_draws, len(design.names)))
        for column, (name, sd) in enumerate(zip(design.names, design.sd, strict=True)):
            fitted = self.coefficients.get(name)
            is_new = fitted is None
            drawn[:, column] = sd * normal(seed, " ".join(name), n_draws) if is_new else fitted

        # An LLM that takes more than expected does so on all GPU profiles.
        shift = self.spread * normal(seed, "energy", (n_draws, 1))
        energies = np.exp(log_energy(design.parameters(drawn), columns_of(X), itl_ms) + shift)
        low, high = INTERVAL
        bounds = np.quantile(energies, [0.5, low, high], axis=0)
        return pd.DataFrame(bounds.T, index=keys.index, columns=JOULES)
