"""Percentiles of what users wait, over what load tests publish, by simulation.

Most sources publish the mean of a load test. All its users begin at once, so that the first of ten
requests waits behind all the others: a few long waits make the mean two to four times the median.
Users who come at all times never meet that wave. A law of a step, fitted to such means, is
simulated twice, as the load test and as the users who are asked about: the ratio turns its means
into percentiles.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sextant.facts.answer_times import answer_ms
from sextant.law.means import BatchLimits, MeanLoad, closed_loop
from sextant.simulate.server import OK, Scheduler, StepLaw
from sextant.simulate.simulation import Simulation, TooFewRequests, simulate_closed
from sextant.workload.requests import LENGTH_SPREAD, RequestStream

_REQUESTS_A_USER = 10
"""Of a load test: `num_prompts` over `max_concurrency` in InferenceX's scripts."""
_ANSWERS = (10, 100)
"""Fewest and most answers of each user who is asked about."""
_ALL_ANSWERS = 2_000
"""Answers of all these users, between the bounds."""
_WARMUP = 2
"""Times of an answer before these users' requests count: queues are only filling until then."""
_SENT = 20
"""Requests of each user that are drawn at first; more are drawn where they run out."""


class UserLatencies(NamedTuple):
    """Which latencies of users are asked for."""

    first: str  #: `ttft`, or `nttft`: of each request over its own input tokens.
    later: tuple[str, ...]
    """Of `tpot`, of each request, and `itl`, of each gap; of several the longest."""
    percentiles: tuple[int, int]  #: Of the first token, and of the later ones.
    is_of_e2e: bool = False
    """Whether E2E alone is limited: both latencies are scaled so that they make up its percentile,
    as long answers are not those that wait longest."""


class UserFactors(NamedTuple):
    """Percentiles of users' latencies over what is published; arrays of first and later tokens."""

    over_mean: np.ndarray  #: Over the mean of a load test, (2,).
    over_median: np.ndarray
    """Over the median, (2,): it knows nothing of the first wave, so it is that of these users."""


class UserRequests(NamedTuple):
    """Requests that users send, drawn as they come."""

    input_tokens: np.ndarray
    output_tokens: np.ndarray
    prefix_hit_rate: float = 0.0  #: Share of the input that all requests have in common.

    @property
    def load(self) -> MeanLoad:
        """Requests of the mean lengths."""
        inputs = float(self.input_tokens.mean())
        outputs = max(float(self.output_tokens.mean()), 2.0)
        return MeanLoad(inputs, outputs, self.prefix_hit_rate * inputs)

    def no_longer_than(self, tokens: int) -> "UserRequests":
        """Return the requests, those shortened that have more tokens of input and output."""
        outputs = np.minimum(self.output_tokens, max(tokens - 1, 1))
        inputs = np.minimum(self.input_tokens, np.maximum(tokens - outputs, 1))
        return self._replace(input_tokens=inputs, output_tokens=outputs)

    def repeated(self, n: int) -> "UserRequests":
        """Return n requests: these, over and over."""
        inputs, outputs = (np.resize(it, n) for it in (self.input_tokens, self.output_tokens))
        return self._replace(input_tokens=inputs, output_tokens=outputs)

    def of_load_test(self, n: int, seed: int) -> "UserRequests":
        """Return n requests of a load test with these mean lengths."""
        around = (1 - LENGTH_SPREAD, 1 + LENGTH_SPREAD)
        factors = np.random.default_rng(seed).uniform(*around, (2, n))
        inputs = np.round(self.load.input_tokens * factors[0])
        outputs = np.round(self.load.output_tokens * factors[1])
        return self._replace(
            input_tokens=np.maximum(inputs, 1), output_tokens=np.maximum(outputs, 2)
        )

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Input and output tokens."""
        return self.input_tokens, self.output_tokens


def percentile_factors(
    law: StepLaw,
    scheduler: Scheduler,
    users: int,
    requests: UserRequests,
    asked: UserLatencies,
    seed: int,
) -> UserFactors:
    """Return the asked percentiles over what is published of users; 1 where none is answered."""
    answer_s = _answer_s(law, scheduler, users, requests)
    n_answers = int(np.clip(_ALL_ANSWERS // users, *_ANSWERS))

    def send(n: int) -> RequestStream:
        drawn = requests.repeated(n).no_longer_than(scheduler.longest)
        return RequestStream.of_users(users, *drawn.lengths, seed)

    times = _LoadTimes(n_answers * answer_s, _WARMUP * answer_s)
    steady = _served(law, scheduler, users, send, times, requests.prefix_hit_rate)
    load_test = load_test_of(law, scheduler, users, requests, seed)

    medians = UserLatencies("ttft", ("tpot",), (50, 50))
    wanted_ms = _percentiles_ms(steady, asked)
    return UserFactors(
        _ratios(wanted_ms, _means_ms(load_test)),
        _ratios(wanted_ms, _percentiles_ms(steady, medians)),
    )


def _ratios(wanted_ms: np.ndarray, published_ms: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        ratios = wanted_ms / published_ms
    return np.where(np.isfinite(ratios) & (ratios > 0), ratios, 1.0)


def load_test_of(
    law: StepLaw, scheduler: Scheduler, users: int, requests: UserRequests, seed: int
) -> Simulation:
    """Return a load test as sources run it: users begin at once and send ten requests each."""

    def send(n: int) -> RequestStream:
        drawn = requests.of_load_test(n, seed).no_longer_than(scheduler.longest)
        return RequestStream.of(np.zeros(n), *drawn.lengths)

    answer_s = _answer_s(law, scheduler, users, requests)
    times = _LoadTimes(_REQUESTS_A_USER * answer_s)
    return _served(law, scheduler, users, send, times, requests.prefix_hit_rate)


class _LoadTimes(NamedTuple):
    """How long users send requests."""

    duration_s: float
    warmup_s: float = 0.0  #: Requests sent before do not count.


def _served(
    law: StepLaw,
    scheduler: Scheduler,
    users: int,
    send: Callable[[int], RequestStream],
    times: _LoadTimes,
    prefix_hit_rate: float,
) -> Simulation:
    """Return what users get; `send` makes as many requests as they may send."""
    n = _SENT * users
    while True:
        sent = send(n).with_common_prefix(prefix_hit_rate)
        try:
            return simulate_closed(
                users,
                sent,
                scheduler,
                law,
                duration_s=times.duration_s,
                warmup_s=times.warmup_s,
            )
        except TooFewRequests:
            n *= 4


def _answer_s(law: StepLaw, scheduler: Scheduler, users: int, requests: UserRequests) -> float:
    """Return about how long an answer takes."""
    means = closed_loop(law, BatchLimits.of(scheduler), requests.load, users)
    return 1e-3 * float(means.e2e_ms)


def _percentiles_ms(steady: Simulation, asked: UserLatencies) -> np.ndarray:
    """Return the asked percentiles of users' latencies, of first and later tokens, (2,)."""
    is_ok = steady.is_counted & (steady.status == OK)
    if not is_ok.any():
        return np.full(2, np.nan)
    first_ms = 1e3 * steady.ttft_s[is_ok]
    if asked.first == "nttft":
        inputs = steady.input_tokens[is_ok]
        first_ms = first_ms / inputs * inputs.mean()
    first, later = asked.percentiles
    tpot_s = steady.tpot_s[is_ok]
    tpot_s = tpot_s[np.isfinite(tpot_s)]  # answers of one token have none
    of_later = {
        "tpot": 1e3 * np.percentile(tpot_s, later) if len(tpot_s) else np.nan,
        "itl": 1e3 * steady.gaps.quantile_s(later / 100),
    }
    found_ms = np.array(
        [np.percentile(first_ms, first), max(of_later[name] for name in asked.later)]
    )
    if not asked.is_of_e2e:
        return found_ms
    made_up_ms = answer_ms(found_ms[0], found_ms[1], steady.output_tokens[is_ok].mean())
    return found_ms * np.percentile(1e3 * steady.e2e_s[is_ok], first) / made_up_ms


def _means_ms(load_test: Simulation) -> np.ndarray:
    """Return the mean TTFT and TPOT of a load test, (2,)."""
    is_ok = load_test.status == OK
    if not is_ok.any():
        return np.full(2, np.nan)
    return 1e3 * np.array([load_test.ttft_s[is_ok].mean(), np.nanmean(load_test.tpot_s[is_ok])])
