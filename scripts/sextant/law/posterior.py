"""Fit a law to points: the most likely coefficients, and how uncertain they are together.

A parameter of a law is, for a row, its prior mean plus effects, each a column times a coefficient
that is normal around 0 (a linear mixed model). The standard deviations say what is plausible before
any measurement; those of LLMs and pairs are estimated, because what one LLM does differently from
all others is what a prediction for a new one cannot know.

Maximum a posteriori by Gauss-Newton, the spread of each group of effects by expectation
maximisation, errors that may be large now and then (Student's t, by reweighting). Around the
optimum the law is taken as linear, so the coefficients are jointly normal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd

_ITERATIONS = 18
_FIXED_SPREAD = 3
"""Iterations before spreads are estimated: from far away they would grow to explain misfit."""
_FREEDOM = 4.0
"""Degrees of freedom of the errors."""
_START_NOISE = (0.15, 0.10)
_LEAST_NOISE = 0.02
_NOISE_WEIGHT = 3.0
"""Pseudo-observations behind the scale of errors of an engine, worth that of all rows."""
_NUMBERS_AT_ONCE = 8192
_PRIOR_WEIGHT = {"llm": 3.0, "support": 6.0, "version": 8.0, "pair": 8.0}
"""Pseudo-observations behind the prior spread of a group."""


Columns = Mapping[str, np.ndarray]
"""Columns of fact rows, or parameters of rows, by name; each of shape (rows,)."""


class Parameter(NamedTuple):
    """A parameter of a law, for an average LLM on an average GPU."""

    meaning: str
    prior: float  #: Most likely value before any measurement.
    sd: float
    """Standard deviation of its logarithm, of an exponent itself; 0: moved by effects alone."""
    is_exponent: bool = False  #: The law takes an exponent itself, and the logarithm of all others.

    @property
    def mean(self) -> float:
        """Most likely value as the law takes it."""
        return self.prior if self.is_exponent else float(np.log(self.prior))


class Effect(NamedTuple):
    """One column of the design."""

    parameter: str
    name: str
    values: np.ndarray
    sd: float
    mean: float = 0.0
    group: str = ""
    """Effects of one group share a standard deviation that is estimated; empty: `sd` holds."""


class Design(NamedTuple):
    """All effects on some rows: a parameter is the sum of its coefficients x columns."""

    columns: np.ndarray  #: Shape (rows, effects).
    position: np.ndarray
    """Which parameter each effect moves, as an index of the law's names; shape (effects,)."""
    names: list[tuple[str, str]]  #: (parameter, effect) of each column, unique.
    mean: np.ndarray
    sd: np.ndarray
    groups: list[str]
    n_parameters: int

    def parameters(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the parameters of each row, (rows, parameters); of n draws (n, rows, ...)."""
        phi = np.zeros((*coefficients.shape[:-1], len(self.columns), self.n_parameters))
        for index in np.unique(self.position):
            chosen = self.position == index
            phi[..., index] = coefficients[..., chosen] @ self.columns[:, chosen].T
        return phi


def design_of(
    X: pd.DataFrame, parameters: Mapping[str, Parameter], further: Iterable[Effect]
) -> Design:
    """Return the effects on fact rows: the parameters' means, and further ones that touch a row.

    Two frames give effects of the same name wherever they share a GPU type, an LLM, a pair.
    """
    every, index = np.ones(len(X)), {name: place for place, name in enumerate(parameters)}
    shared = {name: each for name, each in parameters.items() if each.sd}
    effects = [Effect(name, "all", every, each.sd, each.mean) for name, each in shared.items()]
    effects += [effect for effect in further if np.any(effect.values)]
    return Design(
        columns=np.stack([effect.values for effect in effects], axis=1),
        position=np.array([index[effect.parameter] for effect in effects]),
        names=[(effect.parameter, effect.name) for effect in effects],
        mean=np.array([effect.mean for effect in effects]),
        sd=np.array([effect.sd for effect in effects]),
        groups=[effect.group for effect in effects],
        n_parameters=len(parameters),
    )


def levels(
    names: pd.Series, kind: str, spread: Mapping[str, float], groups: Mapping[str, str]
) -> Iterator[Effect]:
    """Yield an effect on each parameter of `spread` for each name; `groups` names their groups."""
    for name in sorted(names.dropna().unique()):
        values = (names == name).to_numpy(float)
        for parameter, sd in spread.items():
            group = f"{groups[name]} {parameter}" if groups else ""
            yield Effect(parameter, f"{kind} {name}", values, sd, group=group)


def columns_of(X: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the numbers of a fact frame by name, for the law to compute with."""
    return {name: X[name].to_numpy(float) for name in X.select_dtypes("number")}


class Law(NamedTuple):
    """What is fitted: equations, and what moves their parameters."""

    parameters: Mapping[str, Parameter]
    """In the order in which the law takes them; the last two are `ttft_offset, itl_offset`: what
    the statistics of nTTFT and ITL are times the law's means."""
    terms: Callable[[np.ndarray, Columns], dict[str, np.ndarray]]
    """What the latencies are made of, by name, each of shape (rows,): of parameters (rows,
    parameters) and columns of facts."""
    itl_terms: tuple[str, ...]
    """Those that add up to the ITL; `prefill_ms, batching_ms, queueing_ms` do to the TTFT."""
    effects: Callable[[pd.DataFrame], Iterable[Effect]]
    tree_columns: Callable[[pd.DataFrame, np.ndarray], Mapping[str, np.ndarray | pd.Series]]
    """What trees see that correct the law, of fact rows and `predict_log` of them: `users,
    log_nttft, log_itl`, and what does not change with users; no LLM and no GPU by name."""
    freedom: Mapping[str, float] = {}
    """Degrees of freedom of the effects of groups (Student's t: most are small, a few are large),
    by the group's first word; those of others are normal. Their spread is estimated either way."""

    def predict_log(self, phi: np.ndarray, facts: Columns) -> np.ndarray:
        """Return the logarithms of nTTFT and ITL in ms, shape (rows, 2)."""
        parts = self.terms(phi, facts)
        ttft_ms = parts["prefill_ms"] + parts["batching_ms"] + parts["queueing_ms"]
        itl_ms = sum(parts[name] for name in self.itl_terms)
        return phi[:, -2:] + np.log(np.stack([ttft_ms / facts["input_tokens"], itl_ms], axis=1))

    def freedom_of(self, group: str) -> float:
        """Return the degrees of freedom of a group's effects; of normal ones infinite."""
        return self.freedom.get(group.partition(" ")[0], np.inf)

    def design(self, X: pd.DataFrame) -> Design:
        """Return the effects on the rows of a fact frame."""
        return design_of(X, self.parameters, self.effects(X))


class Posterior(NamedTuple):
    """What is known after a fit."""

    law: Law
    names: list[tuple[str, str]]
    mean: np.ndarray
    covariance: np.ndarray
    spread: dict[str, float]
    """Estimated standard deviation of each group of effects, or scale of its Student's t."""
    noise: dict[str, np.ndarray]
    """Scale of the errors of log nTTFT and log ITL by `error_kinds`; of "" those of all rows."""

    def most_likely(self, X: pd.DataFrame) -> np.ndarray:
        """Return the parameters of each row at the coefficients' mean, (rows, parameters)."""
        design = self.law.design(X)
        known = dict(zip(self.names, self.mean, strict=True))
        pairs = zip(design.names, design.mean, strict=True)
        return design.parameters(np.array([known.get(name, mean) for name, mean in pairs]))

    def draw(self, X: pd.DataFrame, n: int, seed: int) -> np.ndarray:
        """Return joint draws of log nTTFT and log ITL, errors included, shape (n, rows, 2).

        Every random number belongs to a name: a row has the same draws whatever else is asked for.
        """
        design = self.law.design(X)
        coefficients = self._coefficients(design, n, seed)
        # A few draws at a time: their numbers stay in the processor's cache.
        step = min(max(_NUMBERS_AT_ONCE // len(X), 1), n)
        facts = {name: np.tile(values, step) for name, values in columns_of(X).items()}
        latencies = np.empty((n, len(X), 2))
        for start in range(0, n, step):
            phi = design.parameters(coefficients[start : start + step])
            here = {name: values[: phi[..., 0].size] for name, values in facts.items()}
            found = self.law.predict_log(phi.reshape(-1, design.n_parameters), here)
            latencies[start : start + step] = found.reshape(len(phi), len(X), 2)
        return latencies + self.draw_errors(X, n, seed)

    def draw_parameters(self, X: pd.DataFrame, n: int, seed: int) -> np.ndarray:
        """Return joint draws of the parameters of each row, shape (n, rows, parameters)."""
        design = self.law.design(X)
        return design.parameters(self._coefficients(design, n, seed))

    def _coefficients(self, design: Design, n: int, seed: int) -> np.ndarray:
        """Return draws of a design's coefficients, (n, effects); new effects have their prior."""
        root = np.linalg.cholesky(self.covariance + 1e-12 * np.eye(len(self.mean)))
        known = self.mean + normal(seed, "known effects", (n, len(self.mean))) @ root.T
        place = {name: position for position, name in enumerate(self.names)}
        drawn = np.empty((n, len(design.names)))
        for column, name in enumerate(design.names):
            if name in place:
                drawn[:, column] = known[:, place[name]]
                continue
            # The name of a new effect without the LLM's, on which nothing may depend.
            kind, _, rest = name[1].partition(" ")
            rest = rest.rpartition("|")[2]
            nameless = {"llm": "llm ", "pair": f"pair {rest}", "support": f"support {rest}"}
            anonymous = f"{name[0]} {nameless.get(kind, name[1])}"
            group = design.groups[column]
            unit = normal(seed, anonymous, n)
            freedom = self.law.freedom_of(group)
            if np.isfinite(freedom):
                unit /= _root(seed, anonymous, n, freedom)
            sd = self.spread.get(group, design.sd[column])
            drawn[:, column] = design.mean[column] + sd * unit
        return drawn

    def draw_errors(self, X: pd.DataFrame, n: int, seed: int) -> np.ndarray:
        """Return errors of log nTTFT and log ITL, shape (n, rows, 2): Student's t, as the fit's.

        Half of their variance is common to a pair, and so is whether they are large, since misfit
        is smooth.
        """
        drawn = np.empty((n, len(X), 2))
        names = X["gpu_profile_id"]
        common = {name: normal(seed, f"error {name}", (n, 2)) for name in names.unique()}
        root = {name: _root(seed, f"error {name}", (n, 2), _FREEDOM) for name in common}
        for row, (name, users) in enumerate(zip(names, X["users"], strict=True)):
            own = normal(seed, f"error {name} {users}", (n, 2))
            drawn[:, row] = np.sqrt(0.5) * (common[name] + own) / root[name]
        return drawn * np.stack([self.noise.get(kind, self.noise[""]) for kind in error_kinds(X)])


def error_kinds(X: pd.DataFrame) -> pd.Series:
    """Return what rows share a scale of errors: those of an engine, which a law describes as well
    or badly whatever else is in the fit."""
    return X["engine"] if "engine" in X else pd.Series("", X.index)


def prior(law: Law) -> Posterior:
    """Return what is known before any measurement."""
    return Posterior(law, [], np.empty(0), np.empty((0, 0)), {}, {"": np.array(_START_NOISE)})


def normal(seed: int, name: str, shape: int | tuple[int, ...]) -> np.ndarray:
    """Return standard normal numbers that depend on the seed and on this name alone."""
    return np.random.default_rng([seed, crc32(name.encode())]).standard_normal(shape)


def _root(seed: int, name: str, shape: int | tuple[int, ...], freedom: float) -> np.ndarray:
    """Return what standard normal numbers are divided by to be Student's t."""
    generator = np.random.default_rng([seed, crc32(f"root {name}".encode())])
    return np.sqrt(generator.chisquare(freedom, shape) / freedom)


class _Problem(NamedTuple):
    law: Law
    design: Design
    facts: dict[str, np.ndarray]
    observed: np.ndarray  #: Logarithms of the targets, (rows, 2); NaN where one was not measured.

    def residuals(self, coefficients: np.ndarray) -> np.ndarray:
        """Return what was measured over what is predicted; 0 where nothing was measured."""
        missed = self.observed - self.law.predict_log(
            self.design.parameters(coefficients), self.facts
        )
        return np.where(np.isfinite(self.observed), missed, 0.0)

    def cost(self, coefficients: np.ndarray, variance: np.ndarray, noise: np.ndarray) -> float:
        """Return the negative logarithm of the posterior, up to a constant."""
        errors = self.residuals(coefficients) ** 2 / (_FREEDOM * noise**2)
        prior = (coefficients - self.design.mean) ** 2 / variance
        return float(0.5 * (_FREEDOM + 1) * np.log1p(errors).sum() + 0.5 * prior.sum())

    def jacobian(self, coefficients: np.ndarray) -> np.ndarray:
        """Return derivatives of the targets by coefficient, (2 x rows, effects), nTTFT first."""
        phi, step = self.design.parameters(coefficients), 1e-4
        by_parameter = np.empty((2, *phi.shape))
        for index, shift in enumerate(step * np.eye(phi.shape[1])):
            ahead, behind = (self.law.predict_log(phi + way * shift, self.facts) for way in (1, -1))
            by_parameter[:, :, index] = ((ahead - behind) / (2 * step)).T
        chosen = np.take(by_parameter, self.design.position, axis=2)
        return (self.design.columns * chosen).reshape(-1, len(self.design.names))


class LawFit(NamedTuple):
    """A fit and the straight line that it ends on, from which rows can be taken away again."""

    posterior: Posterior
    problem: _Problem
    jacobian: np.ndarray  #: Shape (2 x rows, effects).
    precision: np.ndarray  #: Weights of the errors, (2 x rows,).
    variance: np.ndarray

    def unseen(self, llm_ids: pd.Series) -> np.ndarray:
        """Predict each LLM by a fit without it: log nTTFT and log ITL, shape (rows, 2).

        One Gauss-Newton step from the optimum takes the place of a fit of its own.
        """
        mean, design = self.posterior.mean, self.problem.design
        predicted = np.empty((len(llm_ids), 2))
        for llm_id in llm_ids.unique():
            rows = (llm_ids == llm_id).to_numpy()
            kept = np.tile(~rows, 2)
            jacobian, precision = self.jacobian[kept], self.precision[kept]
            residuals = self.problem.residuals(mean).T.ravel()[kept]
            shifted = residuals + jacobian @ (mean - design.mean)
            hessian = _squared(jacobian, precision) + np.diag(1 / self.variance)
            other = design.mean + np.linalg.solve(hessian, jacobian.T @ (precision * shifted))
            facts = {name: values[rows] for name, values in self.problem.facts.items()}
            phi = design.parameters(other)[rows]
            predicted[rows] = self.problem.law.predict_log(phi, facts)
        return predicted


def fit_law(
    law: Law, X: pd.DataFrame, y_ms: np.ndarray, least: Mapping[str, float] | None = None
) -> LawFit:
    """Fit a law to fact rows of points and their nTTFT and ITL in ms, (rows, 2), NaN: not measured.

    `least` has the least scale of some groups of effects.
    """
    problem = _Problem(law, law.design(X), columns_of(X), np.log(y_ms))
    design = problem.design
    freedom = np.array([law.freedom_of(group) for group in design.groups])
    floor = np.array([(least or {}).get(group, 0.0) for group in design.groups]) ** 2
    spreads = variance = np.maximum(design.sd**2, floor)
    is_known, kinds = np.isfinite(problem.observed), error_kinds(X).to_numpy()
    noise = np.tile(_START_NOISE, (len(X), 1))
    coefficients, weights = design.mean.copy(), is_known.astype(float)
    for iteration in range(_ITERATIONS):
        precision = (weights / noise**2).T.ravel()
        jacobian = problem.jacobian(coefficients)
        residuals = problem.residuals(coefficients).T.ravel()
        covariance = np.linalg.inv(_squared(jacobian, precision) + np.diag(1 / variance))
        shifted = residuals + jacobian @ (coefficients - design.mean)
        target = design.mean + covariance @ (jacobian.T @ (precision * shifted))
        start, limit = coefficients, problem.cost(coefficients, variance, noise)
        # All the way, or half of it, a quarter ...: the first that costs no more.
        for halvings in range(6):
            coefficients = start + (target - start) / 2**halvings
            if problem.cost(coefficients, variance, noise) <= limit:
                break
        errors = problem.residuals(coefficients)
        weights = is_known * (_FREEDOM + 1) / (_FREEDOM + (errors / noise) ** 2)
        if iteration >= _FIXED_SPREAD:
            doubt = ((jacobian @ covariance) * jacobian).sum(axis=1).reshape(2, -1).T
            scales = _error_scales(weights * (errors**2 + doubt), is_known, kinds)
            noise = np.stack([scales[kind] for kind in kinds])
            squares = (coefficients - design.mean) ** 2
            expected = squares + np.diag(covariance)
            weight = _weight(freedom, expected / spreads)
            spreads = np.maximum(_estimate_spreads(design, weight * expected), floor)
            # With these variances normal effects of groups are those of Student's t.
            tails = spreads / _weight(freedom, squares / spreads)
            variance = np.where(np.isfinite(freedom), tails, spreads)
    spread = {g: float(np.sqrt(v)) for g, v in zip(design.groups, spreads, strict=True) if g}
    posterior = Posterior(law, design.names, coefficients, covariance, spread, scales)
    return LawFit(posterior, problem, jacobian, precision, variance)


def _error_scales(
    squares: np.ndarray, is_known: np.ndarray, kinds: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the scale of errors of each kind, a few rows' mostly that of all rows."""
    every = squares.sum(axis=0) / is_known.sum(axis=0).clip(1)
    scales = {}
    for kind in np.unique(kinds):
        rows = kinds == kind
        total = squares[rows].sum(axis=0) + _NOISE_WEIGHT * every
        mean = total / (is_known[rows].sum(axis=0) + _NOISE_WEIGHT)
        scales[kind] = np.sqrt(mean).clip(_LEAST_NOISE)
    # Last: rows without an engine's name have the scale of all rows, as a new engine has.
    return scales | {"": np.sqrt(every).clip(_LEAST_NOISE)}


def _squared(jacobian: np.ndarray, precision: np.ndarray) -> np.ndarray:
    """Return J' P J; as the square of one matrix it takes half of the work."""
    rooted = jacobian * np.sqrt(precision)[:, None]
    return rooted.T @ rooted


def _weight(freedom: np.ndarray, ratio: np.ndarray) -> np.ndarray:
    """Return how much effects count, by their squares over those of their scale (Student's t)."""
    return (1 + 1 / freedom) / (1 + ratio / freedom)


def _estimate_spreads(design: Design, expected: np.ndarray) -> np.ndarray:
    """Return the squared scales, each group's estimated from its effects' squares and its prior."""
    groups = np.array(design.groups)
    estimated = design.sd**2
    for group in set(design.groups) - {""}:
        chosen = groups == group
        weight, prior_sd = _PRIOR_WEIGHT[group.split()[0]], design.sd[chosen][0]
        total = expected[chosen].sum() + weight * prior_sd**2
        estimated[chosen] = total / (chosen.sum() + weight)
    return estimated
