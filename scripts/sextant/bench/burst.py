"""The arrival rate at which a server's KV cache is used as BurstGPT's warm-up wants it (V-A.1).

The paper sets the scale beta by hand until 20 to 50% of the cache are used, and writes of 30 to
40% during the warm-up (IV-A.1, V-B). Here short windows of arrivals are tried one after another.
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

from sextant.base.errors import InputError
from sextant.bench.burst_loads import PHASES, Load, phase_load, steady_load
from sextant.engine.http import Target
from sextant.experiment.scenarios import Burst
from sextant.load.measure import LevelResult
from sextant.load.run import check_descriptors
from sextant.load.schedules import first_connections, run_open_loop
from sextant.load.source import ListedRequests, Prompts
from sextant.workload.generators import child_seed
from sextant.workload.request_model import RequestModel

log = logging.getLogger(__name__)

TARGET_KV_USAGE = 0.35
KV_USAGE_LIMITS = (0.2, 0.5)
"""Mean use of the cache that a warm-up has to have."""
_CLOSE_ENOUGH = (0.3, 0.4)
MAX_TRIALS = 10
_MAX_FACTOR = 4.0  # by which a rate changes while only one side of the target is known
_TRIAL_SHARE, _SHORTEST_TRIAL_S = 0.05, 3.0  # of the warm-up's duration
_SETTLING_SHARE = 1 / 3  # of a trial, while the server fills, is not judged
_MAX_REQUESTS_PER_TRIAL = 20_000
_usage = attrgetter("kv_usage")

KVUsage = Callable[[], float | None]
"""Returns the fraction of the KV cache in use, mean over replicas; None if servers do not say."""
Run = Callable[..., "tuple[LevelResult, KVWatch]"]
"""Sends a load to the servers, with prompts of its own."""


@dataclass(frozen=True)
class Trial:
    """What one rate came to."""

    rate_rps: float
    kv_usage: float
    """Mean, from 0 to 1."""
    failed_fraction: float
    """Requests that failed, of all."""


@dataclass(frozen=True)
class RateSearch:
    """A rate that was found, and how."""

    rate_rps: float
    trials: Sequence[Trial]
    single_request_kv_usage: float
    """Mean use of the cache while one request of mean lengths is served alone."""
    single_request_s: float
    target_kv_usage: float = TARGET_KV_USAGE
    kv_usage_limits: tuple[float, float] = KV_USAGE_LIMITS


def find_rate(
    try_rate: Callable[[float], Trial],
    single_kv_usage: float,
    single_request_s: float,
    max_rate_rps: float = math.inf,
) -> RateSearch:
    """Find the rate at which the KV cache is used by 35% on average.

    The first rate follows from Little's law, by one request alone: it takes `single_request_s` and
    uses `single_kv_usage`, 0 if it is too short to be seen. `try_rate` loads the server at a rate
    (requests/s), until 30 to 40% are used, or for 10 trials of which the closest counts. Raises
    InputError: one request alone uses more than 50% of the cache, or no trial 20 to 50%.
    """
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
        tried_rps, rate_rps = rate_rps, min(next_rate(trials), max_rate_rps)
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
    last is scaled by target over use, at most fourfold.
    """
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


@dataclass
class KVWatch:
    """Reads the use of the KV cache over time, in a thread, while a block runs."""

    read: KVUsage
    period_s: float
    epoch_ns: int
    readings: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the epoch, and use; a reading that is not available is left out."""

    def __enter__(self) -> "KVWatch":
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self.period_s):
            with contextlib.suppress(OSError):  # a missed reading is a gap
                usage = self.read()
                if usage is not None:
                    at_s = (time.monotonic_ns() - self.epoch_ns) / 1e9
                    self.readings.append((at_s, usage))

    def mean(self, start_s: float, end_s: float) -> float | None:
        """Return the mean use between two times, None without a reading."""
        values = [usage for at_s, usage in self.readings if start_s <= at_s <= end_s]
        return sum(values) / len(values) if values else None


def run_phases(
    targets: Sequence[Target],
    model: RequestModel,
    prompts: Prompts,
    scenario: Burst,
    timeout_s: float,
    epoch_ns: int,
    seed: int,
    kv_usage: KVUsage,
) -> Iterator[tuple[dict[str, Any], LevelResult]]:
    """Find the rate, then run the warm-up and the scenario's other phases, one a step.

    Outputs have the distribution of `model`, inputs follow Zipf's law within its bounds; no two
    phases get the same prompts. Yields what `run.json` says of a phase, and what it measured; the
    level is its number. Raises InputError: the servers do not say how much of the cache is used, a
    request served alone fails, or as of `find_rate`.
    """
    if kv_usage() is None:
        problem = "the servers do not say how much of the KV cache is used"
        fix = "serve with metrics: vLLM without --disable-log-stats, SGLang with --enable-metrics"
        raise InputError(problem, field="scenario_id", fix=fix)
    seeds = itertools.count(seed)

    def run(
        load: Load, level: float = 0.0, readings_per_s: float = 4.0
    ) -> tuple[LevelResult, KVWatch]:
        """Run a load, with prompts of its own, to its end."""
        check_descriptors(first_connections(load.arrival_s, None))
        lengths = load.input_tokens, load.output_tokens
        source = ListedRequests(targets[0].model, *lengths, prompts, next(seeds))
        with KVWatch(kv_usage, 1 / readings_per_s, epoch_ns) as watch:
            result = run_open_loop(targets, source, load.arrival_s, timeout_s, epoch_ns, level)
        return result, watch

    search = _find_rate(run, scenario, model, seed)
    log.info("the warm-up's rate is %.3g requests/s", search.rate_rps)
    for phase in sorted({1, *map(int, scenario.levels)}):
        load = phase_load(phase, scenario, search.rate_rps, model, seed)
        result, watch = run(load, float(phase))
        # From the first to the last arrival: what drains afterwards does not count as load.
        mean = watch.mean(result.started_s, result.started_s + float(load.arrival_s[-1]))
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
        result, watch = run(load)
        start_s = result.started_s + _SETTLING_SHARE * duration_s
        usage = watch.mean(start_s, result.started_s + duration_s)
        # Chance moves the requests of a bursty window far from rate times duration.
        n = len(load.arrival_s)
        return Trial(n / duration_s, usage or 0.0, result.log.n_failed / n)

    sample = steady_load(scenario, 100.0, model, 10.0, child_seed(seed, 0))
    lengths = sample.input_tokens, sample.output_tokens
    inputs, outputs = (np.rint([each.mean()]).astype(int) for each in lengths)
    alone = Load(np.zeros(1), inputs, outputs, [])
    run(alone)  # a server's first request is slower than all that follow
    result, watch = run(alone, readings_per_s=20.0)
    row = result.table().to_pylist()[0]
    if row["status"] != "ok":
        problem = f"a request of mean lengths, served alone, failed: {row['error']}"
        raise InputError(problem, field="timeout_s", fix="see the server's log, or give more time")
    usage = watch.mean(row["sent_s"], row["last_token_s"]) or 0.0
    lasting_s = row["last_token_s"] - row["sent_s"]
    return find_rate(try_rate, usage, lasting_s, _MAX_REQUESTS_PER_TRIAL / duration_s)
