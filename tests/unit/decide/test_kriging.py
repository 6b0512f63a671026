"""Smooth functions through a few values."""

import numpy as np
import pytest

from sextant.decide import kriging
from sextant.decide.kriging import fit_kriging


def smooth(inputs: np.ndarray) -> np.ndarray:
    """Return two smooth functions of three inputs, (..., functions)."""
    first, second, third = np.moveaxis(inputs, -1, 0)
    return np.stack([0.5 * first + np.sin(second), 2.0 + 0.03 * third**2], axis=-1)


def some_inputs(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 3)) * [1.0, 1.0, 3.0] + [5.0, 0.0, -2.0]


def test_it_goes_through_values_without_noise_and_tells_those_between() -> None:
    inputs = some_inputs(80)
    fitted = fit_kriging(inputs, smooth(inputs))
    assert fitted.at(inputs) == pytest.approx(smooth(inputs), abs=0.03)
    between = 0.5 * (inputs[:-1] + inputs[1:])
    error = fitted.at(between) - smooth(between)
    assert np.sqrt((error**2).mean(axis=0)) == pytest.approx(0, abs=0.15)
    assert error.std(axis=0) == pytest.approx(0, abs=0.2 * smooth(between).std())
    # Any shape of inputs has its functions last.
    grid = inputs[:6].reshape(2, 3, 3)
    assert fitted.at(grid) == pytest.approx(fitted.at(inputs[:6]).reshape(2, 3, 2))


def test_noise_is_smoothed() -> None:
    inputs = some_inputs(200)
    noise = 0.15 * np.random.default_rng(1).normal(size=(200, 2))
    fitted = fit_kriging(inputs, smooth(inputs) + noise)
    error = fitted.at(inputs) - smooth(inputs)
    assert np.median(np.abs(error)) < 0.6 * np.median(np.abs(noise))


def test_beyond_its_inputs_a_function_is_constant() -> None:
    inputs = some_inputs(60)
    fitted = fit_kriging(inputs, smooth(inputs))
    low, high = inputs.min(axis=0), inputs.max(axis=0)
    for corner, farther in ((low, low - 7.0), (high, high + np.array([1.0, 50.0, 1e6]))):
        assert fitted.at(farther[None]) == pytest.approx(fitted.at(corner[None]))
    # One input beyond alone: the others still count.
    middle = np.median(inputs, axis=0)
    beyond, at_end = np.tile(middle, (2, 1, 1))
    beyond[0, 1], at_end[0, 1] = high[1] + 9.0, high[1]
    assert fitted.at(beyond) == pytest.approx(fitted.at(at_end))


def test_the_error_of_a_point_is_that_of_a_fit_without_it(monkeypatch) -> None:
    inputs = some_inputs(40)
    values = smooth(inputs) + 0.1 * np.random.default_rng(1).normal(size=(40, 2))
    monkeypatch.setattr(kriging, "_REACHES", (2.5,))
    monkeypatch.setattr(kriging, "_NOISES", (0.06,))
    fitted = fit_kriging(inputs, values)
    for point in (0, 7, 39):
        kept = np.arange(40) != point
        # With the same scale of inputs and the same means.
        covariance = kriging._covariance(fitted.inputs, fitted.inputs, fitted.reach)
        noisy = covariance[np.ix_(kept, kept)] + 0.06**2 * np.eye(39)
        weights = np.linalg.solve(noisy, values[kept] - fitted.means)
        told = fitted.means + covariance[point, kept] @ weights
        assert fitted.errors[point] == pytest.approx(values[point] - told, abs=1e-8)


def test_reach_and_noise_are_those_that_tell_left_out_values_best() -> None:
    inputs = some_inputs(120)
    values = smooth(inputs)
    fitted = fit_kriging(inputs, values)
    best = np.median(np.abs(fitted.errors), axis=0).sum()
    for reach in kriging._REACHES:
        for noise in kriging._NOISES:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(kriging, "_REACHES", (reach,))
                patch.setattr(kriging, "_NOISES", (noise,))
                other = fit_kriging(inputs, values)
            assert best <= np.median(np.abs(other.errors), axis=0).sum() + 1e-12
