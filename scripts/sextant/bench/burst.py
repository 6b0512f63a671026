"""BurstGPT's case study (V): the search for its rate, and the loads of its phases.

The paper sets the scale beta by hand until 20 to 50% of the KV cache are used, and writes of 30 to
40% during the warm-up (IV-A.1, V-B). Here short windows of arrivals are tried one after another.

Times of loads are seconds from their start. The paper gives the shapes of its sweeps (alpha falls
and rises as a quadratic, beta falls linearly, theta rises) and the 200 requests between two of the
`N_SETTINGS` settings; their ends are ours.
"""

import contextlib
import itertools
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.errors import InputError
from sextant.experiment.scenarios import WINDOWS_FILE, Burst
from sextant.load.measure import LevelResult, LoadTargets
from sextant.load.schedules import ArrivalSchedule, run_open_loop
from sextant.load.source import Prompts, RequestSource, draw_in_order
from sextant.workload.draw import with_zipf_inputs
from sextant.workload.generators import Gamma, Varying, child_seed
from sextant.workload.request_model import RequestModel
from sextant.workload.trace_arrivals import mirrored

log = logging.getLogger(__name__)

TARGET_KV_USAGE = 0.35
KV_USAGE_LIMITS = (0.2, 0.5)  # mean use of the cache that a warm-up has to have
_CLOSE_ENOUGH = (0.3, 0.4)
MAX_TRIALS = 10
_MAX_FACTOR = 4.0  # by which a rate changes while only one side of the target is known
_TRIAL_SHARE, _SHORTEST_TRIAL_S = 0.05, 3.0  # of the warm-up's duration
_SETTLING_SHARE = 1 / 3  # of a trial, while the server fills, is not judged
_MAX_REQUESTS_PER_TRIAL = 20_000
_usage = attrgetter("kv_usage")
N_SETTINGS = 9
LOWEST_SHARE = 0.25
"""Lowest alpha and beta of their sweeps, as a share of the warm-up's: four times the rate, from a
third of the KV cache to more than all of it."""
THETA, HIGHEST_THETA_RISE = 1.1, 0.8  # Zipf exponent of the inputs (Table III); its sweep's rise
N_PER_CHANGE = 200  # requests from one change of a sweep to the next, by default
RATE_FACTORS = {"conversation": 1.0, "api": 2.0}
"""Mean rate of the mirrored loads over the warm-up's. The paper's beta stays low under the load of
the API, below the warm-up's, but not by a published number."""
PHASES = {1: "warm-up", 2: "conversation", 3: "api", 4: "alpha", 5: "beta", 6: "theta"}
"""What a level of the scenario `burst` is."""

KVUsage = Callable[[], float | None]
"""Returns the fraction of the KV cache in use, mean over replicas; None if servers do not say."""
Readings = list[tuple[float, float]]  # use of the cache: s since the epoch, fraction
Run = Callable[..., tuple[LevelResult, Readings]]  # sends a load, with prompts of its own


@dataclass(frozen=True)
class Trial:
    """What one rate came to."""

    rate_rps: float
    kv_usage: float  # mean, from 0 to 1
    failed_fraction: float  # requests that failed, of all


@dataclass(frozen=True)
class RateSearch:
    """A rate that was found, and how."""

    rate_rps: float
    trials: Sequence[Trial]
    single_request_kv_usage: float  # mean, while one of mean lengths is served alone
    single_request_s: float
    target_kv_usage: float = TARGET_KV_USAGE
    kv_usage_limits: tuple[float, float] = KV_USAGE_LIMITS


def find_rate(
    try_rate: Callable[[float], Trial],
    single_kv_usage: float,
    single_request_s: float,
    max_rate_rps: float = math.inf,
) -> RateSearch:
    """Find the rate at which 35% of the KV cache are used. The first follows from Little's law: one
    request alone takes `single_request_s` and uses `single_kv_usage` (0: too short to be seen).
    `try_rate` loads the server at a rate (requests/s) until 30 to 40% are used, or 10 times: the
    closest counts. InputError: one request uses over 50%, or no trial 20 to 50%."""
    if single_kv_usage > KV_USAGE_LIMITS[1]:
        problem = f"one request alone uses {single_kv_usage:.0%} of the KV cache"
        fix = "choose a workload of shorter requests or a larger batch weight"
        raise InputError(problem, field="workload", fix=fix)
    trials: list[Trial] = []
    # A use below a thousandth is a request that the readings missed: begin with one in flight.
    n_in_flight = TARGET_KV_USAGE / single_kv_usage if single_kv_usage > 1e-3 else 1.0
    rate_rps = min(n_in_flight / single_request_s, max_rate_rps)
    while len(trials) < MAX_TRIALS:
        trials.append(try_rate(rate_rps))
        log.info("%.3g requests/s use %.0f%% of the KV cache", rate_rps, 100 * trials[-1].kv_usage)
        if _CLOSE_ENOUGH[0] <= trials[-1].kv_usage <= _CLOSE_ENOUGH[1]:
            break
        tried_rps = rate_rps
        rate_rps = min(next_rate(trials), max_rate_rps)
        if tried_rps == rate_rps == max_rate_rps:
            break
    within = [it for it in trials if KV_USAGE_LIMITS[0] <= it.kv_usage <= KV_USAGE_LIMITS[1]]
    if not within:
        highest = max(trials, key=_usage)
        problem = (
            f"no rate of arrivals uses 20 to 50% of the KV cache: {len(trials)} trials came to "
            f"{min(map(_usage, trials)):.0%} to {highest.kv_usage:.0%}, the highest at "
            f"{highest.rate_rps:.3g} requests/s with {highest.failed_fraction:.0%} failed"
        )
        fix = "choose a workload of longer requests or a server variant of smaller batch weight"
        raise InputError(problem, field="workload", fix=fix)
    closest = min(within, key=lambda trial: abs(trial.kv_usage - TARGET_KV_USAGE))
    return RateSearch(closest.rate_rps, tuple(trials), single_kv_usage, single_request_s)


def next_rate(trials: Sequence[Trial]) -> float:
    """Return the rate to try after these trials, the last of which missed the target. Between
    trials below and above the target, ln(rate) is interpolated in ln(use). Else the rate of the
    last is scaled by target over use, at most fourfold."""
    below = max((t for t in trials if t.kv_usage < TARGET_KV_USAGE), key=_usage, default=None)
    above = min((t for t in trials if t.kv_usage >= TARGET_KV_USAGE), key=_usage, default=None)
    if below and above and below.rate_rps < above.rate_rps:
        if below.kv_usage == 0:
            return math.sqrt(below.rate_rps * above.rate_rps)
        share = math.log(TARGET_KV_USAGE / below.kv_usage)
        share /= math.log(above.kv_usage / below.kv_usage)
        return below.rate_rps * (above.rate_rps / below.rate_rps) ** share
    # One side is unknown, or chance has put the two the wrong way round.
    last = trials[-1]
    factor = TARGET_KV_USAGE / last.kv_usage if last.kv_usage else _MAX_FACTOR
    return last.rate_rps * min(max(factor, 1 / _MAX_FACTOR), _MAX_FACTOR)


@contextlib.contextmanager
def watched_usage(read: KVUsage, period_s: float, epoch_ns: int) -> Iterator[Readings]:
    """Read the use of the KV cache in a thread while the block runs; a failed reading is a gap."""
    readings = Readings()
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(period_s):
            with contextlib.suppress(OSError):
                if (usage := read()) is not None:
                    readings.append(((time.monotonic_ns() - epoch_ns) / 1e9, usage))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield readings
    finally:
        stopped.set()
        thread.join()


def mean_usage(readings: Readings, start_s: float, end_s: float) -> float | None:
    """Return the mean use between two times, None without a reading."""
    values = [usage for at_s, usage in readings if start_s <= at_s <= end_s]
    return sum(values) / len(values) if values else None


def run_phases(
    targets: LoadTargets,
    model: RequestModel,
    prompts: Prompts,
    scenario: Burst,
    seed: int,
    kv_usage: KVUsage,
) -> Iterator[tuple[dict[str, Any], LevelResult]]:
    """Find the rate, then run the warm-up and the scenario's other phases, one a step: outputs as
    of `model`, inputs by Zipf's law within its bounds, no prompt twice. Yields what `run.json` says
    of a phase, and what it measured; the level is its number. InputError: the servers do not say
    how much of the cache is used, a request served alone fails, or as of `find_rate`."""
    if kv_usage() is None:
        problem = "the servers do not say how much of the KV cache is used"
        fix = "serve with metrics: vLLM without --disable-log-stats, SGLang with --enable-metrics"
        raise InputError(problem, field="scenario_id", fix=fix)
    seeds = itertools.count(seed)
    model_name = targets.addresses[0].model

    def run(
        load: BurstLoad, level: float = 0.0, readings_per_s: float = 4.0
    ) -> tuple[LevelResult, Readings]:
        """Run a load, with prompts of its own, to its end."""
        lengths = load.input_tokens, load.output_tokens
        source = RequestSource(model_name, draw_in_order(*lengths, prompts), next(seeds))
        with watched_usage(kv_usage, 1 / readings_per_s, targets.epoch_ns) as usages:
            result = run_open_loop(targets, source, ArrivalSchedule(load.arrival_s), level)
        return result, usages

    search = _find_rate(run, scenario, model, seed)
    log.info("the warm-up's rate is %.3g requests/s", search.rate_rps)
    for phase in sorted({1, *map(int, scenario.levels)}):
        load = phase_load(phase, scenario, search.rate_rps, model, seed)
        result, usages = run(load, float(phase))
        # From the first to the last arrival: what drains afterwards does not count as load.
        end_s = result.started_s + float(load.arrival_s[-1])
        mean = mean_usage(usages, result.started_s, end_s)
        facts: dict[str, Any] = {
            "name": PHASES[phase],
            "rate_rps": search.rate_rps,
            "n_requests": len(load.arrival_s),
            "mean_kv_cache_usage": mean,
            "settings": load.settings,
            **load.facts,
        }
        if phase == 1:
            lowest, highest = KV_USAGE_LIMITS
            facts["search"] = asdict(search)
            facts["is_within_limits"] = mean is not None and lowest <= mean <= highest
        yield facts, result


def _find_rate(run: Run, scenario: Burst, model: RequestModel, seed: int) -> RateSearch:
    duration_s = max(scenario.warmup_s * _TRIAL_SHARE, _SHORTEST_TRIAL_S)
    seeds = itertools.count(seed)

    def try_rate(rate_rps: float) -> Trial:
        load = steady_load(scenario, rate_rps, model, duration_s, child_seed(next(seeds), 0))
        result, usages = run(load)
        start_s = result.started_s + _SETTLING_SHARE * duration_s
        usage = mean_usage(usages, start_s, result.started_s + duration_s)
        # Chance moves the requests of a bursty window far from rate times duration.
        n = len(load.arrival_s)
        return Trial(n / duration_s, usage or 0.0, result.log.n_failed / n)

    sample = steady_load(scenario, 100.0, model, 10.0, child_seed(seed, 0))
    lengths = sample.input_tokens, sample.output_tokens
    inputs, outputs = (np.rint([tokens.mean()]).astype(int) for tokens in lengths)
    alone = BurstLoad(np.zeros(1), inputs, outputs, [])
    run(alone)  # a server's first request is slower than all that follow
    result, usages = run(alone, readings_per_s=20.0)
    row = result.table().to_pylist()[0]
    if row["status"] != "ok":
        problem = f"a request of mean lengths, served alone, failed: {row['error']}"
        raise InputError(problem, field="timeout_s", fix="see the server's log, or give more time")
    usage = mean_usage(usages, row["sent_s"], row["last_token_s"]) or 0.0
    lasting_s = row["last_token_s"] - row["sent_s"]
    return find_rate(try_rate, usage, lasting_s, _MAX_REQUESTS_PER_TRIAL / duration_s)


@dataclass(frozen=True)
class BurstLoad:
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
) -> BurstLoad:
    """Return the load of a phase, a number in `PHASES`, for the warm-up's mean rate. `model` gives
    the outputs' distribution, and the inputs' bounds. Each phase has its own stream of the seed."""
    own_seed = child_seed(seed, phase)
    alpha = scenario.burstiness
    beta_s = 1 / (alpha * rate_rps)
    last = N_SETTINGS - 1
    alphas = (alpha, 0.0, 0.0)
    betas_s = (beta_s, 0.0)
    thetas = [THETA]
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
    steps = enumerate(starts_s)
    settings = [_setting(at_s, *process.at(u), thetas[u % len(thetas)]) for u, at_s in steps]
    return _load_at(arrival_s, thetas, model, own_seed, settings, n_per_change=every)


def steady_load(
    scenario: Burst,
    rate_rps: float,
    model: RequestModel,
    duration_s: float,
    seed: np.random.SeedSequence,
) -> BurstLoad:
    """Return a load of one rate, with the shape of the scenario's gaps."""
    alpha = scenario.burstiness
    times = Gamma(rate_rps, alpha).times(duration_s=duration_s, seed=child_seed(seed, 0))
    setting = _setting(0.0, alpha, 1 / (alpha * rate_rps), THETA)
    return _load_at(times, [THETA], model, seed, [setting])


def _mirrored(
    service: str,
    scenario: Burst,
    rate_rps: float,
    model: RequestModel,
    seed: np.random.SeedSequence,
) -> BurstLoad:
    """Mirror a trace's windows (IV-A.1): their shapes, their rates up to one common factor."""
    windows = read_windows(service)
    rate_factor = RATE_FACTORS[service]
    first_s = windows["start_s"].min()
    lasting_s = (windows["start_s"] + windows["duration_s"]).max() - first_s
    time_factor = float(scenario.duration_s / lasting_s)
    start_s = (windows["start_s"] - first_s) * time_factor
    scaled = windows.assign(start_s=start_s, duration_s=windows["duration_s"] * time_factor)
    share = rate_factor * rate_rps * scenario.duration_s / windows["n_requests"].sum()
    times = mirrored(scaled, beta_factor=1 / share, seed=child_seed(seed, 0))
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
    return _load_at(times, [THETA], model, seed, settings, **facts)


def read_windows(service: str) -> pd.DataFrame:
    """Return a service's windows in the order of time, as `mirrored` takes them."""
    table = pd.read_csv(WINDOWS_FILE, sep="\t", comment="#")
    return table[table["service"] == service].sort_values("start_s")


def _setting(start_s: float, alpha: float, beta_s: float, theta: float) -> dict[str, float]:
    rate_rps = 1 / (alpha * beta_s)
    named = {"start_s": start_s, "alpha": alpha, "beta_s": beta_s, "rate_rps": rate_rps}
    return named | {"theta": theta}


def _load_at(
    times: np.ndarray,
    thetas: Sequence[float],
    model: RequestModel,
    seed: np.random.SeedSequence,
    settings: list[dict[str, Any]],
    **facts: Any,
) -> BurstLoad:
    """Draw requests, one at least: equally many inputs by each theta in turn, and outputs."""
    arrival_s = times if len(times) else np.zeros(1)
    n_each = len(arrival_s) // len(thetas)
    drawn = pd.concat(
        with_zipf_inputs(model, theta).sample(n_each, seed=child_seed(seed, number))
        for number, theta in enumerate(thetas, 1)
    )
    inputs, outputs = (drawn[name].to_numpy() for name in ("input_tokens", "output_tokens"))
    return BurstLoad(arrival_s, inputs, outputs, settings, facts)
