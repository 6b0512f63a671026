"""BurstGPT's case study (V) on servers that run: a warm-up at a rate that is found, then bursts.

All requests of a phase run to their end before the next phase begins. In the paper one load
follows the other without a pause; here each phase can be judged for itself.
"""

import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sextant.base.errors import InputError
from sextant.bench.burst_loads import PHASES, BurstPlan, Load, phase_load, trial_load
from sextant.bench.burst_rate import (
    KV_USAGE_LIMITS,
    KVUsage,
    KVWatch,
    RateSearch,
    Trial,
    find_rate,
)
from sextant.engine.http import Target
from sextant.load.levels import check_descriptors
from sextant.load.measure import LevelResult
from sextant.load.open_loop import first_connections, run_open_loop
from sextant.load.source import ListedRequests
from sextant.workload.prompts import PromptSource
from sextant.workload.request_model import RequestModel

log = logging.getLogger(__name__)

_TRIAL_SHARE, _SHORTEST_TRIAL_S = 0.05, 3.0
"""Duration of a trial, as a share of the warm-up's, and at least."""
_SETTLING_SHARE = 1 / 3
"""The first third of a trial, while the server fills, is not judged."""
_MAX_REQUESTS_PER_TRIAL = 20_000


def run_phases(
    targets: Sequence[Target],
    model: RequestModel,
    prompts: PromptSource,
    plan: BurstPlan,
    timeout_s: float,
    epoch_ns: int,
    seed: int,
    kv_usage: KVUsage,
) -> Iterator[tuple[dict[str, Any], LevelResult]]:
    """Find the rate, then run the warm-up and the plan's other phases, one a step.

    Args:
        targets: replicas of one LLM.
        model: outputs have its distribution; inputs follow Zipf's law within its bounds.
        prompts: makes the prompts; no two phases get the same ones.
        plan: which phases, and their parameters.
        timeout_s: time limit of a request.
        epoch_ns: zero of all times, on the monotonic clock.
        seed: same seed, same requests for the same rate.
        kv_usage: reads the use of the KV cache, mean over the replicas.

    Yields:
        What `run.json` says of a phase, and what it measured; the level is its number. Keys:
        `name, rate_rps` (the warm-up's), `n_requests, mean_kv_cache_usage, settings` (see
        `Load`), those of `Load.facts`, and for the warm-up `search` and `is_within_limits`.

    Raises:
        InputError: the servers do not say how much of the cache is used, a request served
            alone fails or uses more than 50%, or no rate comes to 20 to 50%.
    """
    if kv_usage() is None:
        problem = "the servers do not say how much of the KV cache is used"
        fix = "serve with metrics: vLLM without --disable-log-stats, SGLang with --enable-metrics"
        raise InputError(problem, field="scenario_id", fix=fix)
    run = _Runner(targets, prompts, timeout_s, epoch_ns, itertools.count(seed), kv_usage)
    search = _find_rate(run, plan, model, seed)
    log.info("the warm-up's rate is %.3g requests/s", search.rate_rps)
    for phase in sorted({1, *plan.phases}):
        load = phase_load(phase, plan, search.rate_rps, model, seed)
        result, watch = run(load, float(phase))
        # From the first to the last arrival: what drains afterwards is no load.
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
            facts |= {"search": search.as_dict(), "is_within_limits": _is_within_limits(mean)}
        yield facts, result


@dataclass(frozen=True)
class _Runner:
    """Sends loads to the same servers, each with prompts of its own."""

    targets: Sequence[Target]
    prompts: PromptSource
    timeout_s: float
    epoch_ns: int
    seeds: Iterator[int]
    kv_usage: KVUsage

    def __call__(
        self, load: Load, level: float | None = None, readings_per_s: float = 4.0
    ) -> tuple[LevelResult, KVWatch]:
        """Run a load to its end; InputError: it needs more connections than may be opened."""
        check_descriptors(first_connections(load.arrival_s, None))
        name, seed = self.targets[0].model, next(self.seeds)
        source = ListedRequests(name, load.input_tokens, load.output_tokens, self.prompts, seed)
        with KVWatch(self.kv_usage, 1 / readings_per_s, self.epoch_ns) as watch:
            result = run_open_loop(
                self.targets, source, load.arrival_s, self.timeout_s, self.epoch_ns, level
            )
        return result, watch


def _is_within_limits(mean: float | None) -> bool:
    lowest, highest = KV_USAGE_LIMITS
    return mean is not None and lowest <= mean <= highest


def _find_rate(run: _Runner, plan: BurstPlan, model: RequestModel, seed: int) -> RateSearch:
    duration_s = max(plan.warmup_s * _TRIAL_SHARE, _SHORTEST_TRIAL_S)
    seeds = itertools.count(seed)

    def try_rate(rate_rps: float) -> Trial:
        load = trial_load(plan, rate_rps, model, duration_s, next(seeds))
        result, watch = run(load)
        start_s = result.started_s + _SETTLING_SHARE * duration_s
        usage = watch.mean(start_s, result.started_s + duration_s)
        # Chance moves the requests of a bursty window far from rate times duration.
        n = len(load.arrival_s)
        return Trial(n / duration_s, usage or 0.0, result.n_failed / n)

    usage, lasting_s = _serve_alone(run, trial_load(plan, 100.0, model, 10.0, seed))
    return find_rate(try_rate, usage, lasting_s, _MAX_REQUESTS_PER_TRIAL / duration_s)


def _serve_alone(run: _Runner, sample: Load) -> tuple[float, float]:
    """Return the cache's use and the seconds of a request of mean lengths, served alone."""
    inputs, outputs = (
        np.rint([tokens.mean()]).astype(int)
        for tokens in (sample.input_tokens, sample.output_tokens)
    )
    load = Load(np.zeros(1), inputs, outputs, settings=[])
    run(load)  # a server's first request is slower than all that follow
    result, watch = run(load, readings_per_s=20.0)
    row = result.table().to_pylist()[0]
    if row["status"] != "ok":
        problem = f"a request of mean lengths, served alone, failed: {row['error']}"
        raise InputError(problem, field="timeout_s", fix="see the server's log, or give more time")
    usage = watch.mean(row["sent_s"], row["last_token_s"])
    return usage or 0.0, row["last_token_s"] - row["sent_s"]
