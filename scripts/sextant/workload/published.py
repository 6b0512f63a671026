"""Request models from files or published figures: workloads, histograms, use cases, Zipf's law.

LLM-Pilot's authors published theirs with fmperf (`tgis_hist64`); docs/workloads.md says what its
values mean.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.base.files import MAKE_WORKLOAD_AGAIN, read_parquet
from sextant.base.resources import resource
from sextant.base.sheets import read_yaml
from sextant.trace.trace_format import MAX_INT32
from sextant.workload import request_model
from sextant.workload.request_model import PARAMETERS, WEIGHT_COLUMNS, RequestModel, in_bins

ALIASES = {
    "input_token_count": "input_tokens",
    "generated_token_count": "output_tokens",
    "params.temperature": "temperature",
    "params.top_k": "top_k",
    "params.top_p": "top_p",
}
"""Names of published histograms -> the trace contract's."""
USE_CASES_FILE = resource("workloads/use_cases.yaml")
_TAIL = 1e-9  # probability beyond which the geometric distribution is cut off
_HIGHEST = {"top_p": 1.0 + 1e-9}  # the mean of many ones may be a rounding error above
# A request has tokens on both sides; engines write top_k = -1 for "no limit".
_LOWEST = {"input_tokens": 1, "output_tokens": 1, "batch_size": 1, "top_k": -1}
Tokens = Sequence[int] | np.ndarray
CONFIDENCE = 0.95
N_ZIPF_BINS = 256  # most values per parameter
_STEEPEST = 1e6  # |theta|: beyond it all but 2^-64 of the lengths would be one value
_PERCENTILES = {"p10": 10, "p25": 25, "median": 50, "p75": 75, "p90": 90}
MAX_TOKENS = 10_000_000  # of a Zipf law, which has a probability for each length


def load_request_model(path: str | Path) -> RequestModel:
    """Read a request model: a workload's folder, its `requests.parquet`, or a published histogram.

    A histogram has columns for some of `PARAMETERS`, under these names or those of `ALIASES`, and
    `count` or `probability`. Raises InputError: no such file, impossible weights, or a column that
    is unknown, there twice, or has impossible values.
    """
    path = Path(path)
    path = path / "requests.parquet" if path.is_dir() else path
    if not path.is_file():
        raise InputError("there is no request model", file=path, fix="fit the workload first")

    fix = f"{MAKE_WORKLOAD_AGAIN}; of your own, give a Parquet file with a row for each joint bin"
    stored = read_parquet(path, fix=fix).to_pandas()
    frame = stored.rename(columns=ALIASES)
    known_columns = [*PARAMETERS, *WEIGHT_COLUMNS]
    for source, name in zip(stored.columns, frame.columns, strict=True):
        if name not in known_columns:
            fix = f"the columns are {', '.join([*known_columns, *ALIASES])}"
            raise InputError("unknown column", file=path, field=source, fix=fix)
        if list(frame.columns).count(name) > 1:
            fix = f"leave one column for {name}"
            raise InputError("column twice", file=path, field=source, fix=fix)

    names = [name for name in PARAMETERS if name in frame]
    if not names:
        fix = f"add at least one of {', '.join(PARAMETERS)}"
        raise InputError("the joint bins have no parameter", file=path, fix=fix)

    weights = [name for name in WEIGHT_COLUMNS if name in frame]
    if len(weights) != 1:
        problem = f"the joint bins have {'two weights' if weights else 'no weight'}"
        fix = f"give one of {', '.join(WEIGHT_COLUMNS)}"
        raise InputError(problem, file=path, field=WEIGHT_COLUMNS[0], fix=fix)

    for name in (*names, *weights):
        _check_values(frame[name], path)

    total = frame[weights[0]].sum()
    if not 0 < total < np.inf:
        problem = "the weights have no sum" if total else "all weights are zero"
        fix = "give counts or probabilities, at least one of them above 0"
        raise InputError(problem, file=path, field=weights[0], fix=fix)

    typed = {name: request_model.typed(frame[name]) for name in names}

    return RequestModel(pd.DataFrame(typed | {weights[0]: frame[weights[0]]}))


def _check_values(column: pd.Series, path: Path) -> None:
    values = column if column.name in WEIGHT_COLUMNS else column.dropna()
    if column.name in request_model.BOOLEANS:
        is_sound = values.isin([True, False])
        wanted = "true or false"
    else:
        lowest = _LOWEST.get(column.name, 0)
        highest = _HIGHEST.get(column.name, np.inf)
        # A text that looks like a number would be drawn as a text.
        is_text = not pd.api.types.is_numeric_dtype(values)
        numbers = pd.Series(np.nan, values.index) if is_text else values
        is_sound = numbers.between(lowest, highest) & np.isfinite(numbers)
        wanted = f"a number from {lowest} to {highest}".replace(" to inf", " on")
        if column.name in request_model.INTEGERS:
            is_sound &= (numbers % 1 == 0) & (numbers <= MAX_INT32)
            wanted = f"a whole number from {lowest} to {MAX_INT32}"
    if not is_sound.all():
        row = int(is_sound.idxmin())
        fix = f"give {wanted}" + ("" if values is column else ", or null")
        problem = f"a value of {column[row]}"
        raise InputError(problem, file=path, row=row + 1, field=column.name, fix=fix)


def require_lengths(model: RequestModel, path: str | Path) -> RequestModel:
    """Return a model whose every request has both lengths; else raise InputError."""
    for name in ("input_tokens", "output_tokens"):
        if name not in model.frame or model.frame[name].isna().any():
            problem = "it is missing" if name not in model.frame else "null in some joint bins"
            fix = "a workload's requests need both lengths"
            raise InputError(problem, file=path, field=name, fix=fix)
    return model


def use_case_names() -> list[str]:
    """Return the names of the shipped use cases."""
    return list(_shipped()["use_cases"])


def use_case_sha256(name: str) -> str:
    """Return the SHA-256 of a shipped use case's figures."""
    return hashlib.sha256(json.dumps(_shipped()["use_cases"][name]).encode()).hexdigest()


@cache
def _shipped() -> dict[str, Any]:
    return read_yaml(USE_CASES_FILE)


def load_use_case(name: str) -> tuple[RequestModel, list[str]]:
    """Return a shipped use case, independent lengths, and its citations; InputError: unknown."""
    shipped = _shipped()
    if name not in shipped["use_cases"]:
        fix = f"use one of {', '.join(use_case_names())}"
        raise InputError(f"there is no use case '{name}'", file=USE_CASES_FILE, fix=fix)
    sides = [shipped["use_cases"][name][side] for side in ("input_tokens", "output_tokens")]
    lengths = (in_bins(*_distribution(figures), request_model.N_BINS) for figures in sides)
    cited = [figures.get(key) for figures in sides for key in ("source", "conversion")]
    sources = [shipped["sources"][key] for key in dict.fromkeys(filter(None, cited))]
    return request_model.independent_model(*lengths), sources


def _distribution(figures: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return lengths and their probabilities: log-normal by its quantiles, else geometric."""
    import scipy  # here, and below: jobs that only name a use case start without it

    if "median" not in figures:
        words = figures.get("mean_words", 0.0) * figures.get("tokens_per_word", 1.0)
        shape = scipy.stats.geom(1 / figures.get("mean", words))
        lengths = np.arange(1, int(shape.isf(_TAIL)) + 1)
        return lengths, shape.pmf(lengths) / shape.cdf(lengths[-1])

    median, p90, highest = (figures[name] for name in ("median", "p90", "highest_tokens"))

    def misses(parameters: np.ndarray) -> list[float]:
        """Return the error of both quantiles of the law cut off at `highest`."""
        mu, log_sigma = parameters
        below = scipy.stats.norm.cdf((np.log([median, p90, highest]) - mu) / np.exp(log_sigma))
        return [below[0] / below[2] - 0.5, below[1] / below[2] - 0.9]

    start = [np.log(median), np.log(np.log(p90 / median) / scipy.stats.norm.ppf(0.9))]
    mu, log_sigma = scipy.optimize.root(misses, start, tol=1e-12).x
    edges = np.arange(highest + 1) + 0.5
    edges[0] = 0.0
    edges[-1] = highest
    with np.errstate(divide="ignore"):
        below = scipy.stats.norm.cdf((np.log(edges) - mu) / np.exp(log_sigma))

    return np.arange(1, highest + 1), np.diff(below) / below[-1]


@dataclass(frozen=True)
class ZipfFit:
    """A bounded Zipf distribution, P(x) ∝ x^-theta on the whole numbers lowest … highest."""

    theta: float
    theta_lo: float  # lower end of the 95% confidence interval, from the Fisher information
    theta_hi: float
    lowest: int
    highest: int
    n: int  # lengths within the bounds, which the fit is to; those outside are left out
    n_outside: int
    ks: float  # largest distance between the lengths' and the model's distribution functions


def fit_zipf(
    tokens: Tokens,
    lowest: int | None = None,
    highest: int | None = None,
    *,
    counts: Tokens | None = None,
) -> ZipfFit:
    """Fit a bounded Zipf distribution to lengths by maximum likelihood.

    At the likeliest theta the model's mean of ln x is the lengths' mean (docs/workloads.md).
    `lowest` (1 or more) and `highest` are by default those of the lengths. `counts` has the number
    of each length. Raises InputError: a length that is not a whole number, or fewer than two
    distinct lengths within the bounds.
    """
    import scipy

    values, weights = _weighted_lengths(tokens, counts)
    lowest = int(values[0]) if lowest is None else int(lowest)
    highest = int(values[-1]) if highest is None else int(highest)
    logs = _logs(lowest, highest)
    is_inside = (values >= lowest) & (values <= highest)
    inside = values[is_inside]
    weight = weights[is_inside]
    n = int(weight.sum())
    n_outside = int(weights[~is_inside].sum())
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
    import scipy

    if not np.isfinite(theta):
        raise InputError(f"theta of {theta}", field="theta", fix="give a number, for example 1.1")
    return scipy.special.softmax(-theta * _logs(lowest, highest))


def zipf_request_model(
    theta: float, lowest: int, highest: int, output_tokens: int | Tokens
) -> RequestModel:
    """Return a request model with Zipf input lengths (BurstGPT, IV-B).

    Outputs are independent of the inputs: one length, or the distribution of some lengths.
    Neighbouring lengths are merged, so that each side has at most 256.
    """
    outputs, counts = _weighted_lengths(np.atleast_1d(output_tokens), None)
    if outputs[0] < 1:
        fix = "give 1 or more tokens"
        raise InputError(f"an output of {outputs[0]} tokens", field="output_tokens", fix=fix)

    probabilities = zipf_probabilities(theta, lowest, highest)
    inputs = in_bins(np.arange(lowest, highest + 1), probabilities, N_ZIPF_BINS)
    drawn = in_bins(outputs, counts / counts.sum(), N_ZIPF_BINS)

    return request_model.independent_model(inputs, drawn)


def output_by_input(input_tokens: Tokens, output_tokens: Tokens, n_bins: int = 20) -> pd.DataFrame:
    """Return the distribution of output lengths per bin of input lengths (BurstGPT, Fig. 8).

    All requests were served; bins have about equally many. There is one row per bin, ascending:
    `input_lo`, `input_hi` (least and largest input), `n`, and `mean` and `_PERCENTILES` of the
    outputs, in tokens.
    """
    inputs = np.asarray(input_tokens, float)
    outputs = np.asarray(output_tokens, float)
    order = np.argsort(inputs, kind="stable")
    inputs = inputs[order]
    outputs = outputs[order]
    distinct, counts = np.unique(inputs.astype(np.int64), return_counts=True)
    starts = request_model.bin_starts(counts, n_bins)
    rows = []
    for low, high in zip(distinct[starts], distinct[np.append(starts[1:], 0) - 1], strict=True):
        inside = outputs[(inputs >= low) & (inputs <= high)]
        quantiles = np.percentile(inside, list(_PERCENTILES.values()))
        rows.append((low, high, len(inside), inside.mean(), *quantiles))

    return pd.DataFrame(rows, columns=["input_lo", "input_hi", "n", "mean", *_PERCENTILES])


def _weighted_lengths(tokens: Tokens, counts: Tokens | None) -> tuple[np.ndarray, np.ndarray]:
    lengths = np.asarray(tokens, float)
    if not np.all((lengths == np.rint(lengths)) & (lengths >= 0)):  # NaN is unequal to itself
        problem = "not all are whole numbers of 0 or more"
        fix = "drop missing and failed requests "
        raise InputError(problem, field="tokens", fix=f"{fix}first")
    weights = np.ones(len(lengths)) if counts is None else np.asarray(counts, float)
    values, index = np.unique(lengths[weights > 0], return_inverse=True)
    if not len(values):
        raise InputError("there is no length", field="tokens", fix="give lengths of requests")
    return values.astype(np.int64), np.bincount(index, weights[weights > 0])
