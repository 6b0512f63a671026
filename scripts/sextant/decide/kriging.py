"""Kriging: smooth functions through a few noisy values, for any number of other inputs."""

from typing import NamedTuple

import numpy as np

from sextant.base.threads import one_thread

_LINEAR = 0.3
"""Variance of the linear part of a function, over that of its constant part, per input."""
_BENT = 0.5
"""Variance of the rest of a function, over that of its constant part."""
_REACHES = (1.5, 2.5, 4.0)
"""Distances over which the rest changes, in standard deviations of the inputs, to choose from."""
_NOISES = (0.02, 0.06, 0.15)
"""Standard deviations of the noise to choose from, in the unit of the values."""
_AT_ONCE = 2048
"""Inputs whose covariances are computed at once: they stay in the processor's cache."""


class Kriging(NamedTuple):
    """Functions that were fitted to values at the same inputs (`fit_kriging`)."""

    centre: np.ndarray
    scale: np.ndarray
    inputs: np.ndarray  #: Standardised, (points, inputs).
    lowest: np.ndarray  #: Ends of the standardised inputs: beyond them a function is constant.
    highest: np.ndarray
    weights: np.ndarray  #: (points, functions).
    means: np.ndarray  #: (functions,).
    reach: float
    errors: np.ndarray
    """Error of each value by the function through all the others, (points, functions)."""

    def at(self, inputs: np.ndarray) -> np.ndarray:
        """Return the functions, (..., functions), at other inputs, (..., inputs)."""
        flat = (inputs.reshape(-1, inputs.shape[-1]) - self.centre) / self.scale
        flat = np.clip(flat, self.lowest, self.highest).astype(np.float32)
        known = self.inputs.astype(np.float32)
        weights = self.weights.astype(np.float32)

        # exp(-(a - b)^2 / 2 r^2): the exponents are one product of extended inputs, in one buffer.
        half = np.float32(0.5 / self.reach**2)
        of_known = -half * (known**2).sum(axis=1)
        factors = np.vstack([2 * half * known.T, of_known, -half * np.ones_like(of_known)])
        extended = np.column_stack([flat, np.ones_like(flat[:, 0]), (flat**2).sum(axis=1)])
        bent = np.empty((len(flat), weights.shape[1]), np.float32)
        with one_thread():
            for start in range(0, len(flat), _AT_ONCE):
                exponents = extended[start : start + _AT_ONCE] @ factors
                bent[start : start + _AT_ONCE] = np.exp(exponents, out=exponents) @ weights

        straight = flat @ (known.T @ weights)
        values = weights.sum(axis=0) + _LINEAR * straight + _BENT * bent + self.means
        return np.asarray(values, float).reshape(*inputs.shape[:-1], len(self.means))


def fit_kriging(inputs: np.ndarray, values: np.ndarray) -> Kriging:
    """Fit functions to values, (points, functions), at inputs, (points, inputs).

    Reach and noise are those with the least median error of a value by all the others (leave one
    out: Rasmussen and Williams, Gaussian Processes for Machine Learning, eq. 5.12).
    """
    centre = inputs.mean(axis=0)
    scale = inputs.std(axis=0) + 1e-9
    standard = (inputs - centre) / scale
    means = np.median(values, axis=0)

    best = None
    with one_thread():
        for reach in _REACHES:
            covariance = _covariance(standard, standard, reach)
            for noise in _NOISES:
                inverse = np.linalg.inv(covariance + noise**2 * np.eye(len(values)))
                weights = inverse @ (values - means)
                errors = weights / np.diag(inverse)[:, None]
                error = float(np.median(np.abs(errors), axis=0).sum())
                if best is None or error < best[0]:
                    best = (error, reach, weights, errors)
    assert best is not None
    _, reach, weights, errors = best
    ends = standard.min(axis=0), standard.max(axis=0)
    return Kriging(centre, scale, standard, *ends, weights, means, reach, errors)


def _covariance(some: np.ndarray, others: np.ndarray, reach: float) -> np.ndarray:
    """Return the prior covariance of a function at two sets of inputs."""
    products = some @ others.T
    squares = (some**2).sum(axis=1)[:, None] + (others**2).sum(axis=1) - 2 * products
    return 1 + _LINEAR * products + _BENT * np.exp(squares / (-2 * reach**2))
