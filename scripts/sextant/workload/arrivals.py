"""The arrival model: Gamma-distributed gaps between requests (BurstGPT, III and V)."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sextant.errors import InputError
from sextant.files import read_json
from sextant.workload.drawing import Seed
from sextant.workload.gamma import fit_gamma, ks_distance, ks_p_value

MIN_GAPS = 2
ALL_AT_ONCE = "all requests arrive at the same time"
ALL_EQUAL = "all gaps are equal: the likelihood grows with alpha without end"


@dataclass(frozen=True)
class ArrivalModel:
    """Gaps that are independent and Gamma-distributed.

    The parameters are null where a trace does not determine them; `reason` says why.
    """

    alpha: float | None
    """Shape."""
    beta_s: float | None
    """Scale; alpha · beta_s is the mean gap."""
    rate_rps: float | None
    """Requests per second: gaps of the trace over their total duration."""
    cv: float | None
    """Coefficient of variation of the gaps, 1 / √alpha; above 1 is burstier than Poisson."""
    n_gaps: int
    n_zero_gaps: int
    clock_step_s: float | None
    """Smallest positive gap, over which equal time stamps were spread; null: none were equal."""
    alpha_lo: float | None = None
    """Lower end of the shape's 95% interval (see `gamma.fit_gamma`)."""
    alpha_hi: float | None = None
    """Its upper end."""
    ks: float | None = None
    """Kolmogorov-Smirnov distance between the fitted gaps and the distribution."""
    p_value: float | None = None
    """How often a true Gamma process lies that far from its fit (see `gamma.ks_p_value`)."""
    reason: str | None = None


def fit_arrivals(arrival_s: np.ndarray, *, seed: Seed) -> ArrivalModel:
    """Fit a Gamma distribution to the gaps between arrivals, by maximum likelihood.

    The likelihood has no value at a gap of zero, and a zero says only that the trace's clock
    is coarse: its arrivals stand at the beginning of a step of unknown place within it. If
    there are zero gaps, every arrival is therefore moved by its own uniform draw within one
    step, the smallest positive gap, which keeps the order of steps and, on average, the rate.
    That is to say: nothing is known of burstiness within a step, and a Poisson process is
    assumed there. Where most gaps are zero it sets alpha near 1; `n_zero_gaps` and
    `clock_step_s` let a reader judge that.

    Args:
        arrival_s: arrival times in ascending order, seconds.
        seed: seed of the draws; unused where no gap is zero.
    """
    gaps = np.diff(np.asarray(arrival_s, float))
    n_zero, duration = int(np.sum(gaps == 0)), float(gaps.sum())
    rate = len(gaps) / duration if duration > 0 else None
    step = float(gaps[gaps > 0].min()) if n_zero and duration > 0 else None
    undetermined = ArrivalModel(None, None, rate, None, len(gaps), n_zero, step)
    if len(gaps) < MIN_GAPS:
        reason = f"{len(gaps) + 1} arrivals are too few: a shape needs {MIN_GAPS + 1}"
        return replace(undetermined, reason=reason)
    if duration == 0:
        return replace(undetermined, reason=ALL_AT_ONCE)
    gaps = spread_gaps(arrival_s, step, seed)
    fits = fit_gamma(len(gaps), gaps.sum(), np.log(gaps).sum())
    if np.isnan(fits.alpha[0]):
        return replace(undetermined, reason=ALL_EQUAL)
    # The mean is the trace's own: spreading moves the first and the last arrival a little.
    beta_s = duration / len(gaps) / fits.alpha
    n = np.array([len(gaps)])
    distance = ks_distance(gaps, n, fits.alpha, beta_s)
    return replace(
        undetermined,
        alpha=float(fits.alpha[0]),
        beta_s=float(beta_s[0]),
        cv=float(fits.cv[0]),
        alpha_lo=float(fits.alpha_lo[0]),
        alpha_hi=float(fits.alpha_hi[0]),
        ks=float(distance[0]),
        p_value=float(ks_p_value(distance, n, fits.alpha)[0]),
    )


def spread_gaps(arrival_s: np.ndarray, clock_step_s: float | None, seed: Seed) -> np.ndarray:
    """Return the gaps after spreading each arrival over the clock's step (see `fit_arrivals`)."""
    arrival_s = np.asarray(arrival_s, float)
    if clock_step_s is None:
        return np.diff(arrival_s)
    is_new = np.diff(arrival_s, prepend=np.nan) != 0
    offsets = ordered_offsets(is_new, np.random.default_rng(seed).random(len(arrival_s)))
    # Times and offsets apart: a step may be as small as the rounding of a late time, where
    # their sum would bring the zeros back.
    gaps = np.diff(arrival_s) + np.diff(offsets) * clock_step_s
    return np.maximum(gaps, clock_step_s * np.finfo(float).eps)


def ordered_offsets(is_new: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return the draws in ascending order within each run of equal stamps.

    Args:
        is_new: per arrival, whether its stamp differs from that of the one before.
        offsets: per arrival, a draw from [0, 1).
    """
    run = np.cumsum(is_new, dtype=float)
    # One sort orders all runs: a run's number goes before the point, its draws after it.
    return np.sort(run + offsets) - run


def sample_gaps(model: ArrivalModel, n: int, *, seed: Seed) -> np.ndarray:
    """Draw `n` independent gaps in seconds; nothing is cut or rescaled to hit the rate.

    Raises:
        InputError: the model has no parameters.
    """
    if model.alpha is None or model.beta_s is None:
        fix = "use a longer trace, or give the load as a rate"
        raise InputError(f"the arrival model has no parameters ({model.reason})", fix=fix)
    return np.random.default_rng(seed).gamma(model.alpha, model.beta_s, n)


def arrivals_to_json(model: ArrivalModel, **facts: Any) -> dict[str, Any]:
    """Return what `arrivals.json` holds: the model and, beside it, where it comes from."""
    return {"distribution": "gamma", **asdict(model), "fit": facts}


def load_arrivals(path: str | Path) -> ArrivalModel:
    """Read an arrival model from a workload's folder or its `arrivals.json`.

    Raises:
        InputError: there is no such file, or a field is missing.
    """
    path = Path(path)
    path = path / "arrivals.json" if path.is_dir() else path
    if not path.is_file():
        raise InputError("there is no arrival model", file=path, fix="fit the workload first")
    stored = read_json(path)
    missing = [name for name in ArrivalModel.__dataclass_fields__ if name not in stored]
    if missing:
        raise InputError("the field is missing", file=path, field=missing[0], fix="fit it again")
    return ArrivalModel(**{name: stored[name] for name in ArrivalModel.__dataclass_fields__})
