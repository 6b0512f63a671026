"""Fits step laws: engine steps seen by the client of a closed loop, and scales that match means.

Gauss-Newton on logarithms, for any number of laws at once, with normal priors on the scales.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from sextant.simulate.inputs import NAMES, StepLaw

_ITERATIONS = 8
_STEP = 1e-3
_CLOSE = 1e-3
"""Largest step of a logarithm after which it is found."""
_LARGEST_MOVE = 1.0
_SHORTER = 5
_SATURATED = 3.0
"""Logarithm by which a latency is too long where the server is saturated."""

Group = tuple[str, ...]


class Matched(NamedTuple):
    """Laws that give what is known, and how sure their scales are."""

    values: np.ndarray
    """Terms of each law, (laws, terms), in the order of `step_law.NAMES`."""
    log_scales: np.ndarray
    """By which each group of terms was scaled, (laws, groups)."""
    covariance: np.ndarray
    """Of the log scales, (laws, groups, groups)."""
    errors: np.ndarray
    """Logarithms of predicted over known latencies, (laws, latencies)."""


def broadcast(values: np.ndarray) -> StepLaw:
    """Return laws of values (laws, terms) as one whose terms are columns, (laws, 1)."""
    return StepLaw(*values.T[:, :, None])


def match(
    start: np.ndarray,
    groups: Sequence[Group],
    prior_sd: Sequence[float],
    predict: Callable[[StepLaw], np.ndarray],
    known: np.ndarray,
    noise: np.ndarray | float,
) -> Matched:
    """Return the most likely laws.

    Args:
        start: laws from which the scales count, shape (laws, terms).
        groups: terms that are scaled together.
        prior_sd: of the logarithm of each group's scale.
        predict: logarithms of the latencies of laws as `broadcast` makes them, (laws, latencies).
        known: logarithms of the latencies, (laws, latencies); NaN where not known.
        noise: standard deviation of each, broadcast against `known`.
    """
    places = [[NAMES.index(name) for name in group] for group in groups]
    precision = 1 / np.asarray(prior_sd) ** 2

    def scaled(log_scales: np.ndarray) -> np.ndarray:
        values = start.copy()
        for group, place in enumerate(places):
            values[:, place] *= np.exp(log_scales[:, group, None])
        return values

    def residuals(log_scales: np.ndarray) -> np.ndarray:
        errors = predict(broadcast(scaled(log_scales))) - known
        errors = np.where(np.isnan(errors) & ~np.isnan(known), _SATURATED, errors)
        return np.nan_to_num(errors) / noise

    at = np.zeros((len(start), len(groups)))
    found = residuals(at)
    for _ in range(_ITERATIONS):
        jacobian, hessian = _curvature(residuals, at, found, precision)
        slope = np.einsum("ljg,lj->lg", jacobian, found) + precision * at
        move = -np.linalg.solve(hessian, slope[..., None])[..., 0]
        move = np.clip(move, -_LARGEST_MOVE, _LARGEST_MOVE)
        if np.abs(move).max(initial=0.0) < _CLOSE:
            break
        at, found = _line_search(residuals, precision, at, found, move)
    _, hessian = _curvature(residuals, at, found, precision)
    return Matched(scaled(at), at, np.linalg.inv(hessian), found * noise)


def _curvature(
    residuals: Callable[[np.ndarray], np.ndarray],
    at: np.ndarray,
    found: np.ndarray,
    precision: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return derivatives of the residuals, (laws, latencies, groups), and their Hessian."""
    shifts = np.eye(at.shape[1]) * _STEP
    jacobian = np.stack([(residuals(at + shift) - found) / _STEP for shift in shifts], axis=-1)
    return jacobian, np.einsum("ljg,ljh->lgh", jacobian, jacobian) + np.diag(precision)


def _line_search(
    residuals: Callable[[np.ndarray], np.ndarray],
    precision: np.ndarray,
    at: np.ndarray,
    found: np.ndarray,
    move: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return each law's scales and residuals after its move, half of it, ... that costs no more."""

    def cost(scales: np.ndarray, errors: np.ndarray) -> np.ndarray:
        return (errors**2).sum(axis=1) + (precision * scales**2).sum(axis=1)

    limit = cost(at, found)
    for _ in range(_SHORTER):
        other = residuals(at + move)
        is_worse = cost(at + move, other) > limit
        if not is_worse.any():
            break
        move = np.where(is_worse[:, None], move / 2, move)
    kept = ~is_worse[:, None]
    return np.where(kept, at + move, at), np.where(kept, other, found)


_APART = 0.25
"""Of the median gap of an answer's tokens: tokens with a longer gap come from two steps."""
_LEAST_STEPS = 200
_COMPUTED = ("prompts", "prompt_tokens", "sequences", "context_tokens")


def measured_steps(requests: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of one level, in the order of time.

    A step is left out where the time before it was idle, or where an answer got two tokens or goes
    on after it missed a step: what preemption or a client's pause adds is not known. All are where
    the times are not those of tokens.

    Args:
        requests: `input_tokens, output_tokens, sent_s, token_offsets_ms` (of each token, from
            `sent_s`).

    Returns:
        `duration_ms, prompts, prompt_tokens, sequences, context_tokens`, a row for a step.
    """
    counts = requests["token_offsets_ms"].map(len).to_numpy()
    if (counts != requests["output_tokens"]).any():
        return pd.DataFrame(columns=["duration_ms", *_COMPUTED], dtype=float)
    tokens = pd.DataFrame(
        {
            "request": np.repeat(np.arange(len(requests)), counts),
            "place": np.concatenate([np.arange(count) for count in counts]),
            "prompt": np.repeat(requests["input_tokens"].to_numpy(), counts),
            "at_ms": np.concatenate(list(requests["token_offsets_ms"]))
            + np.repeat(1e3 * requests["sent_s"].to_numpy(), counts),
        }
    )
    gaps_ms = tokens["at_ms"].diff()[tokens["place"] > 0]
    tokens = tokens.sort_values("at_ms", kind="stable")
    tokens["step"] = (tokens["at_ms"].diff() > _APART * gaps_ms.median()).cumsum()
    after = tokens.groupby("request")["step"].diff()
    is_first = tokens["place"] == 0
    steps = (
        pd.DataFrame(
            {
                "step": tokens["step"],
                "at_ms": tokens["at_ms"],
                "is_odd": after.notna() & (after != 1),
                "prompts": is_first,
                "prompt_tokens": tokens["prompt"].where(is_first, 0),
                "sequences": ~is_first,
                "context_tokens": (tokens["prompt"] + tokens["place"]).where(~is_first, 0),
            }
        )
        .groupby("step")
        .agg({"at_ms": "min"} | dict.fromkeys(("is_odd", *_COMPUTED), "sum"))
    )
    steps.insert(0, "duration_ms", steps.pop("at_ms").diff())
    kept = (steps["sequences"] > 0) & (steps["is_odd"] == 0) & steps["duration_ms"].notna()
    return steps.loc[kept, ["duration_ms", *_COMPUTED]].reset_index(drop=True)


def law_of_steps(steps: pd.DataFrame) -> StepLaw | None:
    """Return the law whose steps are closest in least squares; None of too few steps.

    Its terms are no less than 0; `request_ms`, which no step shows, is 0.

    Args:
        steps: as `measured_steps` returns them, of all levels.
    """
    if len(steps) < _LEAST_STEPS:
        return None
    computed = steps[["sequences", "context_tokens", "prompt_tokens", "prompts"]].to_numpy(float)
    computed[:, 3] = computed[:, 3] > 0
    terms = np.column_stack([np.ones(len(steps)), computed])
    scale = terms.max(axis=0).clip(min=1)
    found = nnls(terms / scale, steps["duration_ms"].to_numpy())[0] / scale
    floor_ms, sequence_ms, kv_token_ms, prefill_token_ms, prompt_step_ms = map(float, found)
    # What a step takes whatever it computes: the client cannot separate the weights from the rest.
    return StepLaw(
        floor_ms / 2,
        floor_ms / 2,
        sequence_ms,
        kv_token_ms,
        prefill_token_ms,
        prompt_step_ms=prompt_step_ms,
    )
