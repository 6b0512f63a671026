"""Fit a law to points: maximum a posteriori by Gauss-Newton.

The spread of each group of effects is estimated by expectation maximisation. A few errors may be
large: they are Student's t, by weights that are computed again in each iteration. What the asker
measured of an LLM is believed, however far from the law it is: its errors are normal.
"""

from collections.abc import Mapping
from typing import NamedTuple, Self

import numpy as np
import pandas as pd

from sextant.law.own import MeasuredRows, OwnTerms, own_names, rows_by_name
from sextant.law.posterior import (
    FREEDOM,
    START_NOISE,
    Design,
    Law,
    Posterior,
    columns_of,
    error_kinds,
)

_ITERATIONS = 18
_FURTHER_ITERATIONS = 4
"""Iterations from a fit of nearly the same points: latencies are within 1% of those of all."""
_FIXED_SPREAD = 3
"""Iterations before spreads are estimated: from far away they would grow to explain misfit."""
_HALVINGS = 6
_DIFFERENCE = 1e-4
"""Half of the step of central differences, in a parameter as the law takes it."""
_ROWS_AT_ONCE = 8192
"""Rows that the law computes together: their numbers stay in the processor's cache."""
_LEAST_NOISE = 0.02
_NOISE_WEIGHT = 3.0
"""Pseudo-observations behind the scale of an engine's errors: with few rows it is that of all."""
_PRIOR_WEIGHT = {"llm": 3.0, "support": 6.0, "version": 8.0, "pair": 8.0}
"""Pseudo-observations behind the prior spread of a group."""


class LawProblem(NamedTuple):
    """The points that a law is fitted to."""

    law: Law
    design: Design
    facts: dict[str, np.ndarray]
    observed: np.ndarray  #: Logarithms of the targets, (rows, 2); NaN where one was not measured.
    kinds: np.ndarray  #: Kind of each row's errors (`error_kinds`), (rows,).
    own_names: np.ndarray  #: Whose own terms each row tells of (`own_names`), (rows,).
    is_told: np.ndarray  #: Whether the asker measured the row, (rows, 1).

    @classmethod
    def of(cls, law: Law, X: pd.DataFrame, y_ms: np.ndarray, n_told: int = 0) -> Self:
        """Return the problem of points.

        Args:
            law: what is fitted.
            X: fact rows of the points.
            y_ms: their nTTFT and ITL, (rows, 2); NaN: not measured.
            n_told: how many of the last rows the asker measured.
        """
        kinds = error_kinds(X).to_numpy()
        is_told = np.arange(len(X))[:, None] >= len(X) - n_told
        return cls(law, law.design(X), columns_of(X), np.log(y_ms), kinds, own_names(X), is_told)

    def residuals(self, coefficients: np.ndarray) -> np.ndarray:
        """Return log(measured / predicted), (rows, 2); 0 where nothing was measured."""
        phi = self.design.parameters(coefficients)
        missed = self.observed - self.law.predict_log(phi, self.facts)
        return np.where(np.isfinite(self.observed), missed, 0.0)

    def cost(self, coefficients: np.ndarray, variance: np.ndarray, noise: np.ndarray) -> float:
        """Return the negative logarithm of the posterior, up to a constant."""
        squares = (self.residuals(coefficients) / noise) ** 2
        costs = np.where(self.is_told, squares, (FREEDOM + 1) * np.log1p(squares / FREEDOM))
        prior = (coefficients - self.design.mean) ** 2 / variance
        return float(0.5 * costs.sum() + 0.5 * prior.sum())

    def slopes(self, coefficients: np.ndarray) -> np.ndarray:
        """Return derivatives of the targets by parameter, (2, rows, parameters), nTTFT first."""
        phi = self.design.parameters(coefficients)
        n_rows, n_parameters = phi.shape
        by_parameter = np.empty((2, n_rows, n_parameters))
        shifts = _DIFFERENCE * np.eye(n_parameters)[:, None]
        step = max(_ROWS_AT_ONCE // n_rows, 1)
        facts = {name: np.tile(values, 2 * step) for name, values in self.facts.items()}
        for first in range(0, n_parameters, step):
            shift = shifts[first : first + step]
            shifted = np.concatenate([phi + shift, phi - shift]).reshape(-1, n_parameters)
            tiled = {name: values[: len(shifted)] for name, values in facts.items()}
            predicted = self.law.predict_log(shifted, tiled)
            ahead, behind = predicted.reshape(2, len(shift), n_rows, 2)
            slopes = (ahead - behind) / (2 * _DIFFERENCE)
            by_parameter[:, :, first : first + step] = slopes.transpose(2, 1, 0)
        return by_parameter

    def jacobian(self, slopes: np.ndarray) -> np.ndarray:
        """Return derivatives by coefficient, (2 x rows, effects), from those by parameter."""
        by_effect = np.take(slopes, self.design.position, axis=2)
        return (self.design.columns * by_effect).reshape(-1, len(self.design.names))

    def error_scales(self, squares: np.ndarray) -> dict[str, np.ndarray]:
        """Return the scales of errors by kind, of nTTFT and ITL, from squared errors (rows, 2).

        A kind of few rows has nearly the scale of all rows. Rows without an engine's name (kind "")
        have exactly that, as a new engine has.
        """
        is_measured = np.isfinite(self.observed)
        mean_of_all = squares.sum(axis=0) / is_measured.sum(axis=0).clip(1)
        scales = {}
        for kind in np.unique(self.kinds):
            rows = self.kinds == kind
            total = squares[rows].sum(axis=0) + _NOISE_WEIGHT * mean_of_all
            mean = total / (is_measured[rows].sum(axis=0) + _NOISE_WEIGHT)
            scales[kind] = np.sqrt(mean).clip(_LEAST_NOISE)
        return scales | {"": np.sqrt(mean_of_all).clip(_LEAST_NOISE)}

    def by_row(self, scales: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the scales of each row's errors, (rows, 2)."""
        return np.stack([scales[kind] for kind in self.kinds])

    def weights(self, errors: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Return how much each latency counts, (rows, 2): less where its error is large."""
        weights = (FREEDOM + 1) / (FREEDOM + (errors / noise) ** 2)
        return np.isfinite(self.observed) * np.where(self.is_told, 1.0, weights)

    def line_search(
        self, start: np.ndarray, target: np.ndarray, variance: np.ndarray, noise: np.ndarray
    ) -> np.ndarray:
        """Return the first coefficients that cost no more: all the way, half of it, a quarter …"""
        limit = self.cost(start, variance, noise)
        for halvings in range(_HALVINGS):
            coefficients = start + (target - start) / 2**halvings
            if self.cost(coefficients, variance, noise) <= limit:
                break
        return coefficients


class Checkpoint(NamedTuple):
    """A fit before its last iteration, and what this one found but for the covariance.

    `finish_fit` computes the covariance, a thousand times as large, from the points.
    """

    names: list[tuple[str, str]]  #: (parameter, effect), as in `Design`.
    before: np.ndarray  #: Coefficients before the last iteration, (effects,).
    variance: np.ndarray  #: Of the effects before it, (effects,).
    scales: dict[str, np.ndarray]  #: Scales of the errors by kind, as `error_scales` returns them.
    scales_before: dict[str, np.ndarray]
    """Scales in the iteration before, by which the errors of `before` are weighted."""
    coefficients: np.ndarray  #: Of the fit, (effects,).
    spread: dict[str, float]  #: As in `Posterior`.
    noise: dict[str, np.ndarray]  #: As in `Posterior`.


class _Line(NamedTuple):
    """Linear approximation of a law around some coefficients."""

    problem: LawProblem
    coefficients: np.ndarray
    precision: np.ndarray  #: Weights of the errors, (2 x rows,).
    slopes: np.ndarray  #: Derivatives by parameter, (2, rows, parameters).
    jacobian: np.ndarray  #: Derivatives by coefficient, (2 x rows, effects).
    covariance: np.ndarray  #: Of the coefficients, (effects, effects).

    @classmethod
    def at(
        cls,
        problem: LawProblem,
        coefficients: np.ndarray,
        weights: np.ndarray,
        noise: np.ndarray,
        variance: np.ndarray,
    ) -> Self:
        """Return the line at some coefficients, by the weights and scales of errors, (rows, 2)."""
        precision = (weights / noise**2).T.ravel()
        slopes = problem.slopes(coefficients)
        jacobian = problem.jacobian(slopes)
        hessian = _squared(jacobian, precision) + np.diag(1 / variance)
        return cls(problem, coefficients, precision, slopes, jacobian, np.linalg.inv(hessian))

    def target(self) -> np.ndarray:
        """Return the most likely coefficients by this line."""
        mean = self.problem.design.mean
        residuals = self.problem.residuals(self.coefficients).T.ravel()
        shifted = residuals + self.jacobian @ (self.coefficients - mean)
        step = self.covariance @ (self.jacobian.T @ (self.precision * shifted))
        return np.asarray(mean + step)

    def doubt(self) -> np.ndarray:
        """Return the variances of the predictions, (rows, 2)."""
        variances = ((self.jacobian @ self.covariance) * self.jacobian).sum(axis=1)
        return np.asarray(variances.reshape(2, -1).T)

    def own_terms(self, coefficients: np.ndarray) -> dict[str, OwnTerms]:
        """Return what is each LLM's own, beside coefficients that this line found."""
        law = self.problem.law
        if not law.own:
            return {}
        missed = self.problem.residuals(coefficients)
        terms_by_name = {}
        for name, rows in rows_by_name(self.problem.own_names):
            if not name:
                continue
            of_both = np.concatenate([rows, len(missed) + rows])
            by_parameter = self.slopes[:, rows][..., law.own_positions]
            measured = MeasuredRows(
                missed=missed[rows].T.ravel(),
                precision=self.precision[of_both],
                slopes=self.jacobian[of_both],
                own_slopes=by_parameter.reshape(-1, len(law.own)),
            )
            terms_by_name[name] = measured.own_terms(law.own, self.covariance)
        return terms_by_name


class LawFit(NamedTuple):
    """A fit and the straight line that it ends on, from which rows can be taken away again."""

    posterior: Posterior
    checkpoint: Checkpoint
    problem: LawProblem
    jacobian: np.ndarray  #: Shape (2 x rows, effects).
    precision: np.ndarray  #: Weights of the errors, (2 x rows,).
    variance: np.ndarray  #: Of the effects, before the measurements.

    def leave_out(self, row_groups: pd.Series) -> "LeftOut":
        """Predict each group of rows, as those of an LLM, by a fit without it.

        One Gauss-Newton step from the optimum approximates that fit.
        """
        mean = self.posterior.mean
        design = self.problem.design
        residuals = self.problem.residuals(mean).T.ravel()
        shifted = residuals + self.jacobian @ (mean - design.mean)
        hessian = _squared(self.jacobian, self.precision) + np.diag(1 / self.variance)
        right_side = self.jacobian.T @ (self.precision * shifted)
        freedoms = [self.problem.law.freedom_of(group) for group in design.groups]

        log_latencies = np.empty((len(row_groups), 2))
        known_variance = np.empty_like(log_latencies)
        own_slopes = np.zeros_like(self.jacobian)
        for name in row_groups.unique():
            rows = (row_groups == name).to_numpy()
            is_out = np.tile(rows, 2)
            jacobian = self.jacobian[is_out]
            precision = self.precision[is_out]
            covariance = np.linalg.inv(hessian - _squared(jacobian, precision))
            others_side = right_side - jacobian.T @ (precision * shifted[is_out])
            coefficients = design.mean + covariance @ others_side

            facts = {name: values[rows] for name, values in self.problem.facts.items()}
            phi = design.parameters(coefficients)[rows]
            log_latencies[rows] = self.problem.law.predict_log(phi, facts)

            # Effects that no other row has are as before any measurement, apart from all others.
            is_own = ~design.columns[~rows].any(axis=0) & np.isfinite(freedoms)
            own_slopes[np.ix_(is_out, is_own)] = jacobian[:, is_own]
            slopes = np.where(is_own, 0.0, jacobian)
            variance = ((slopes @ covariance) * slopes).sum(axis=1)
            known_variance[rows] = variance.reshape(2, -1).T
        return LeftOut(log_latencies, known_variance, own_slopes)


class LeftOut(NamedTuple):
    """Predictions by fits that have not seen the rows."""

    log_latencies: np.ndarray  #: Log nTTFT and log ITL, (rows, 2).
    known_variance: np.ndarray  #: Of these, by what other rows tell of them, (rows, 2).
    own_slopes: np.ndarray
    """Derivatives of the targets by effects of Student's t that only these rows have, as the
    Jacobian: (2 x rows, effects); 0 by all others."""

    def squared_scale(self, scales: np.ndarray) -> np.ndarray:
        """Return the sum of squared scales, (rows, 2), from each effect's scale, (effects,)."""
        return np.asarray((self.own_slopes**2 @ scales**2).reshape(2, -1).T)


class _Start(NamedTuple):
    """From where a fit goes on."""

    coefficients: np.ndarray  #: Of the effects, (effects,).
    spreads: "_Spreads"
    scales: dict[str, np.ndarray]  #: Of the errors, as `LawProblem.error_scales` returns them.
    weights: np.ndarray  #: Of each latency, (rows, 2).


def fit_law(law: Law, X: pd.DataFrame, y_ms: np.ndarray) -> LawFit:
    """Fit a law to points.

    Args:
        law: what is fitted.
        X: fact rows of the points.
        y_ms: their nTTFT and ITL, (rows, 2); NaN: not measured.
    """
    problem = LawProblem.of(law, X, y_ms)
    scales = {kind: np.array(START_NOISE) for kind in np.unique(problem.kinds)}
    spreads = _Spreads.before(law, problem.design, least={})
    # No error is known to be large yet.
    weights = np.isfinite(problem.observed).astype(float)
    start = _Start(problem.design.mean, spreads, scales, weights)
    return _iterated(problem, start, range(_ITERATIONS))


def fit_law_near(
    problem: LawProblem, near: Posterior, least: Mapping[str, float] | None = None
) -> LawFit:
    """Fit a law to points, most of which another fit has seen.

    Args:
        problem: the points, of the law of the other fit.
        near: the other fit.
        least: least scales of groups of effects, by group.
    """
    design = problem.design
    coefficients = near.likeliest(design)
    scales = {kind: near.noise.get(kind, near.noise[""]) for kind in np.unique(problem.kinds)}
    weights = problem.weights(problem.residuals(coefficients), problem.by_row(scales))

    spreads = _Spreads.before(problem.law, design, least or {})
    spreads = spreads.estimated(design, coefficients, near.spread)
    start = _Start(coefficients, spreads, scales, weights)
    n_done = _ITERATIONS - _FURTHER_ITERATIONS if near.names else 0
    return _iterated(problem, start, range(n_done, _ITERATIONS))


def _iterated(problem: LawProblem, start: _Start, iterations: range) -> LawFit:
    """Return the fit after some iterations; spreads are estimated from `_FIXED_SPREAD` on."""
    design = problem.design
    coefficients, spreads, scales, weights = start
    scales_before = scales
    noise = problem.by_row(scales)
    for iteration in iterations:
        before = (coefficients, spreads.variance, scales, scales_before)
        line = _Line.at(problem, coefficients, weights, noise, spreads.variance)
        coefficients = problem.line_search(coefficients, line.target(), spreads.variance, noise)

        errors = problem.residuals(coefficients)
        weights = problem.weights(errors, noise)
        scales_before = scales
        if iteration >= _FIXED_SPREAD:
            scales = problem.error_scales(weights * (errors**2 + line.doubt()))
            noise = problem.by_row(scales)
            squares = (coefficients - design.mean) ** 2
            spreads = spreads.updated(design, squares, np.diag(line.covariance))

    checkpoint = Checkpoint(design.names, *before, coefficients, spreads.by_group(design), scales)
    posterior = _posterior(checkpoint, line)
    return LawFit(posterior, checkpoint, problem, line.jacobian, line.precision, spreads.variance)


def finish_fit(law: Law, X: pd.DataFrame, y_ms: np.ndarray, checkpoint: Checkpoint) -> Posterior:
    """Return the posterior of a fit of these points again.

    Raises:
        ValueError: the checkpoint has other effects, or other kinds of errors.
    """
    problem = LawProblem.of(law, X, y_ms)
    kinds = {*problem.kinds}
    if checkpoint.names != problem.design.names or not checkpoint.scales.keys() >= kinds:
        raise ValueError("the checkpoint is of other points")
    errors = problem.residuals(checkpoint.before)
    weights = problem.weights(errors, problem.by_row(checkpoint.scales_before))
    noise = problem.by_row(checkpoint.scales)
    line = _Line.at(problem, checkpoint.before, weights, noise, checkpoint.variance)
    return _posterior(checkpoint, line)


def _posterior(checkpoint: Checkpoint, line: _Line) -> Posterior:
    return Posterior(
        law=line.problem.law,
        names=checkpoint.names,
        mean=checkpoint.coefficients,
        covariance=line.covariance,
        spread=checkpoint.spread,
        noise=checkpoint.noise,
        own=line.own_terms(checkpoint.coefficients),
    )


def _squared(jacobian: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Return J' P J; as the square of one matrix it takes half of the work."""
    rooted = jacobian * np.sqrt(precision)[:, None]
    return rooted.T @ rooted


class _Spreads(NamedTuple):
    """How far effects may be from their means; each array of shape (effects,)."""

    squared: np.ndarray  #: Squared scales; each group's is estimated.
    variance: np.ndarray
    """Of normal effects that stand in for effects of Student's t."""
    freedom: np.ndarray  #: Degrees of freedom; infinite for normal effects.
    floor: np.ndarray  #: Least squared scales.

    @classmethod
    def before(cls, law: Law, design: Design, least: Mapping[str, float]) -> Self:
        """Return the spreads before any measurement; `least` are least scales by group."""
        freedom = np.array([law.freedom_of(group) for group in design.groups])
        floor = np.array([least.get(group, 0.0) for group in design.groups]) ** 2
        squared = np.maximum(design.sd**2, floor)
        return cls(squared, squared, freedom, floor)

    def estimated(
        self, design: Design, coefficients: np.ndarray, by_group: Mapping[str, float]
    ) -> Self:
        """Return the spreads of coefficients whose groups have these scales."""
        pairs = zip(design.groups, np.sqrt(self.squared), strict=True)
        squared = np.array([by_group.get(group, scale) for group, scale in pairs]) ** 2
        return self._of((coefficients - design.mean) ** 2, np.maximum(squared, self.floor))

    def updated(self, design: Design, squares: np.ndarray, doubt: np.ndarray) -> Self:
        """Return the spreads that fit the effects' squares and how uncertain these are."""
        expected = squares + doubt
        weighted = _weight(self.freedom, expected / self.squared) * expected

        # A group's scale is the mean of its effects' squares and of its prior scale.
        effect_groups = np.array(design.groups)
        squared = design.sd**2
        for group in set(design.groups) - {""}:
            members = effect_groups == group
            prior_weight = _PRIOR_WEIGHT[group.split()[0]]
            total = weighted[members].sum() + prior_weight * design.sd[members][0] ** 2
            squared[members] = total / (members.sum() + prior_weight)
        return self._of(squares, np.maximum(squared, self.floor))

    def _of(self, squares: np.ndarray, squared: np.ndarray) -> Self:
        """Return the spreads for squared coefficients and squared scales, (effects,) both."""
        tails = squared / _weight(self.freedom, squares / squared)
        variance = np.where(np.isfinite(self.freedom), tails, squared)
        return self._replace(squared=squared, variance=variance)

    def by_group(self, design: Design) -> dict[str, float]:
        """Return the scale of each group."""
        scales = zip(design.groups, self.squared, strict=True)
        return {group: float(np.sqrt(squared)) for group, squared in scales if group}


def _weight(freedom: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """Return how much an effect of Student's t counts, from its square over its squared scale."""
    return (1 + 1 / freedom) / (1 + ratio / freedom)
