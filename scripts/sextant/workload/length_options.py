"""Lengths of requests as options say them, or a workload."""

import re
from pathlib import Path
from statistics import NormalDist

import numpy as np

from sextant.base.errors import InputError
from sextant.base.files import read_parquet
from sextant.base.numbers import number_of
from sextant.workload.lengths import LONG, MOST_TOKENS, Length, RequestLengths

_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_TWO = re.compile(rf"p(50|90|95|99):({_NUMBER}),p(50|90|95|99):({_NUMBER})")


def parse_lengths(
    input_tokens: str | None, output_tokens: str | None, workload: str | None
) -> RequestLengths | None:
    """Return the requests that `--input-tokens` and `--output-tokens`, or `--workload`, describe.

    A workload is a fitted one's folder, a use case that ships, a histogram or a normalised trace.
    Raises InputError: only one length is given, both ways are used, or a length makes no sense.
    """
    is_given = input_tokens is not None or output_tokens is not None
    fields = "--input-tokens, --output-tokens"
    fix = "give both, or --workload"
    if workload is not None:
        if is_given:
            fields = f"--workload, {fields}"
            fix = "give the one or the other"
            raise InputError("lengths are given twice", field=fields, fix=fix)
        return _of_workload(workload)
    if not is_given:
        return None
    if input_tokens is None or output_tokens is None:
        raise InputError("one of two lengths is missing", field=fields, fix=fix)

    sides = {"--input-tokens": input_tokens, "--output-tokens": output_tokens}

    return RequestLengths(*(parse_length(text, field) for field, text in sides.items()))


def parse_length(text: str, field: str) -> Length:
    """Return the length that an option says: a mean, or two percentiles as `p50:900,p99:8000`.

    Percentiles are taken for those of a lognormal distribution, whose logarithm has the mean mu and
    the standard deviation sigma: its mean is exp(mu + sigma^2 / 2).

    Raises InputError: it is neither, is 0 or too large, or the percentiles do not rise.
    """
    two = _TWO.fullmatch(text.replace(" ", ""))
    if two is None:
        mean = _positive(text, field)
        return Length(mean, mean)

    low, high = sorted((int(two[i]), _positive(two[i + 1], field)) for i in (1, 3))
    if low[0] == high[0] or low[1] > high[1]:
        problem = f"the percentiles of {text!r} do not rise"
        fix = "give two different percentiles, the higher one with at least as many tokens"
        raise InputError(problem, field=field, fix=fix)

    z_low, z_high, z_long = (NormalDist().inv_cdf(p / 100) for p in (low[0], high[0], LONG))
    sigma = float(np.log(high[1] / low[1]) / (z_high - z_low))
    mu = float(np.log(low[1])) - sigma * z_low

    return Length(float(np.exp(mu + sigma**2 / 2)), float(np.exp(mu + sigma * z_long)))


def _positive(text: str, field: str) -> float:
    try:
        value = number_of(text)
    except ValueError:
        value = float("nan")
    if not 1 <= value <= MOST_TOKENS:
        fix = f"give tokens from 1 to {MOST_TOKENS:,.0f}, or percentiles, e.g. p50:900,p99:8000"
        raise InputError(f"{text!r} is not a length of requests", field=field, fix=fix)
    return value


def _of_workload(name: str) -> RequestLengths:
    from sextant.workload.draw import open_workload  # few questions need it

    columns = ["input_tokens", "output_tokens"]
    path = Path(name)
    trace = read_parquet(path).to_pandas() if path.is_file() else None
    if trace is not None and "arrival_s" in trace:
        frame = trace[trace["status"] == "ok"][columns].dropna()
        weights = np.ones(len(frame))
    else:
        model = open_workload(name)
        frame = model.frame[columns]
        weights = model.weights
    if frame.empty:
        fix = "give another, or --input-tokens and --output-tokens"
        raise InputError("no request has both lengths", file=name, field="--workload", fix=fix)

    lengths = []
    for values in frame.to_numpy(float).T:
        order = np.argsort(values)
        reached = np.cumsum(weights[order]) >= LONG / 100 * weights.sum()
        high = values[order][reached.argmax()]
        lengths.append(Length(float(np.average(values, weights=weights)), float(high)))

    return RequestLengths(*lengths)
