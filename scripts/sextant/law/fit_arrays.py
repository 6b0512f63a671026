"""A fit as arrays, as files keep it, and the fit of such arrays again (`fits`).

Each `arrays_of_…` has its inverse, `…_of`. Those of a fit are parts of one dictionary, so their
names differ. The inverses raise KeyError or ValueError where arrays are not of a fit.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from sextant.law.fit import Checkpoint
from sextant.law.own import OwnTerms
from sextant.law.posterior import Law, Posterior


def arrays_of_posterior(posterior: Posterior) -> dict[str, np.ndarray]:
    """Return all of a posterior but its law."""
    arrays = {
        "names": posterior.names,
        "mean": posterior.mean,
        "covariance": posterior.covariance,
        "groups": [*posterior.spread],
        "spreads": [*posterior.spread.values()],
        "kinds": [*posterior.noise],
        "noises": [*posterior.noise.values()],
    }
    factors = arrays_of_factors(posterior.unseen_factors)
    return _as_arrays(arrays) | factors | _arrays_of_own(posterior.own)


def posterior_of(law: Law, arrays: Mapping[str, np.ndarray]) -> Posterior:
    """Return the posterior of this law that `arrays_of_posterior` was given."""
    return Posterior(
        law=law,
        names=_names_of(arrays),
        mean=arrays["mean"],
        covariance=arrays["covariance"],
        spread=_numbers_by_name(arrays["groups"], arrays["spreads"]),
        noise=dict(zip(map(str, arrays["kinds"]), arrays["noises"], strict=True)),
        unseen_factors=factors_of(arrays),
        own=_own_of(arrays),
    )


def arrays_of_checkpoint(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return a fit before its last iteration."""
    scales = checkpoint.scales
    arrays = {
        "names": checkpoint.names,
        "before": checkpoint.before,
        "variance": checkpoint.variance,
        "mean": checkpoint.coefficients,
        "groups": [*checkpoint.spread],
        "spreads": [*checkpoint.spread.values()],
        "kinds": [*scales],
        "scales": [*scales.values()],
        "scales_before": [checkpoint.scales_before.get(kind, scales[kind]) for kind in scales],
        "noises": [checkpoint.noise[kind] for kind in scales],
    }
    return _as_arrays(arrays)


def checkpoint_of(arrays: Mapping[str, np.ndarray]) -> Checkpoint:
    """Return the fit that `arrays_of_checkpoint` was given."""
    kinds = [str(kind) for kind in arrays["kinds"]]
    scales, scales_before, noise = (
        dict(zip(kinds, arrays[name], strict=True))
        for name in ("scales", "scales_before", "noises")
    )
    return Checkpoint(
        names=_names_of(arrays),
        before=arrays["before"],
        variance=arrays["variance"],
        scales=scales,
        scales_before=scales_before,
        coefficients=arrays["mean"],
        spread=_numbers_by_name(arrays["groups"], arrays["spreads"]),
        noise=noise,
    )


def arrays_of_factors(factors: Mapping[str, float]) -> dict[str, np.ndarray]:
    """Return `Posterior.unseen_factors`."""
    return _as_arrays({"unseen": [*factors], "unseen_factors": [*factors.values()]})


def factors_of(arrays: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Return the factors that `arrays_of_factors` was given."""
    return _numbers_by_name(arrays["unseen"], arrays["unseen_factors"])


def _arrays_of_own(own: Mapping[str, OwnTerms]) -> dict[str, np.ndarray]:
    """Return own terms, those of each LLM beside the others' by field."""
    by_field = {
        field: [getattr(terms, field) for terms in own.values()] for field in OwnTerms._fields
    }
    names = {"own_names": np.array([*own], str)}
    return names | {f"own_{field}": np.array(values) for field, values in by_field.items()}


def _own_of(arrays: Mapping[str, np.ndarray]) -> dict[str, OwnTerms]:
    fields = [arrays[f"own_{field}"] for field in OwnTerms._fields]
    terms = map(OwnTerms._make, zip(*fields, strict=True))
    return dict(zip(map(str, arrays["own_names"]), terms, strict=True))


def _names_of(arrays: Mapping[str, np.ndarray]) -> list[tuple[str, str]]:
    return [(str(parameter), str(effect)) for parameter, effect in arrays["names"]]


def _numbers_by_name(names: np.ndarray, numbers: np.ndarray) -> dict[str, float]:
    return dict(zip(map(str, names), numbers.tolist(), strict=True))


def _as_arrays(arrays: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return {name: np.asarray(array) for name, array in arrays.items()}
