"""The loads of BurstGPT's case study (V): mirrored windows, and sweeps of alpha, beta and theta.

Times are seconds from a load's start. The paper gives the shapes of its sweeps (alpha falls and
rises as a quadratic, beta falls linearly, theta rises) and the 200 requests between two of the
`N_SETTINGS` settings; their ends are ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.experiment.scenarios import WINDOWS_FILE, Burst
from sextant.workload.draw import with_zipf_inputs
from sextant.workload.generators import Gamma, Varying, child_seed
from sextant.workload.request_model import RequestModel
from sextant.workload.trace_arrivals import mirrored

N_SETTINGS = 9
LOWEST_SHARE = 0.25
"""Lowest alpha and beta of their sweeps, as a share of the warm-up's: four times the rate, from a
third of the KV cache to more than all of it."""
THETA, HIGHEST_THETA_RISE = 1.1, 0.8
"""Zipf exponent of the inputs, as in Table III, and how far its sweep rises."""
N_PER_CHANGE = 200  # requests from one change of a sweep to the next, by default
RATE_FACTORS = {"conversation": 1.0, "api": 2.0}
"""Mean rate of the mirrored loads over the warm-up's. The paper's beta stays low under the load of
the API, below the warm-up's, but not by a published number."""
PHASES = {1: "warm-up", 2: "conversation", 3: "api", 4: "alpha", 5: "beta", 6: "theta"}
"""What a level of the scenario `burst` is."""


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


def phase_load(
    phase: int, scenario: Burst, rate_rps: float, model: RequestModel, seed: int
) -> Load:
    """Return the load of a phase, a number in `PHASES`, for the warm-up's mean rate. `model` gives
    the outputs' distribution, and the inputs' bounds. Same seed, same load; every phase has a
    stream of its own. InputError: the table of windows is missing or lacks a service.
    """
    own_seed, alpha = child_seed(seed, phase), scenario.burstiness
    beta_s, last = 1 / (alpha * rate_rps), N_SETTINGS - 1
    alphas, betas_s, thetas = (alpha, 0.0, 0.0), (beta_s, 0.0), [THETA]
    match PHASES[phase]:
        case "warm-up":
            return steady_load(scenario, rate_rps, model, scenario.warmup_s, own_seed)
        case "conversation" | "api" as service:
            return _mirrored(service, scenario, rate_rps, model, own_seed)
        case "alpha":
            # It falls to a quarter and rises again: (u - m)² with m in the middle.
            curvature = alpha * (1 - LOWEST_SHARE) / (last / 2) ** 2
            alphas = (alpha, -last * curvature, curvature)
        case "beta":
            betas_s = (beta_s, -beta_s * (1 - LOWEST_SHARE) / last)
        case _:
            thetas = np.linspace(THETA, THETA + HIGHEST_THETA_RISE, N_SETTINGS).tolist()
    every = scenario.n_requests or N_PER_CHANGE
    process = Varying(alphas, betas_s, over="steps", every=every)
    arrival_s = process.times(n=every * N_SETTINGS, seed=child_seed(own_seed, 0))
    starts_s = [0.0, *arrival_s[every - 1 : -1 : every].tolist()]
    settings = [
        _setting(start_s, *process.at(u), thetas[u % len(thetas)])
        for u, start_s in enumerate(starts_s)
    ]
    lengths = _lengths(model, thetas, len(arrival_s), own_seed)
    return Load(arrival_s, *lengths, settings, {"n_per_change": every})


def steady_load(
    scenario: Burst,
    rate_rps: float,
    model: RequestModel,
    duration_s: float,
    seed: np.random.SeedSequence,
) -> Load:
    """Return a load of one rate, with the shape of the scenario's gaps."""
    alpha = scenario.burstiness
    times = Gamma(rate_rps, alpha).times(duration_s=duration_s, seed=child_seed(seed, 0))
    arrival_s = times if len(times) else np.zeros(1)
    setting = _setting(0.0, alpha, 1 / (alpha * rate_rps), THETA)
    return Load(arrival_s, *_lengths(model, [THETA], len(arrival_s), seed), [setting])


def _mirrored(
    service: str,
    scenario: Burst,
    rate_rps: float,
    model: RequestModel,
    seed: np.random.SeedSequence,
) -> Load:
    """Mirror a trace's windows (IV-A.1): their shapes, their rates up to one common factor."""
    windows, rate_factor = read_windows(WINDOWS_FILE, service), RATE_FACTORS[service]
    first_s = windows["start_s"].min()
    lasting_s = (windows["start_s"] + windows["duration_s"]).max() - first_s
    time_factor = float(scenario.duration_s / lasting_s)
    start_s = (windows["start_s"] - first_s) * time_factor
    scaled = windows.assign(start_s=start_s, duration_s=windows["duration_s"] * time_factor)
    share = rate_factor * rate_rps * scenario.duration_s / windows["n_requests"].sum()
    times = mirrored(scaled, beta_factor=1 / share, seed=child_seed(seed, 0))
    arrival_s = times if len(times) else np.zeros(1)
    rates = scaled["n_requests"] * share / scaled["duration_s"]
    settings = [
        {
            "start_s": float(row.start_s),
            "alpha": None if np.isnan(row.alpha) else float(row.alpha),
            "beta_s": None if np.isnan(row.alpha) or not rate else float(1 / (row.alpha * rate)),
            "rate_rps": float(rate),
            "theta": THETA,
        }
        for row, rate in zip(scaled.itertuples(), rates, strict=True)
    ]
    facts = {"time_factor": time_factor, "rate_factor": rate_factor, "n_windows": len(windows)}
    return Load(arrival_s, *_lengths(model, [THETA], len(arrival_s), seed), settings, facts)


def read_windows(path: Path, service: str) -> pd.DataFrame:
    """Return a service's windows in the order of time; raise InputError if there is none. The table
    has `service` (conversation, api), `start_s`, `duration_s`, `n_requests`, `alpha`.
    """
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


def _setting(start_s: float, alpha: float, beta_s: float, theta: float) -> dict[str, float]:
    rate_rps = 1 / (alpha * beta_s)
    named = {"start_s": start_s, "alpha": alpha, "beta_s": beta_s, "rate_rps": rate_rps}
    return named | {"theta": theta}


def _lengths(
    model: RequestModel, thetas: Sequence[float], n: int, seed: np.random.SeedSequence
) -> tuple[np.ndarray, np.ndarray]:
    """Draw `n` inputs, equally many by each theta in turn, and outputs."""
    n_each = n // len(thetas)
    drawn = pd.concat(
        with_zipf_inputs(model, theta).sample(n_each, seed=child_seed(seed, number))
        for number, theta in enumerate(thetas, 1)
    )
    return drawn["input_tokens"].to_numpy(), drawn["output_tokens"].to_numpy()
