"""Lengths of requests: bounded Zipf, and outputs by input (BurstGPT, III-C and IV-B)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import scipy

from sextant.base.errors import InputError
from sextant.workload.request_model import RequestModel, bin_starts, in_bins, independent_model

Tokens = Sequence[int] | np.ndarray
CONFIDENCE = 0.95
N_ZIPF_BINS = 256
"""Most values per parameter of a Zipf request model."""
_STEEPEST = 1e6
"""Steepest |theta| looked for: beyond it all but 2^-64 of the lengths would be one value."""
_PERCENTILES = {"p10": 10, "p25": 25, "median": 50, "p75": 75, "p90": 90}
MAX_TOKENS = 10_000_000
"""Longest length of a Zipf law, which has a probability for each; longer ones are mistakes."""


@dataclass(frozen=True)
class ZipfFit:
    """A bounded Zipf distribution, P(x) ∝ x^-theta on the whole numbers lowest … highest."""

    theta: float
    theta_lo: float
    """Lower end of the 95% confidence interval, from the Fisher information."""
    theta_hi: float
    lowest: int
    highest: int
    n: int
    """Lengths within the bounds, which the fit is to."""
    n_outside: int
    """Lengths outside of them, left out."""
    ks: float
    """Largest distance between the lengths' and the model's distribution functions."""


def fit_zipf(
    tokens: Tokens,
    lowest: int | None = None,
    highest: int | None = None,
    *,
    counts: Tokens | None = None,
) -> ZipfFit:
    """Fit a bounded Zipf distribution to lengths, whole numbers, by maximum likelihood.

    Theta is where the model's mean of ln x is the lengths'; docs/workloads.md has the equations and
    the limits. `lowest` (1 or more) and `highest` are by default the smallest and the largest
    length; the interval takes them as known. `counts` has the occurrences of each of `tokens`.

    Raises InputError: a length that is not a whole number, or too few distinct ones within the
    bounds.
    """
    values, weights = _weighted_lengths(tokens, counts)
    lowest = int(values[0]) if lowest is None else int(lowest)
    highest = int(values[-1]) if highest is None else int(highest)
    logs = _logs(lowest, highest)
    is_inside = (values >= lowest) & (values <= highest)
    inside, weight = values[is_inside], weights[is_inside]
    n, n_outside = int(weight.sum()), int(weights[~is_inside].sum())
    if len(inside) < 2:
        problem = f"{len(inside)} distinct lengths from {lowest} to {highest}"
        raise InputError(problem, field="tokens", fix="a Zipf fit needs two or more")
    wanted = float(weight @ np.log(inside)) / n

    def excess(theta: float) -> float:
        """Return by how much the mean of ln x is too large."""
        return float(scipy.special.softmax(-theta * logs) @ logs) - wanted

    # Lengths that are nearly all alike have a steep law: 99 of 100 tokens and one of 101, 462.
    end = 64.0
    while not excess(-end) > 0 > excess(end):
        end *= 4
        if end > _STEEPEST:
            fix = "a Zipf law cannot be fitted where all lengths but one are alike"
            raise InputError("no exponent fits the lengths", field="tokens", fix=fix)
    theta = float(scipy.optimize.brentq(excess, -end, end, xtol=1e-10))
    p = scipy.special.softmax(-theta * logs)
    variance = float(p @ (logs - float(p @ logs)) ** 2)
    half = float(scipy.special.ndtri((1 + CONFIDENCE) / 2) / np.sqrt(n * variance))
    observed = np.bincount(inside - lowest, weight, minlength=len(logs)).cumsum() / weight.sum()
    ks = float(np.abs(observed - p.cumsum()).max())
    return ZipfFit(theta, theta - half, theta + half, lowest, highest, n, n_outside, ks)


def _logs(lowest: int, highest: int) -> np.ndarray:
    if not 1 <= lowest <= highest <= MAX_TOKENS:
        fix = f"give bounds with 1 <= lowest <= highest <= {MAX_TOKENS:,}; Zipf's law has no "
        problem = f"lengths from {lowest} to {highest}"
        raise InputError(problem, field="lowest", fix=fix + "length of 0")
    return np.log(np.arange(lowest, highest + 1))


def zipf_probabilities(theta: float, lowest: int, highest: int) -> np.ndarray:
    """Return the probability of each length lowest … highest under the bounded Zipf law."""
    if not np.isfinite(theta):
        raise InputError(f"theta of {theta}", field="theta", fix="give a number, for example 1.1")
    return scipy.special.softmax(-theta * _logs(lowest, highest))


def zipf_request_model(
    theta: float, lowest: int, highest: int, output_tokens: int | Tokens
) -> RequestModel:
    """Return a request model with Zipf input lengths (BurstGPT, IV-B) and given output lengths.

    `output_tokens` is one length for all, or lengths whose distribution the outputs take,
    independently of the inputs. Each parameter has at most 256 values: neighbouring lengths are
    merged.
    """
    outputs, counts = _weighted_lengths(np.atleast_1d(output_tokens), None)
    if outputs[0] < 1:
        fix = "give 1 or more tokens"
        raise InputError(f"an output of {outputs[0]} tokens", field="output_tokens", fix=fix)
    probabilities = zipf_probabilities(theta, lowest, highest)
    inputs = in_bins(np.arange(lowest, highest + 1), probabilities, N_ZIPF_BINS)
    return independent_model(inputs, in_bins(outputs, counts / counts.sum(), N_ZIPF_BINS))


def output_by_input(input_tokens: Tokens, output_tokens: Tokens, n_bins: int = 20) -> pd.DataFrame:
    """Return the distribution of output lengths per bin of input lengths (BurstGPT, Fig. 8).

    There are at most `n_bins`, of about equally many requests each. Leave failed requests out.

    Returns one row per bin, ascending: `input_lo`, `input_hi` (smallest and largest input in it),
    `n`, and of the outputs `mean`, `p10`, `p25`, `median`, `p75`, `p90`, all in tokens.
    """
    inputs, outputs = np.asarray(input_tokens, float), np.asarray(output_tokens, float)
    order = np.argsort(inputs, kind="stable")
    inputs, outputs = inputs[order], outputs[order]
    distinct, counts = np.unique(inputs, return_counts=True)
    starts = bin_starts(counts, n_bins)
    rows = []
    for low, high in zip(distinct[starts], distinct[np.append(starts[1:], 0) - 1], strict=True):
        inside = outputs[(inputs >= low) & (inputs <= high)]
        quantiles = np.percentile(inside, list(_PERCENTILES.values()))
        rows.append((low, high, len(inside), inside.mean(), *quantiles))
    return pd.DataFrame(rows, columns=["input_lo", "input_hi", "n", "mean", *_PERCENTILES])


def _weighted_lengths(tokens: Tokens, counts: Tokens | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct lengths, ascending, and how often each occurs."""
    given = np.asarray(tokens, float)
    if not np.all((given == np.rint(given)) & (given >= 0)):  # NaN is unequal to itself
        fix, problem = "drop missing and failed requests first", "not all are whole numbers of 0 "
        raise InputError(problem + "or more", field="tokens", fix=fix)
    weights = np.ones(len(given)) if counts is None else np.asarray(counts, float)
    values, place = np.unique(given[weights > 0], return_inverse=True)
    if not len(values):
        raise InputError("there is no length", field="tokens", fix="give lengths of requests")
    return values.astype(np.int64), np.bincount(place, weights[weights > 0])
