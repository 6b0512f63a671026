"""The arrival model: Gamma-distributed gaps between requests (BurstGPT, III and V)."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from sextant.errors import InputError
from sextant.files import read_json
from sextant.workload.request_model import Seed

MIN_GAPS = 2


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
    reason = _undetermined(gaps)
    if reason:
        return ArrivalModel(None, None, rate, None, len(gaps), n_zero, step, reason)
    alpha, _, beta_s = scipy.stats.gamma.fit(spread_gaps(arrival_s, step, seed), floc=0)
    # The mean is the trace's own: spreading moves the first and the last arrival a little.
    beta_s = duration / len(gaps) / alpha
    cv = 1 / np.sqrt(alpha)
    return ArrivalModel(float(alpha), float(beta_s), rate, float(cv), len(gaps), n_zero, step)


def spread_gaps(arrival_s: np.ndarray, clock_step_s: float | None, seed: Seed) -> np.ndarray:
    """Return the gaps after spreading each arrival over the clock's step (see `fit_arrivals`)."""
    arrival_s = np.asarray(arrival_s, float)
    if clock_step_s is None:
        return np.diff(arrival_s)
    offsets = np.random.default_rng(seed).random(len(arrival_s)) * clock_step_s
    in_order = offsets[np.lexsort((offsets, arrival_s))]
    # Times and offsets apart: a step may be as small as the rounding of a late time, where
    # their sum would bring the zeros back.
    gaps = np.diff(arrival_s) + np.diff(in_order)
    return np.maximum(gaps, clock_step_s * np.finfo(float).eps)


def _undetermined(gaps: np.ndarray) -> str | None:
    if len(gaps) < MIN_GAPS:
        return f"{len(gaps) + 1} arrivals are too few: a shape needs {MIN_GAPS + 1}"
    if gaps.max() == 0:
        return "all requests arrive at the same time"
    # Equal steps differ by rounding once they are differences of floats.
    if np.ptp(gaps) <= 1e-9 * gaps.max():
        return "all gaps are equal: the likelihood grows with alpha without end"
    return None


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
