"""The loads of BurstGPT's case study (V): mirrored windows, and sweeps of alpha, beta and theta.

Times are seconds from a load's start. A sweep goes through `N_SETTINGS` settings, a change after
each `n_per_change` requests. The paper gives the shapes of its sweeps (alpha falls and rises as a
quadratic, beta falls linearly, theta rises) and the 200 requests; their ends are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.experiment.scenarios import WINDOWS_FILE
from sextant.workload.draw import with_zipf_inputs
from sextant.workload.generators import Gamma, Varying, child_seed
from sextant.workload.request_model import RequestModel
from sextant.workload.trace_arrivals import mirrored

N_SETTINGS = 9
LOWEST_SHARE = 0.25
"""Lowest alpha and beta of their sweeps, as a share of the warm-up's. With beta as it is, a
quarter of alpha is four times the rate, from a third of the KV cache to more than all of it."""
HIGHEST_THETA_RISE = 0.8

PHASES = {
    1: "warm-up",
    2: "conversation",
    3: "api",
    4: "alpha",
    5: "beta",
    6: "theta",
}
"""What a level of the scenario `burst` is."""


@dataclass(frozen=True)
class BurstPlan:
    """How the phases of a burst study are loaded."""

    phases: Sequence[int] = tuple(PHASES)
    """Numbers in `PHASES`; the warm-up, which finds the rate, is always the first."""
    alpha: float = 0.5
    """Shape of the warm-up's gaps; Table III has 0.25 to 1."""
    theta: float = 1.1
    """Zipf exponent of the inputs, as in Table III; outputs are the workload's."""
    warmup_s: float = 1000.0
    mirrored_s: float = 3600.0
    """What the windows of a trace are compressed or stretched to."""
    n_per_change: int = 200
    api_rate_factor: float = 2.0
    """Mean rate of the mirrored API load over the warm-up's. The paper's beta stays low there,
    below the warm-up's, but not by a published number; the conversation load has the factor 1."""
    windows: Path = WINDOWS_FILE
    """Table of `service` (conversation, api), `start_s, duration_s, n_requests, alpha`."""


@dataclass(frozen=True)
class Load:
    """The requests of a phase, in the order of arrival, and what made them so."""

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    settings: list[dict[str, Any]]
    """In the order of time: `start_s`, `alpha`, `beta_s` (null: no fit, taken as Poisson),
    `rate_rps` (1 / (alpha · beta), of a window its counted rate) and `theta` from there on."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Of a sweep `n_per_change`; of mirrored windows `time_factor`, `rate_factor`, `n_windows`."""


class _Scale(NamedTuple):
    plan: BurstPlan
    rate_rps: float
    """The warm-up's."""
    model: RequestModel
    seed: np.random.SeedSequence

    @property
    def beta_s(self) -> float:
        return 1 / (self.plan.alpha * self.rate_rps)


def phase_load(
    phase: int, plan: BurstPlan, rate_rps: float, model: RequestModel, seed: int
) -> Load:
    """Return the load of a phase, a number in `PHASES`, for the warm-up's mean rate.

    `model` gives the outputs' distribution, and the inputs' bounds. Same seed, same load; every
    phase has a stream of its own. InputError: the table of windows is missing or lacks a service.
    """
    scale = _Scale(plan, rate_rps, model, child_seed(seed, phase))
    alpha, beta_s, theta = (plan.alpha, 0.0, 0.0), (scale.beta_s, 0.0), plan.theta
    match PHASES[phase]:
        case "warm-up":
            return _steady(scale, plan.warmup_s)
        case "conversation":
            return _mirrored("conversation", scale, 1.0)
        case "api":
            return _mirrored("api", scale, plan.api_rate_factor)
        case "alpha":
            # It falls to a quarter and rises again: (u - m)² with m in the middle.
            middle = (N_SETTINGS - 1) / 2
            curvature = plan.alpha * (1 - LOWEST_SHARE) / middle**2
            quadratic = (plan.alpha, -2 * middle * curvature, curvature)
            return _sweep(scale, quadratic, beta_s, [theta])
        case "beta":
            slope = -scale.beta_s * (1 - LOWEST_SHARE) / (N_SETTINGS - 1)
            return _sweep(scale, alpha, (scale.beta_s, slope), [theta])
        case _:
            thetas = np.linspace(theta, theta + HIGHEST_THETA_RISE, N_SETTINGS).tolist()
            return _sweep(scale, alpha, beta_s, thetas)


def trial_load(
    plan: BurstPlan, rate_rps: float, model: RequestModel, duration_s: float, seed: int
) -> Load:
    """Return a load like the warm-up's, of another rate and duration."""
    return _steady(_Scale(plan, rate_rps, model, child_seed(seed, 0)), duration_s)


def _steady(scale: _Scale, duration_s: float) -> Load:
    plan, seed = scale.plan, child_seed(scale.seed, 0)
    arrival_s = _some(Gamma(scale.rate_rps, plan.alpha).times(duration_s=duration_s, seed=seed))
    lengths = _lengths(scale, [plan.theta], len(arrival_s))
    return Load(arrival_s, *lengths, [_setting(0.0, plan.alpha, scale.beta_s, plan.theta)])


def _some(arrival_s: np.ndarray) -> np.ndarray:
    return arrival_s if len(arrival_s) else np.zeros(1)


def _mirrored(service: str, scale: _Scale, rate_factor: float) -> Load:
    """Mirror a trace's windows (IV-A.1): their shapes, their rates up to one common factor."""
    plan, windows = scale.plan, read_windows(scale.plan.windows, service)
    lasting_s = (windows["start_s"] + windows["duration_s"]).max() - windows["start_s"].min()
    time_factor = float(plan.mirrored_s / lasting_s)
    scaled = windows.assign(
        start_s=(windows["start_s"] - windows["start_s"].min()) * time_factor,
        duration_s=windows["duration_s"] * time_factor,
    )
    expected = rate_factor * scale.rate_rps * plan.mirrored_s
    share = expected / windows["n_requests"].sum()
    arrival_s = _some(mirrored(scaled, beta_factor=1 / share, seed=child_seed(scale.seed, 0)))
    lengths = _lengths(scale, [plan.theta], len(arrival_s))
    rates = scaled["n_requests"] * share / scaled["duration_s"]
    settings = [
        {
            "start_s": float(row.start_s),
            "alpha": None if np.isnan(row.alpha) else float(row.alpha),
            "beta_s": None if np.isnan(row.alpha) or not rate else float(1 / (row.alpha * rate)),
            "rate_rps": float(rate),
            "theta": plan.theta,
        }
        for row, rate in zip(scaled.itertuples(), rates, strict=True)
    ]
    facts = {"time_factor": time_factor, "rate_factor": rate_factor, "n_windows": len(windows)}
    return Load(arrival_s, *lengths, settings, facts)


def read_windows(path: Path, service: str) -> pd.DataFrame:
    """Return a service's windows in the order of time; raise InputError if there is none."""
    try:
        table = pd.read_csv(path, sep="\t", comment="#")
    except (OSError, ValueError) as error:
        fix = "give a tab-separated table of windows"
        raise InputError(f"cannot be read ({error})", file=path, fix=fix) from None
    windows = table[table["service"] == service] if "service" in table else table[:0]
    if windows.empty:
        fix = "give rows of service, start_s, duration_s, n_requests, alpha"
        raise InputError(f"no window of service {service!r}", file=path, field="service", fix=fix)
    return windows.sort_values("start_s")


def _sweep(
    scale: _Scale, alpha: Sequence[float], beta_s: Sequence[float], theta: Sequence[float]
) -> Load:
    """Draw arrivals by coefficients over the steps (see `Varying`), lengths by a theta a step."""
    every = scale.plan.n_per_change
    n = every * N_SETTINGS
    seed = child_seed(scale.seed, 0)
    process = Varying(alpha, beta_s, over="steps", every=every)
    arrival_s = process.times(n=n, seed=seed)
    settings = []
    for u in range(N_SETTINGS):
        start_s = float(arrival_s[u * every - 1]) if u else 0.0
        settings.append(_setting(start_s, *process.at(u), theta[u % len(theta)]))
    return Load(arrival_s, *_lengths(scale, theta, n), settings, {"n_per_change": every})


def _setting(start_s: float, alpha: float, beta_s: float, theta: float) -> dict[str, float]:
    rate_rps = 1 / (alpha * beta_s)
    return {
        "start_s": start_s,
        "alpha": alpha,
        "beta_s": beta_s,
        "rate_rps": rate_rps,
        "theta": theta,
    }


def _lengths(scale: _Scale, thetas: Sequence[float], n: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw `n` inputs, equally many by each theta in turn, and outputs."""
    n_each = n // len(thetas)
    parts = []
    for number, theta in enumerate(thetas, 1):
        model, seed = with_zipf_inputs(scale.model, theta), child_seed(scale.seed, number)
        parts.append(model.sample(n_each, seed=seed))
    drawn = pd.concat(parts)
    return drawn["input_tokens"].to_numpy(), drawn["output_tokens"].to_numpy()
