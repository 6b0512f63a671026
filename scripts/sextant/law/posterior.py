"""The parts of a law, and its posterior: the most likely coefficients and their joint uncertainty.

A parameter of a law is, for a row, its prior mean plus effects. Each effect is a column times a
coefficient that is normal around 0 (a linear mixed model). The standard deviations say what is
plausible before any measurement. The standard deviations of LLMs and pairs are estimated: it is not
known what a new LLM does differently from all others. `law.fit` fits a law to points; around the
optimum the law is taken as linear, so the coefficients are jointly normal.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple
from zlib import crc32

import numpy as np
import pandas as pd

from sextant.law.own import OwnTerms, own_names, rows_by_name

FREEDOM = 4.0
"""Degrees of freedom of the errors."""
START_NOISE = (0.15, 0.10)
"""Scale of the errors of log nTTFT and log ITL before any measurement."""
_FARTHEST = float(np.log(20.0))
"""How far an effect that nothing is known of is drawn at most: a factor of 20. Student's t of 2
degrees of freedom knows no bounds, and a latency of 10^17 ms no law."""
_NUMBERS_AT_ONCE = 8192


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
    kinds: list[str]
    """Kind of the rows that each effect moves (`error_kinds`); "": of several kinds."""
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

    An effect has the same name in two frames that share its GPU type, its LLM or its pair.
    """
    every_row = np.ones(len(X))
    effects = [
        Effect(name, "all", every_row, parameter.sd, parameter.mean)
        for name, parameter in parameters.items()
        if parameter.sd
    ]
    effects += [effect for effect in further if np.any(effect.values)]
    index = {name: position for position, name in enumerate(parameters)}
    columns = np.stack([effect.values for effect in effects], axis=1)
    return Design(
        columns=columns,
        position=np.array([index[effect.parameter] for effect in effects]),
        names=[(effect.parameter, effect.name) for effect in effects],
        mean=np.array([effect.mean for effect in effects]),
        sd=np.array([effect.sd for effect in effects]),
        groups=[effect.group for effect in effects],
        kinds=_kinds_of_columns(columns, error_kinds(X)),
        n_parameters=len(parameters),
    )


def _kinds_of_columns(columns: np.ndarray, kinds: pd.Series) -> list[str]:
    """Return the kind of the rows in which each column is not 0; "" where there are several."""
    codes, unique = pd.factorize(kinds)
    is_moved = columns != 0
    first = np.where(is_moved, codes[:, None], len(unique)).min(axis=0)
    last = np.where(is_moved, codes[:, None], -1).max(axis=0)
    pairs = zip(first, last, strict=True)
    return [str(unique[low]) if low == high else "" for low, high in pairs]


def levels(
    names: pd.Series,
    kind: str,
    spread: Mapping[str, float],
    groups: Mapping[str, str] | None = None,
) -> Iterator[Effect]:
    """Yield an effect on each parameter of `spread` for each name.

    `groups` has the group of each name, whose standard deviation is estimated.
    """
    codes, unique = pd.factorize(names, sort=True)
    for code, name in enumerate(unique):
        values = (codes == code).astype(float)
        for parameter, sd in spread.items():
            group = f"{groups[name]} {parameter}" if groups else ""
            yield Effect(parameter, f"{kind} {name}", values, sd, group=group)


def columns_of(X: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return the numbers of a fact frame by name, for the law to compute with."""
    return {name: X[name].to_numpy(float) for name in X.select_dtypes("number")}


class Law(NamedTuple):
    """What is fitted: equations, and what moves their parameters."""

    parameters: Mapping[str, Parameter]
    """In the order in which the law takes them. The last two are `ttft_offset, itl_offset`: the
    ratio of the statistics of nTTFT and ITL to the law's means."""
    terms: Callable[[np.ndarray, Columns], dict[str, np.ndarray]]
    """What the latencies are made of, by name, each of shape (rows,), from parameters of shape
    (rows, parameters) and columns of facts."""
    itl_terms: tuple[str, ...]
    """Terms that add up to the ITL; `prefill_ms, batching_ms, queueing_ms` add up to the TTFT."""
    effects: Callable[[pd.DataFrame], Iterable[Effect]]
    freedom: Mapping[str, float] = {}
    """Degrees of freedom of a group's effects (Student's t), by the group's first word; effects of
    other groups are normal. The spread of both is estimated."""
    own: Mapping[str, float] = {}
    """Standard deviations of the parameters that a measured LLM has of its own (`own`)."""

    @property
    def own_positions(self) -> list[int]:
        """The indices of these parameters."""
        names = list(self.parameters)
        return [names.index(name) for name in self.own]

    def predict_log(self, phi: np.ndarray, facts: Columns) -> np.ndarray:
        """Return the logarithms of nTTFT and ITL in ms, shape (rows, ..., 2)."""
        parts = self.terms(phi, facts)
        ttft_ms = parts["prefill_ms"] + parts["batching_ms"] + parts["queueing_ms"]
        itl_ms = sum(parts[name] for name in self.itl_terms)
        return phi[..., -2:] + np.log(np.stack([ttft_ms / facts["input_tokens"], itl_ms], axis=-1))

    def freedom_of(self, group: str) -> float:
        """Return the degrees of freedom of a group's effects; infinite for normal effects."""
        return self.freedom.get(group.partition(" ")[0], np.inf)

    def design(self, X: pd.DataFrame) -> Design:
        """Return the effects on the rows of a fact frame."""
        return design_of(X, self.parameters, self.effects(X))


class _Part(NamedTuple):
    """Rows of one LLM, on one engine and architecture of GPUs, and n draws of what moves them."""

    rows: np.ndarray | slice
    design: Design  #: Of these rows.
    coefficients: np.ndarray  #: Of the design, (n, effects).
    own_terms: np.ndarray | None  #: Of the LLM, (n, terms); None: it has none.


class _Parts(NamedTuple):
    """All rows of a design, parted by what their LLMs have of their own."""

    design: Design
    parts: list[_Part]
    own_positions: list[int]  #: Indices of the parameters that LLMs have of their own.

    def parameters(self, draws: slice = slice(None)) -> np.ndarray:
        """Return the parameters of each row in some of the draws, (draws, rows, parameters)."""
        n_draws = len(self.parts[0].coefficients[draws])
        phi = np.empty((n_draws, len(self.design.columns), self.design.n_parameters))
        for part in self.parts:
            of_rows = part.design.parameters(part.coefficients[draws])
            if part.own_terms is not None:
                of_rows[..., self.own_positions] += part.own_terms[draws, None, :]
            phi[:, part.rows] = of_rows
        return phi


class Posterior(NamedTuple):
    """A law's coefficients after a fit: jointly normal."""

    law: Law
    names: list[tuple[str, str]]
    mean: np.ndarray
    covariance: np.ndarray
    spread: dict[str, float]
    """Estimated standard deviation of each group of effects, or scale of its Student's t."""
    noise: dict[str, np.ndarray]
    """Scale of the errors of log nTTFT and log ITL, by `error_kinds`; under "", of all rows."""
    unseen_factors: Mapping[str, float] = {}
    """Factor of a group's scale in rows of one kind, by `unseen_key`, for effects that the fit has
    not seen; 1 where there is none."""
    own: Mapping[str, OwnTerms] = {}
    """What is an LLM's own, by `own_names`."""

    def most_likely(self, X: pd.DataFrame) -> np.ndarray:
        """Return the parameters of each row at the coefficients' mean, (rows, parameters)."""
        design = self.law.design(X)
        at_mean = np.zeros((1, len(self.law.own)))
        return self._parts(design, X, self.likeliest(design)[None], at_mean).parameters()[0]

    def draw(self, X: pd.DataFrame, n: int, seed: int) -> np.ndarray:
        """Return joint draws of log nTTFT and log ITL, errors included, shape (n, rows, 2).

        Each effect has its own random stream, seeded by its name: the draws of a row do not depend
        on the other rows.
        """
        design = self.law.design(X)
        coefficients = self._coefficients(design, n, seed)
        parts = self._parts(design, X, coefficients, self._own_units(n, seed))

        # A few draws at a time: their numbers stay in the processor's cache.
        step = min(max(_NUMBERS_AT_ONCE // len(X), 1), n)
        facts = {name: np.tile(values, step) for name, values in columns_of(X).items()}
        latencies = np.empty((n, len(X), 2))
        for start in range(0, n, step):
            phi = parts.parameters(slice(start, start + step))
            tiled = {name: values[: phi[..., 0].size] for name, values in facts.items()}
            predicted = self.law.predict_log(phi.reshape(-1, design.n_parameters), tiled)
            latencies[start : start + step] = predicted.reshape(len(phi), len(X), 2)
        return latencies + self.draw_errors(X, n, seed)

    def draw_parameters(self, X: pd.DataFrame, n: int, seed: int) -> np.ndarray:
        """Return the parameters of each row, (1 + n, rows, parameters).

        The most likely ones come first, then joint draws.
        """
        design = self.law.design(X)
        drawn = self._coefficients(design, n, seed)
        coefficients = np.concatenate([self.likeliest(design)[None], drawn])
        units = self._own_units(n, seed)
        units = np.concatenate([np.zeros((1, units.shape[1])), units])
        return self._parts(design, X, coefficients, units).parameters()

    def _own_units(self, n: int, seed: int) -> np.ndarray:
        """Return standard normal numbers for draws of own terms, (n, terms)."""
        return normal(seed, "own terms", (n, len(self.law.own)))

    def _parts(
        self, design: Design, X: pd.DataFrame, coefficients: np.ndarray, units: np.ndarray
    ) -> "_Parts":
        """Return what the parameters of each row follow from, own terms included.

        Args:
            design: of the rows `X`.
            coefficients: of the design, (n, effects).
            units: standard normal numbers of own terms, (n, terms).
        """
        if not self.own:
            return _Parts(design, [_Part(slice(None), design, coefficients, None)], [])
        columns, rows_in_fit = self._known(design)
        parts = []
        for name, rows in rows_by_name(own_names(X)):
            part = _Part(rows, design._replace(columns=design.columns[rows]), coefficients, None)
            if name in self.own:
                own = self.own[name]
                terms = own.at(units)
                moved = coefficients.copy()
                moved[:, columns] += terms @ own.given_way[rows_in_fit].T
                part = part._replace(coefficients=moved, own_terms=terms)
            parts.append(part)
        return _Parts(design, parts, self.law.own_positions)

    def _known(self, design: Design) -> tuple[list[int], list[int]]:
        """Return which of a design's effects the fit has seen, and where it has them."""
        place_of = {name: place for place, name in enumerate(self.names)}
        columns = [column for column, name in enumerate(design.names) if name in place_of]
        return columns, [place_of[design.names[column]] for column in columns]

    def likeliest(self, design: Design) -> np.ndarray:
        """Return a design's coefficients at their mean, (effects,)."""
        fitted = dict(zip(self.names, self.mean, strict=True))
        pairs = zip(design.names, design.mean, strict=True)
        return np.array([fitted.get(name, mean) for name, mean in pairs])

    def _coefficients(self, design: Design, n: int, seed: int) -> np.ndarray:
        """Return draws of a design's coefficients, (n, effects); new effects have their prior."""
        drawn = np.empty((n, len(design.names)))
        known, rows = self._known(design)
        root = np.linalg.cholesky(self.covariance + 1e-12 * np.eye(len(self.mean)))[rows]
        units = normal(seed, "known effects", (n, len(self.mean)))
        drawn[:, known] = self.mean[rows] + units @ root.T
        unknown = np.setdiff1d(np.arange(len(design.names)), known)
        for column in unknown.tolist():
            # The name of the LLM is not in that of the stream: draws for a new LLM must not depend
            # on what it is called.
            parameter, effect = design.names[column]
            kind, _, rest = effect.partition(" ")
            rest = rest.rpartition("|")[2]
            without_llm = {"llm": "llm ", "pair": f"pair {rest}", "support": f"support {rest}"}
            stream = f"{parameter} {without_llm.get(kind, effect)}"

            group = design.groups[column]
            unit = normal(seed, stream, n)
            freedom = self.law.freedom_of(group)
            if np.isfinite(freedom):
                unit /= _root(seed, stream, n, freedom)
            sd = self.spread.get(group, design.sd[column])
            sd *= self.unseen_factors.get(unseen_key(design.kinds[column], group), 1.0)
            drawn[:, column] = design.mean[column] + np.clip(sd * unit, -_FARTHEST, _FARTHEST)
        return drawn

    def draw_errors(self, X: pd.DataFrame, n: int, seed: int) -> np.ndarray:
        """Return errors of log nTTFT and log ITL, shape (n, rows, 2): Student's t, as in the fit.

        Half of their variance is common to a pair, since misfit is smooth; for the same reason the
        errors of a pair are large together.
        """
        drawn = np.empty((n, len(X), 2))
        names = X["gpu_profile_id"]
        common = {name: normal(seed, f"error {name}", (n, 2)) for name in names.unique()}
        root = {name: _root(seed, f"error {name}", (n, 2), FREEDOM) for name in common}
        for row, (name, users) in enumerate(zip(names, X["users"], strict=True)):
            separate = normal(seed, f"error {name} {users}", (n, 2))
            drawn[:, row] = np.sqrt(0.5) * (common[name] + separate) / root[name]
        return drawn * np.stack([self.noise.get(kind, self.noise[""]) for kind in error_kinds(X)])


def unseen_key(kind: str, group: str) -> str:
    """Return the key of `unseen_factors`: of effects of a group that move rows of one kind."""
    return f"{kind} {group}"


def error_kinds(X: pd.DataFrame) -> pd.Series:
    """Return the kind of each row's errors: its engine.

    Rows of one kind share a scale: a law describes an engine equally well whatever else is fitted.
    """
    return X["engine"] if "engine" in X else pd.Series("", X.index)


def prior(law: Law) -> Posterior:
    """Return what is known before any measurement."""
    return Posterior(law, [], np.empty(0), np.empty((0, 0)), {}, {"": np.array(START_NOISE)})


def normal(seed: int, name: str, shape: int | tuple[int, ...]) -> np.ndarray:
    """Return standard normal numbers that depend on the seed and on this name alone."""
    return np.random.default_rng([seed, crc32(name.encode())]).standard_normal(shape)


def _root(seed: int, name: str, shape: int | tuple[int, ...], freedom: float) -> np.ndarray:
    """Return the divisors that turn standard normal numbers into Student's t."""
    generator = np.random.default_rng([seed, crc32(f"root {name}".encode())])
    return np.sqrt(generator.chisquare(freedom, shape) / freedom)
