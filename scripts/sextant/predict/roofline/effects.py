"""What moves the parameters of the law: execution class, GPU type, tensor parallelism, LLM, pair.

A parameter of a row is its prior mean plus effects, each a column times a coefficient that is
normal around 0 (a linear mixed model). The standard deviations say what is plausible before
any measurement; those of LLMs and pairs are estimated, because what one LLM does differently
from all others is what a prediction for a new one cannot know.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from sextant.points.features import ENCODER_DECODER, PAGED
from sextant.predict.roofline.law import PARAMETERS, prior_mean

# Standard deviations of effects, by parameter.
_EXECUTION = {
    "launch": 0.2,
    "sequence": 0.35,
    "waiting": 0.1,
    "capacity": 0.35,
    "itl_capacity": 0.2,
    "prefill": 0.15,
    "kv": 1.0,
    "kv_growth": 0.2,
    "sharpness": 0.15,
    "waiting_half": 0.1,
    "activation": 0.7,
    "queue": 0.15,
}
# Of a padded or a paged batch only.
_BATCH = {"capacity_growth": 0.5, "itl_growth": 0.4}
_GPU = {
    "launch": 0.3,
    "sequence": 0.4,
    "bandwidth": 0.15,
    "flops": 0.3,
    "kv": 0.3,
    "waiting": 0.1,
    "prefill": 0.15,
}
_LLM = {
    "launch": 0.12,
    "sequence": 0.2,
    "capacity": 0.3,
    "kv": 0.2,
    "waiting": 0.08,
    "prefill": 0.15,
    "bandwidth": 0.05,
    "flops": 0.1,
    "itl_capacity": 0.15,
}
_PAIR = {"capacity": 0.3, "itl_capacity": 0.15}
_PARALLEL = {"launch": 0.1, "sequence": 0.2, "kv": 0.2}


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
    """All effects on some rows: `phi = prior + sum of coefficient x column` by parameter."""

    columns: np.ndarray
    """Shape (rows, effects)."""
    position: np.ndarray
    """Which parameter each effect moves, as an index of the law's names; shape (effects,)."""
    names: list[tuple[str, str]]
    """(parameter, effect) of each column, unique."""
    mean: np.ndarray
    sd: np.ndarray
    groups: list[str]

    n_parameters: int

    def parameters(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the parameters of each row, shape (rows, parameters).

        Of n draws of the coefficients, shape (n, effects), they have shape (n, rows, parameters).
        """
        phi = np.zeros((*coefficients.shape[:-1], len(self.columns), self.n_parameters))
        for index in np.unique(self.position):
            chosen = self.position == index
            phi[..., index] = coefficients[..., chosen] @ self.columns[:, chosen].T
        return phi


def design_of(effects: Iterable[Effect], names: Sequence[str]) -> Design:
    """Return the design of those effects that touch a row.

    Two frames give effects of the same name wherever they share a GPU type, an LLM, a pair.

    Args:
        effects: on the rows of a fact frame.
        names: the law's parameters, in the order in which it takes them.
    """
    effects = [effect for effect in effects if np.any(effect.values)]
    index = {name: position for position, name in enumerate(names)}
    return Design(
        columns=np.stack([effect.values for effect in effects], axis=1),
        position=np.array([index[effect.parameter] for effect in effects]),
        names=[(effect.parameter, effect.name) for effect in effects],
        mean=np.array([effect.mean for effect in effects]),
        sd=np.array([effect.sd for effect in effects]),
        groups=[effect.group for effect in effects],
        n_parameters=len(names),
    )


def effects(X: pd.DataFrame) -> Iterator[Effect]:
    """Yield all effects on the rows of a fact frame."""
    for parameter, prior in PARAMETERS.items():
        yield Effect(parameter, "all", np.ones(len(X)), prior.sd, prior_mean(parameter))
    yield from _execution_effects(X)
    yield from _gpu_effects(X)
    pairs = X["llm_id"] + "|" + X["gpu_profile_id"]
    classes = dict(zip(X["llm_id"], X["execution"], strict=True))
    # LLMs of one class differ among themselves by as much as that class's software lets them.
    llm_groups = {llm_id: f"llm {name}" for llm_id, name in classes.items()}
    yield from levels(X["llm_id"], "llm", _LLM, llm_groups)
    yield from levels(pairs, "pair", _PAIR, dict.fromkeys(pairs, "pair"))


def _execution_effects(X: pd.DataFrame) -> Iterator[Effect]:
    paged, encoded = X["execution"] == PAGED, X["execution"] == ENCODER_DECODER
    parallel = (X["n_gpus"] > 1).to_numpy(float)
    contrasts = {"paged": paged, "padded": ~paged, "encoder": encoded, "decoder": ~encoded}
    for name, rows in contrasts.items():
        values = rows.to_numpy(float)
        for parameter, sd in _EXECUTION.items():
            yield Effect(parameter, name, values, sd)
        if name in ("paged", "padded"):
            for parameter, sd in _BATCH.items():
                yield Effect(parameter, name, values, sd)
        if name != "decoder":
            # Every block waits for an all-reduce: about a fifth more, whatever the LLM.
            mean = 0.0 if name == "encoder" else 0.2
            yield Effect("launch", f"{name} parallel", values * parallel, 0.1, mean)


def _gpu_effects(X: pd.DataFrame) -> Iterator[Effect]:
    parallel = (X["n_gpus"] > 1).to_numpy(float)
    for parameter, sd in _PARALLEL.items():
        yield Effect(parameter, "doubling", np.log2(X["n_gpus"].to_numpy(float)), sd)
    yield from levels(X["gpu_id"], "gpu", _GPU, {})
    for gpu_id in sorted(X["gpu_id"].unique()):
        here = (X["gpu_id"] == gpu_id).to_numpy(float)
        yield Effect("launch", f"gpu {gpu_id} parallel", here * parallel, 0.15)
        for name, rows in (("paged", X["is_paged"] > 0), ("padded", X["is_paged"] == 0)):
            yield Effect("launch", f"gpu {gpu_id} {name}", here * rows.to_numpy(float), 0.1)


def levels(
    names: pd.Series, kind: str, spread: Mapping[str, float], groups: Mapping[str, str]
) -> Iterator[Effect]:
    """Yield an effect on each parameter of `spread` for each name; `groups` names their groups."""
    for name in sorted(names.unique()):
        values = (names == name).to_numpy(float)
        for parameter, sd in spread.items():
            group = f"{groups[name]} {parameter}" if groups else ""
            yield Effect(parameter, f"{kind} {name}", values, sd, group=group)
