"""Make a workload of a trace, or of requests without one, and judge how faithful it is.

LLM-Pilot judges by eye, from cumulative distributions (V-A); here the figures are the largest
differences of two of them (Kolmogorov-Smirnov), and of two matrices of Spearman's rank correlation.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from sextant.base.errors import InputError
from sextant.base.files import jsonable, provenance, read_provenance, sha256_file, write_json
from sextant.trace.choice import (
    ALL_REQUESTS,
    CHOICE_FACTS,
    TraceChoice,
    chosen_requests,
)
from sextant.workload import request_model
from sextant.workload.arrivals import choose_arrivals, fit_arrivals, on_fine_clock
from sextant.workload.generators import child_seed
from sextant.workload.profiles import read_arrivals
from sextant.workload.published import load_use_case
from sextant.workload.request_model import NO_CAPS, LengthCaps
from sextant.workload.trace_arrivals import arrivals_to_json, arrivals_to_plain, write_times

_FILE_NAMES = ("requests.parquet", "arrivals.json", "validation.json")


@dataclass(frozen=True)
class WorkloadFiles:
    """Paths of a workload's files; the trace's own times lie beside `arrivals`."""

    requests: Path  #: the request model, `requests.parquet`
    arrivals: Path  #: the arrival models, `arrivals.json`
    validation: Path  #: how faithful the models are, `validation.json`

    @classmethod
    def in_folder(cls, folder: str | Path) -> Self:
        """Return the paths in a workload's folder, under their usual names."""
        return cls(*(Path(folder, name) for name in _FILE_NAMES))


def fit_workload(
    trace: str | Path,
    files: WorkloadFiles,
    *,
    caps: LengthCaps = NO_CAPS,
    n_bins: int = request_model.N_BINS,
    seed: int = 0,
    choice: TraceChoice = ALL_REQUESTS,
) -> dict[str, Any]:
    """Fit the request model and the arrival models of a trace; write them and their fidelity.

    The request model has one row per joint bin, of at most `n_bins` a parameter. Its times are
    written too, those of a coarse clock spread over the clock's steps. Requests above a cap are cut
    to it and counted. Failed requests count as arrivals only. `seed` draws the samples by which the
    models are judged. `choice` are the requests of one LLM or service alone.

    All files but the validation depend on the trace's source and the parameters alone: an edit of
    the code makes no benchmark stale.

    Returns what the validation file holds. Raises InputError: no request to fit, or arrivals out of
    order.
    """
    with chosen_requests(trace, choice) as part:
        return _fit_part(part, files, caps, n_bins, seed)


def _fit_part(
    trace: Path, files: WorkloadFiles, caps: LengthCaps, n_bins: int, seed: int
) -> dict[str, Any]:
    origin = read_provenance(trace)
    facts = {"inputs_sha256": origin.get("inputs_sha256", {})}
    facts |= {**asdict(caps), "n_bins": n_bins, "seed": seed}
    facts |= {name: origin[name] for name in CHOICE_FACTS if name in origin}

    served = request_model.ServedRequests.of(trace, caps)
    requests = served.fit(n_bins)
    validation: dict[str, Any] = {
        "n_requests": int(served.counts.sum()),
        "n_failed": served.n_failed,
        "n_clipped_input": served.n_clipped["input_tokens"],
        "n_clipped_output": served.n_clipped["output_tokens"],
        "n_joint_bins": len(requests.frame),
        "n_bins": {name: requests.frame[name].nunique(False) for name in requests.parameters},
        **exact_fidelity(served.frame, served.counts, requests),
    }
    del served  # of a long trace the arrivals need the memory

    times = read_arrivals(trace)
    arrivals = fit_arrivals(times)
    times, _ = on_fine_clock(times, child_seed(seed, 0))
    try:
        choice = choose_arrivals(times, arrivals, seed=seed)
    except InputError as error:
        raise error.at(file=trace) from None

    validation |= {"ks_gaps": arrivals.ks, "arrivals": choice.figures(), "seed": seed}
    validation["provenance"] = provenance({"trace": trace}, fit=facts)
    models = {
        name: {"process": fit.process and arrivals_to_plain(fit.process), "reason": fit.reason}
        for name, fit in choice.fits.items()
    }

    requests.save(files.requests, facts)
    times_path = write_times(files.arrivals, times, facts)
    sha256 = {
        "requests_sha256": sha256_file(files.requests),
        "times_sha256": sha256_file(times_path),
    }
    chosen = {"model": choice.model, "why": choice.why, "models": models}
    write_json(files.arrivals, arrivals_to_json(arrivals, facts | sha256, chosen))
    write_json(files.validation, validation)

    return validation


def write_workload(
    model: request_model.RequestModel,
    files: WorkloadFiles,
    *,
    origin: dict[str, Any],
    caps: LengthCaps = NO_CAPS,
) -> dict[str, Any]:
    """Write the files of `fit_workload` for a model that comes without a trace.

    `origin` says where the model comes from. Its load is set when the workload is run (Papaioannou
    and Doudali): a rate, or everything at once. So `arrivals.json` has no parameters and
    `arrivals.parquet` no row.
    """
    capped, clipped_fraction = cap_model(model, caps)
    facts = {**origin, **asdict(caps)}
    validation = {
        "n_requests": int(capped.weights.sum()) if "count" in capped.frame else None,
        "clipped_fraction": clipped_fraction,
        "n_joint_bins": len(capped.frame),
        "ks": {},  # there is no trace to differ from
        "provenance": provenance(fit=facts),
    }

    capped.save(files.requests, facts)
    no_times = np.empty(0)
    unknown = replace(fit_arrivals(no_times), reason="the requests came without times")
    write_times(files.arrivals, no_times, facts)
    sha256 = {"requests_sha256": sha256_file(files.requests)}
    write_json(files.arrivals, arrivals_to_json(unknown, sha256 | facts))
    write_json(files.validation, validation)

    return validation


def write_use_case(
    name: str, files: WorkloadFiles, *, caps: LengthCaps = NO_CAPS
) -> dict[str, Any]:
    """Write a use case that ships as a workload; see `write_workload`."""
    model, sources = load_use_case(name)
    origin = {"use_case": name, "sources": sources}
    return write_workload(model, files, origin=origin, caps=caps)


def write_fixed_lengths(
    input_tokens: int, output_tokens: int, files: WorkloadFiles, *, caps: LengthCaps = NO_CAPS
) -> dict[str, Any]:
    """Write a workload of requests of the same lengths (Recasens et al., 3.2: 512 in, 256 out)."""
    lengths = {"input_tokens": input_tokens, "output_tokens": output_tokens}
    model = request_model.RequestModel(pd.DataFrame([{**lengths, "count": 1}]))
    return write_workload(model, files, origin=lengths, caps=caps)


def cap_model(
    model: request_model.RequestModel, caps: LengthCaps
) -> tuple[request_model.RequestModel, dict[str, float]]:
    """Return a model with its lengths cut to the caps, and by column the share of requests cut."""
    frame = model.frame.copy()
    weights = model.weights
    clipped_fraction = {}
    for name, cap in caps.by_column().items():
        is_over = (frame[name] > cap).to_numpy(bool) if cap else np.zeros(len(frame), bool)
        clipped_fraction[name] = float(weights[is_over].sum() / weights.sum())
        if is_over.any():
            frame[name] = frame[name].clip(upper=cap)

    weight = next(name for name in request_model.WEIGHT_COLUMNS if name in frame)
    merged = frame.groupby(model.parameters, dropna=False, sort=False)[weight].sum()

    return request_model.RequestModel(merged.reset_index()), clipped_fraction


def exact_fidelity(
    traced: pd.DataFrame, counts: np.ndarray, model: request_model.RequestModel
) -> dict[str, Any]:
    """Compare a trace with a model's distribution: each joint bin at its weight, no draws.

    `traced` has the combinations of the trace's parameters (NaN: null), `counts` the requests of
    each. Returns by parameter `ks` and `mean_ratio` (model over trace); the coefficients
    `spearman_trace` and `spearman_model` (None: a constant); and the largest
    `spearman_difference` from the trace, for the model (`joint`) and for `independent` parameters.
    """
    frame = model.frame[model.parameters]
    weights = model.weights
    of_trace = spearman(traced, counts)
    of_model = spearman(frame, weights)
    ks = {}
    mean_ratio = {}
    for name, values in traced.items():
        ks[name] = ks_distance(values, frame[name], counts, weights)
        truth = _mean(values, counts)
        mean = _mean(frame[name], weights)
        ratio = mean / truth if truth else np.nan
        mean_ratio[name] = float(ratio) if np.isfinite(ratio) else None

    return {
        "ks": ks,
        "mean_ratio": mean_ratio,
        "spearman_trace": jsonable(of_trace.to_dict()),
        "spearman_model": jsonable(of_model.to_dict()),
        "spearman_difference": {
            "joint": largest_difference(of_trace, of_model),
            "independent": largest_difference(of_trace, of_trace * 0.0),
        },
    }


def ks_distance(
    a: ArrayLike,
    b: ArrayLike,
    weights_a: np.ndarray | None = None,
    weights_b: np.ndarray | None = None,
) -> float:
    """Return the Kolmogorov-Smirnov distance of (n,) and (m,) numbers, booleans or nulls.

    A null counts as a value below all others. Raises InputError: one of the two is empty.
    """
    (values_a, shares_a), (values_b, shares_b) = (
        _cumulative_shares(np.where(np.isnan(numbers), -np.inf, numbers), weights)
        for numbers, weights in ((_numbers(a), weights_a), (_numbers(b), weights_b))
    )
    at = np.union1d(values_a, values_b)
    reached_a = np.append(0.0, shares_a)[np.searchsorted(values_a, at, side="right")]
    reached_b = np.append(0.0, shares_b)[np.searchsorted(values_b, at, side="right")]
    return float(np.abs(reached_a - reached_b).max())


def cumulative(
    values: ArrayLike, weights: np.ndarray | None = None, max_points: int = 512
) -> pd.DataFrame:
    """Return a cumulative distribution to draw: `value`, and `fraction` of values up to it.

    Nulls are left out. If there are more distinct values than `max_points`, the values nearest to
    equal steps of the fraction are kept. Raises InputError: no value.
    """
    numbers = _numbers(values)
    is_known = ~np.isnan(numbers)
    known_weights = None if weights is None else np.asarray(weights)[is_known]
    distinct, shares = _cumulative_shares(numbers[is_known], known_weights)
    if len(distinct) > max_points:
        steps = np.linspace(shares[0], 1, max_points)
        kept = np.unique(np.minimum(np.searchsorted(shares, steps), len(distinct) - 1))
        distinct = distinct[kept]
        shares = shares[kept]

    return pd.DataFrame({"value": distinct, "fraction": shares})


def spearman(frame: pd.DataFrame, weights: np.ndarray | None = None) -> pd.DataFrame:
    """Return Spearman's rank correlation of each pair of columns; NaN: one of them is constant.

    A pair is compared over the rows in which neither is null. A row of weight w (1 by default)
    counts as w equal rows.
    """
    names = list(frame.columns)
    row_weights = np.ones(len(frame)) if weights is None else np.asarray(weights, float)
    # Ranks only need the order of the values: each value gets its number in that order, null -1.
    codes = [pd.factorize(_numbers(frame[name]), sort=True)[0] for name in names]
    matrix = np.full((len(names), len(names)), np.nan)
    for row, codes_a in enumerate(codes):
        for column, codes_b in enumerate(codes[: row + 1]):
            is_known = (codes_a >= 0) & (codes_b >= 0) & (row_weights > 0)
            pair_weights = row_weights[is_known]
            a = _centred_ranks(codes_a[is_known], pair_weights)
            b = _centred_ranks(codes_b[is_known], pair_weights)
            spread = np.sum(pair_weights * a**2) * np.sum(pair_weights * b**2)
            # A constant has all its ranks at their mean, 0, exactly.
            if spread:
                correlation = np.clip(np.sum(pair_weights * a * b) / np.sqrt(spread), -1, 1)
                correlation = 1.0 if np.array_equal(a, b) else correlation
                matrix[row, column] = matrix[column, row] = correlation

    return pd.DataFrame(matrix, index=names, columns=names)


def _centred_ranks(codes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mid-rank of each value less the mean rank, by the values' numbers in order."""
    mass = np.bincount(codes, weights)
    ranks = np.cumsum(mass) - mass / 2 - mass.sum() / 2
    return ranks[codes]


def largest_difference(truth: pd.DataFrame, other: pd.DataFrame) -> float | None:
    """Return the largest difference of two matrices off the diagonal; None: `truth` has none."""
    differences = (truth - other.fillna(0.0)).to_numpy()
    off_diagonal = differences[~np.eye(len(truth), dtype=bool)]
    sizes = np.abs(off_diagonal[~np.isnan(off_diagonal)])
    return float(sizes.max()) if len(sizes) else None


def _numbers(values: ArrayLike) -> np.ndarray:
    return pd.Series(values).astype(float).to_numpy()


def _mean(values: ArrayLike, weights: np.ndarray) -> float:
    numbers = _numbers(values)
    is_known = ~np.isnan(numbers)
    return np.average(numbers[is_known], weights=weights[is_known]) if is_known.any() else np.nan


def _cumulative_shares(
    numbers: np.ndarray, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values in order, and the share of the weight up to each."""
    distinct, index = np.unique(numbers, return_inverse=True)
    sums = np.cumsum(np.bincount(index, weights, len(distinct)))
    if not len(sums) or sums[-1] <= 0:
        raise InputError("there is no value to compare", fix="give at least one request")
    return distinct, sums / sums[-1]
