"""The arrival model: Gamma-distributed gaps between requests (BurstGPT, III and V)."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from sextant.base.errors import InputError
from sextant.base.files import MAKE_WORKLOAD_AGAIN, read_json
from sextant.workload.arrival_measures import Times, batches_of, gaps_of
from sextant.workload.gamma import GammaFits, fit_gamma, ks_distance, ks_p_value
from sextant.workload.seeds import Seed
from sextant.workload.step_distance import judge_steps
from sextant.workload.steps import FAR, MAX_STEPS, StepCounts, count_steps, fit_steps

MIN_GAPS = 2
OFF_GRID = 0.05
"""Steps that a gap may be off a whole number of them."""
_SHORT = 10
"""Most steps of gaps of which a step's length is averaged."""
_MOST_TESTED = 1 << 20
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
    """Step of the clock, in which the gaps were counted; null: no stamps were equal."""
    alpha_lo: float | None = None
    """Lower end of the shape's 95% interval (see `gamma.fit_gamma`, `steps.fit_steps`)."""
    alpha_hi: float | None = None
    """Its upper end."""
    ks: float | None = None
    """Kolmogorov-Smirnov distance between the fitted gaps and the distribution."""
    p_value: float | None = None
    """How often a true Gamma process lies that far from its fit (see `gamma.ks_p_value`)."""
    reason: str | None = None


def fit_arrivals(arrival_s: Times, *, seed: Seed) -> ArrivalModel:
    """Fit a Gamma distribution to the gaps between arrivals, by maximum likelihood.

    Equal stamps say that the trace's clock is coarse. Then all gaps are counted in its steps
    (`common_steps`) and fitted by the likelihood of those counts (`steps`); else they are exact
    (`gamma.fit_gamma`). `arrival_s` ascends; `seed` places gaps within their steps for the test of
    the fit, and nothing else depends on it. The fit is tested on at most some million gaps, every
    k-th of a longer trace: so many tell the distance to 0.001.
    """
    n_gaps, n_zero, duration, log_total, least = 0, 0, 0.0, 0.0, math.inf
    for gaps in gaps_of(arrival_s):
        positive = gaps[gaps > 0]
        n_gaps, n_zero = n_gaps + len(gaps), n_zero + len(gaps) - len(positive)
        duration, log_total = (
            duration + float(gaps.sum()),
            log_total + float(np.log(positive).sum()),
        )
        least = min(least, float(positive.min(initial=math.inf)))
    rate = n_gaps / duration if duration > 0 else None
    step = _clock_step(arrival_s, least) if n_zero and duration > 0 else None
    undetermined = ArrivalModel(None, None, rate, None, n_gaps, n_zero, step)
    if n_gaps < MIN_GAPS:
        reason = f"{n_gaps + 1} arrivals are too few: a shape needs {MIN_GAPS + 1}"
        return replace(undetermined, reason=reason)
    if duration == 0:
        return replace(undetermined, reason=ALL_AT_ONCE)
    if step is None:
        fits = fit_gamma(*np.array([[n_gaps], [duration], [log_total]]))
    else:
        fits = fit_steps(_count_all(arrival_s, step))
    if np.isnan(fits.alpha[0]):
        what = f"the shape of {n_gaps} gaps of {duration / n_gaps:.3g} s"
        return replace(undetermined, reason=ALL_EQUAL if step is None else hidden(step, what))
    ks, p_value = _tested(_thinned(arrival_s, n_gaps), fits, step, seed)
    return replace(
        undetermined,
        alpha=float(fits.alpha[0]),
        # The mean is the trace's own, to the last digit.
        beta_s=float(duration / n_gaps / fits.alpha[0]),
        cv=float(fits.cv[0]),
        alpha_lo=float(fits.alpha_lo[0]),
        alpha_hi=float(fits.alpha_hi[0]),
        ks=float(ks[0]),
        p_value=float(p_value[0]),
    )


def _thinned(arrival_s: Times, n_gaps: int) -> np.ndarray:
    """Return every k-th gap, at most `_MOST_TESTED`."""
    every, kept, n_before = -(-n_gaps // _MOST_TESTED), [], 0
    for gaps in gaps_of(arrival_s):
        kept.append(gaps[-n_before % every :: every])
        n_before += len(gaps)
    return np.concatenate(kept)


def _tested(
    gaps: np.ndarray, fits: GammaFits, step_s: float | None, seed: Seed
) -> tuple[np.ndarray, np.ndarray]:
    """Return the Kolmogorov-Smirnov distance of gaps from their fit, and its p-value."""
    n = np.array([len(gaps)])
    if step_s is None:
        distance = ks_distance(gaps, n, fits.alpha, fits.beta)
        return distance, ks_p_value(distance, n, fits.alpha)
    draws = np.random.default_rng(seed).random(len(gaps))
    return judge_steps(count_steps(np.rint(gaps / step_s), n), fits, draws)


def _count_all(arrival_s: Times, step_s: float) -> StepCounts:
    """Count all gaps in steps of a clock; far ones, which are as good as exact, to 12 bits."""
    parts = []
    for gaps in gaps_of(arrival_s):
        steps = np.rint(gaps / step_s)
        mantissa, exponent = np.frexp(steps)
        rounded = np.ldexp(np.rint(np.ldexp(mantissa, 12)), exponent - 12)
        parts.append(np.unique(np.where(steps < FAR, steps, rounded), return_counts=True))
    steps, counts = (np.concatenate(own) for own in zip(*parts, strict=True))
    distinct, place = np.unique(steps, return_inverse=True)
    n_gaps = np.bincount(place, counts)
    return StepCounts(distinct, n_gaps, np.array([len(distinct)]))


def hidden(step_s: float, what: str) -> str:
    """Return the reason why nothing is fitted where a coarse clock leaves the shape open."""
    return f"the clock's step of {step_s:.3g} s hides {what}"


def _clock_step(arrival_s: Times, least_s: float) -> float:
    """Return the step of the clock of times whose smallest positive gap is known."""
    end_s = 0.0
    for batch in batches_of(arrival_s):
        end_s = float(batch[-1]) if len(batch) else end_s
    least = np.array([max(least_s, end_s / MAX_STEPS)])
    step = least
    for gaps in gaps_of(arrival_s):
        positive = gaps[gaps > 0]
        step = common_steps(positive, np.zeros(len(positive), np.intp), step, end_s)
    return float(np.where(np.isnan(step), least, step)[0])


def common_steps(
    gaps: np.ndarray, group: np.ndarray, step_s: np.ndarray, end_s: float
) -> np.ndarray:
    """Return the greatest step, per group, of which gaps and the step given are whole numbers.

    Euclid's algorithm: what is left over takes the place of the step until nothing is. Clocks
    jitter and decimal fractions are rounded, so that 5% of a step pass for nothing, short gaps are
    averaged, and a step is taken to be the roundest number that it may be.

    Args:
        gaps: positive gaps of all groups, seconds.
        group: number of the group of each.
        step_s: what the step of each group has been found to be; NaN: it has none.
        end_s: latest time of all, which says what rounding there is.

    Returns:
        Steps in seconds, NaN where `end_s` has not even `MAX_STEPS` of a step.
    """
    while True:
        step_s = _averaged(gaps, group, step_s, end_s)
        steps = gaps / step_s[group]
        off = np.abs(steps - np.rint(steps))
        is_off = off > OFF_GRID
        if not is_off.any():
            return step_s
        left = np.full(len(step_s), np.inf)
        np.minimum.at(left, group[is_off], (off * step_s[group])[is_off])
        # The step so far stands for the gaps of which it was found.
        finer = np.flatnonzero(np.isfinite(left))
        gaps, group = np.append(gaps, step_s[finer]), np.append(group, finer)
        step_s = np.where(np.isfinite(left), left, step_s)


def _averaged(gaps: np.ndarray, group: np.ndarray, step_s: np.ndarray, end_s: float) -> np.ndarray:
    steps = gaps / step_s[group]
    whole = np.rint(steps)
    is_short = (whole <= _SHORT) & (whole > 0) & (np.abs(steps - whole) <= OFF_GRID)
    total, count = (
        np.bincount(group[is_short], values[is_short], len(step_s)) for values in (gaps, whole)
    )
    step_s = np.where(count > 0, total / np.maximum(count, 1), step_s)
    rounding, found = 8 * np.finfo(float).eps * end_s, step_s
    for decimals in reversed(range(15)):
        rounded = np.round(step_s, decimals)
        found = np.where(np.abs(rounded - step_s) <= rounding, rounded, found)
    return np.where(step_s < end_s / MAX_STEPS, np.nan, found)


def arrivals_to_json(
    model: ArrivalModel, choice: Mapping[str, Any] | None = None, **facts: Any
) -> dict[str, Any]:
    """Return what `arrivals.json` holds: one Gamma fit, the models, and where they come from.

    `choice` is what `fitted_arrivals.choice_to_json` returns; None: there is no trace.
    """
    choice = choice or {"model": None, "why": model.reason, "models": {}}
    return {"distribution": "gamma", **asdict(model), **choice, "fit": facts}


def load_arrivals(path: str | Path) -> ArrivalModel:
    """Read an arrival model from a workload's folder or its `arrivals.json`.

    Raises:
        InputError: there is no such file, or a field is missing or malformed.
    """
    stored = read_stored(path)
    return ArrivalModel(**{name: stored[name] for name in ArrivalModel.__dataclass_fields__})


def fit_facts(path: str | Path) -> dict[str, Any]:
    """Return what `arrivals.json` says of how it was fitted, e.g. its caps; see `load_arrivals`."""
    return read_stored(path).get("fit", {})


def read_stored(path: str | Path) -> dict[str, Any]:
    """Return what `arrivals.json` holds, checked; see `load_arrivals`."""
    path = Path(path)
    path = path / "arrivals.json" if path.is_dir() else path
    if not path.is_file():
        raise InputError("there is no arrival model", file=path, fix="fit the workload first")
    fix = MAKE_WORKLOAD_AGAIN
    stored = read_json(path, problem="is not JSON", fix=fix)
    if not isinstance(stored, dict):
        raise InputError("is not a JSON object", file=path, fix=fix)
    facts = stored.get("fit", {})
    if not isinstance(facts, dict):
        raise InputError("is not a JSON object", file=path, field="fit", fix=fix)
    names = list(ArrivalModel.__dataclass_fields__)
    missing = [name for name in (*names, "model", "why", "models") if name not in stored]
    if missing:
        raise InputError("the field is missing", file=path, field=missing[0], fix="fit it again")
    numbers = {name: stored[name] for name in names if name != "reason"}
    numbers |= {name: cap for name, cap in facts.items() if name.startswith("max_")}
    for name, value in numbers.items():
        if not _is_number_or_null(value):
            raise InputError(f"{value!r} is not a number", file=path, field=name, fix=fix)
    if stored["alpha"] is not None:
        for name in ("alpha_lo", "alpha_hi", "beta_s", "cv", "ks"):
            if stored[name] is None:
                raise InputError("the number is missing", file=path, field=name, fix=fix)
    return stored


def _is_number_or_null(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
