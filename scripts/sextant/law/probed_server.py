"""Step laws that give the mean latencies measured of a server at a few loads (a probe).

Groups of terms are scaled until the closed form gives the means (`match_means`). What is asked next
is often a simulation of just that load, which should give it back: the closed form's difference to
the simulation is removed round by round. Where the rounds end beside the measurement, a search that
needs no slopes (Nelder and Mead) goes on from there.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sextant.facts.answer_times import requests_in_flight
from sextant.law.means import (
    STEP_TERMS,
    BatchLimits,
    MatchedLaws,
    MeanLoad,
    Means,
    Near,
    TermGroup,
    Values,
    broadcast_laws,
    closed_loop,
    match_means,
    open_loop,
    scaled_laws,
)
from sextant.law.measured_server import LEAST_NOISE, simulated_means_ms
from sextant.simulate.server import NAMES, Scheduler, StepLaw
from sextant.simulate.simulation import Simulation, simulate, simulate_closed
from sextant.workload.requests import RequestStream

_OF_SEQUENCES: TermGroup = ("sequence_ms", "kv_token_ms")
_GROUPS: tuple[TermGroup, ...] = (
    ("request_ms",),
    STEP_TERMS,
    ("prefill_token_ms", "prefill_pair_ms", "prompt_step_ms"),
    _OF_SEQUENCES,
)
_SD = (1.5, 0.4, 0.15, 0.15)
"""Spread of each group's log scale. What a deployment adds to a request is not known before; the
time of steps is, up to this, and so are the parts that prompts and sequences have in it."""
_UNTOLD_SD = 0.01
"""The same of what was not measured: without a TTFT what a deployment adds to a request, without an
ITL the time of steps and of their sequences. The law's stays."""

_ROUNDS = 8
"""Most simulations in which the closed form's difference is removed."""
_STEP_OF_BIAS = 0.5
"""Share of the difference that a round removes."""
_SEARCHED = 100
"""Most simulations of the search after them."""
_FIRST_MOVES = (0.3, 0.2, 0.2, 0.2)
"""Log scales by which that search starts around."""
_CLOSE = 0.05
"""Logarithm of a difference that needs no search."""
_MOST_NOISE = 0.3
"""Most noise of a mean's logarithm. A server that is missed by more is another one than is asked
about, e.g. with other settings, which no spread of its laws covers."""
_FAR = 3.0
"""Logarithm of the difference where a simulation answers nobody."""
_ANSWERS = (20, 60)
"""Fewest and most answers of each user in a simulation."""
_ALL_ANSWERS = 30_000
"""Answers of all users there, between these bounds."""
_ARRIVALS = 3_000
"""Requests of a simulation in which they come at a rate."""
_FIRST_SHARE = 0.1
"""Share of these that do not count: they find the server empty."""


@dataclass(frozen=True)
class ProbeResult:
    """Loads of a deployment and their measured latencies; arrays have one value per load."""

    load: MeanLoad
    ttft_ms: Values  #: NaN: not measured.
    itl_ms: Values  #: NaN: not measured.
    users: Values = 1.0  #: Of a closed loop; of an open one the requests in flight.
    request_rate_rps: Values = np.nan  #: Of an open loop; NaN: the loop was closed.

    @property
    def is_open(self) -> np.ndarray:
        """Whether requests came at a rate, by load."""
        return ~np.isnan(np.atleast_1d(self.request_rate_rps))

    def measured(self) -> np.ndarray:
        """Return the logarithms of TTFT, then of ITL, (2 · loads,)."""
        return np.log(np.concatenate([np.atleast_1d(self.ttft_ms), np.atleast_1d(self.itl_ms)]))

    def spread(self) -> np.ndarray:
        """Return the prior standard deviation of each group's log scale, (groups,)."""
        spread = np.array(_SD)
        if np.isnan(self.ttft_ms).all():
            spread[_GROUPS.index(("request_ms",))] = _UNTOLD_SD
        # A rate tells of steps without an ITL, too: the server bears it.
        if np.isnan(self.itl_ms).all() and not self.is_open.any():
            spread[[_GROUPS.index(STEP_TERMS), _GROUPS.index(_OF_SEQUENCES)]] = _UNTOLD_SD
        return spread

    def means(self, law: StepLaw, limits: BatchLimits, near: Near = None) -> Means:
        """Return what the closed form has for laws at the loads."""
        is_open = self.is_open
        if not is_open.any():
            return closed_loop(law, limits, self.load, np.atleast_1d(self.users))
        of_rates = open_loop(law, limits, self.load, np.atleast_1d(self.request_rate_rps), near)
        if is_open.all():
            return of_rates
        of_users = closed_loop(law, limits, self.load, np.atleast_1d(self.users))
        return Means(*(np.where(is_open, *both) for both in zip(of_rates, of_users, strict=True)))


class FittedLaws(NamedTuple):
    """Laws that give the latencies of a probe, and what the likeliest still misses."""

    values: np.ndarray  #: Terms, (laws, terms), in the order of `NAMES`, the likeliest first.
    missed: np.ndarray
    """Logarithm of what the likeliest law gives over what was measured, (loads, 2): of TTFT, then
    of ITL; 0 where nothing was measured."""


def fit_laws_to_probe(
    laws: np.ndarray, scheduler: Scheduler, probe: ProbeResult, seed: int = 0
) -> FittedLaws:
    """Return laws that give the latencies of a probe.

    Args:
        laws: the most likely one, then draws, shape (laws, terms).
        scheduler: the server's settings.
        probe: the loads and their latencies.
        seed: of the errors of measurement; each draw has errors of its own.
    """
    # A draw that takes a request for free would need a scale without end.
    column = NAMES.index("request_ms")
    laws = laws.copy()
    laws[:, column] = np.maximum(laws[:, column], laws[0, column])

    limits = BatchLimits.of(scheduler)
    measured = probe.measured()
    if probe.is_open.all() or np.any(probe.load.cached_tokens):
        log_scales = match_laws(laws[:1], limits, probe, measured[None]).log_scales[0]
    else:
        log_scales = _simulated_log_scales(laws[:1], scheduler, probe, seed)
    likeliest = scaled_laws(laws[:1], log_scales[None], _GROUPS)
    missed = _missed(StepLaw.of(likeliest[0]), scheduler, probe, seed)

    # What no law gives back is not known better than by so much.
    misfit = float(np.sqrt(np.mean(missed[~np.isnan(measured)] ** 2)))
    noise = np.clip(misfit, LEAST_NOISE, _MOST_NOISE)
    errors = np.random.default_rng(seed).normal(0, noise, (len(laws), len(measured)))
    errors[0] = 0
    closed_form = probe.means(broadcast_laws(likeliest), limits).logs()[0]
    closed_form = np.where(np.isnan(closed_form), measured, closed_form)  # a saturating rate
    goal = np.where(np.isnan(measured), np.nan, closed_form)
    values = match_laws(laws, limits, probe, goal + errors, log_scales).values
    # All draws differ from their closed form as the likeliest does from its own.
    values *= np.divide(likeliest, values[:1], out=np.ones_like(likeliest), where=likeliest > 0)
    return FittedLaws(values, missed.reshape(2, -1).T)


def match_laws(
    laws: np.ndarray,
    limits: BatchLimits,
    probe: ProbeResult,
    goals: np.ndarray,
    first_log_scales: np.ndarray | None = None,
) -> MatchedLaws:
    """Return laws whose closed form gives the goals.

    Args:
        laws: (laws, terms).
        limits: of the server.
        probe: the loads.
        goals: logarithms of TTFT, then of ITL, (laws, 2 · loads); NaN: not measured.
        first_log_scales: of the first law, (groups,), where the search for scales starts; None:
            where steps are as slow as measured.
    """

    def predict(law: StepLaw, _: np.ndarray, near: Near) -> Means:
        return probe.means(law, limits, near)

    slower = _log_slower(laws, limits, probe)
    start = np.zeros((len(laws), len(_GROUPS)))
    if first_log_scales is not None:
        slower = slower - slower[0]
        start += first_log_scales
    start[:, _GROUPS.index(STEP_TERMS)] += slower
    spread = probe.spread().tolist()
    return match_means(laws, _GROUPS, spread, predict, goals, LEAST_NOISE, start)


def _log_slower(laws: np.ndarray, limits: BatchLimits, probe: ProbeResult) -> np.ndarray:
    """Return by how much steps take longer than the laws say, logarithms of shape (laws,).

    The measured rate may saturate a law, where nothing can be compared. As many users as were in
    flight, by Little's law, never do.
    """
    if not probe.is_open.any():
        return np.zeros(len(laws))
    answers_ms = np.nan_to_num(probe.ttft_ms) + probe.load.later_tokens * probe.itl_ms
    rates_rps = np.atleast_1d(probe.request_rate_rps)
    in_flight = np.maximum(requests_in_flight(rates_rps, answers_ms), 1.0)
    in_flight = np.where(np.isnan(in_flight), probe.users, in_flight)
    means = closed_loop(broadcast_laws(laws), limits, probe.load, in_flight)
    slower = np.log(probe.itl_ms / means.itl_ms)
    slower = np.where(np.isnan(slower), np.log(probe.ttft_ms / means.ttft_ms), slower)
    return np.asarray(slower.mean(axis=-1))


class _Tried(NamedTuple):
    """A law that was simulated."""

    log_scales: np.ndarray
    missed: np.ndarray  #: Logarithm of simulated over measured, 0 where nothing was measured.

    def cost(self, spread: np.ndarray) -> float:
        """Return the negative logarithm of its posterior, times 2.

        `spread` is the prior's, of each group.
        """
        misfit = np.sum((self.missed / LEAST_NOISE) ** 2)
        return float(misfit + np.sum(np.square(self.log_scales / spread)))

    def is_close(self, distance: float) -> bool:
        """Return whether no latency is farther off."""
        return bool(np.abs(self.missed).max() < distance)


def _simulated_log_scales(
    likeliest: np.ndarray, scheduler: Scheduler, probe: ProbeResult, seed: int
) -> np.ndarray:
    """Return log scales, (groups,), of the law whose simulation of the users is closest to the
    probe; `likeliest` is the law without them, (1, terms)."""
    limits = BatchLimits.of(scheduler)
    measured = probe.measured()
    spread = probe.spread()

    def tried(log_scales: np.ndarray) -> _Tried:
        law = StepLaw.of(scaled_laws(likeliest, log_scales[None], _GROUPS)[0])
        return _Tried(log_scales, _missed(law, scheduler, probe, seed))

    bias = np.zeros_like(measured)
    rounds: list[_Tried] = []
    for _ in range(_ROUNDS):
        matched = match_laws(likeliest, limits, probe, (measured + bias)[None])
        rounds.append(tried(matched.log_scales[0]))
        if rounds[-1].is_close(LEAST_NOISE):
            break
        bias = bias - _STEP_OF_BIAS * rounds[-1].missed
    best = min(rounds, key=lambda law: law.cost(spread))
    log_scales = best.log_scales
    if not best.is_close(_CLOSE):
        from scipy.optimize import minimize  # few questions have a probe that needs it

        moves = np.minimum(_FIRST_MOVES, 2 * spread)
        around = log_scales + np.vstack([np.zeros(len(moves)), np.diag(moves)])
        options = {"maxfev": _SEARCHED, "initial_simplex": around, "xatol": 1e-3, "fatol": 0.1}

        def cost(scales: np.ndarray) -> float:
            return tried(scales).cost(spread)

        search = minimize(cost, log_scales, method="Nelder-Mead", options=options)
        log_scales = search.x
    return log_scales


def _missed(law: StepLaw, scheduler: Scheduler, probe: ProbeResult, seed: int) -> np.ndarray:
    """Return the logarithm of what a law gives over what was measured, TTFT, then ITL.

    It is 0 where nothing was measured. What a cache held is not simulated, so the closed form says
    what the law gives.
    """
    measured = probe.measured()
    if np.any(probe.load.cached_tokens):
        given = probe.means(broadcast_laws(law.array()[None]), BatchLimits.of(scheduler)).logs()[0]
    else:
        given = np.log(_simulated_ms(law, scheduler, probe, seed))
    missed = np.where(np.isnan(given), _FAR, given - measured)
    return np.where(np.isnan(measured), 0.0, missed)


def _simulated_ms(law: StepLaw, scheduler: Scheduler, probe: ProbeResult, seed: int) -> np.ndarray:
    """Return the mean TTFT, then ITL, of the loads, as the simulator has them.

    `seed` is where users are met, and when requests come at a rate.
    """
    answers_ms = probe.means(law, BatchLimits.of(scheduler)).e2e_ms
    load = probe.load
    columns = (load.input_tokens, load.output_tokens, probe.request_rate_rps, probe.users)
    simulated = []
    for input_tokens, output_tokens, rate_rps, users, answer_ms in zip(
        *np.broadcast_arrays(*map(np.atleast_1d, (*columns, answers_ms))), strict=True
    ):
        lengths = np.ceil([input_tokens, output_tokens])
        if np.isnan(rate_rps):
            result = _users_served(law, scheduler, lengths, int(users), answer_ms, seed)
        else:
            result = _rate_served(law, scheduler, lengths, rate_rps, seed)
        simulated.append(simulated_means_ms(result))
    return np.transpose(simulated).ravel()


def _users_served(
    law: StepLaw,
    scheduler: Scheduler,
    lengths: np.ndarray,
    users: int,
    answer_ms: float,
    seed: int,
) -> Simulation:
    """Return what users get whose answers take about so long."""
    n_answers = int(np.clip(_ALL_ANSWERS // users, *_ANSWERS))
    # Most of five times as many are never sent.
    inputs, outputs = np.tile(lengths, (5 * n_answers * users, 1)).T
    requests = RequestStream.of_users(users, inputs, outputs, seed)
    duration_s = n_answers * answer_ms / 1e3
    return simulate_closed(users, requests, scheduler, law, duration_s=duration_s)


def _rate_served(
    law: StepLaw, scheduler: Scheduler, lengths: np.ndarray, rate_rps: float, seed: int
) -> Simulation:
    """Return what requests get that come at random at a rate."""
    gaps_s = np.random.default_rng(seed).exponential(1 / rate_rps, _ARRIVALS)
    arrival_s = np.cumsum(gaps_s)
    requests = RequestStream.of(arrival_s, *np.tile(lengths, (_ARRIVALS, 1)).T)
    return simulate(requests, scheduler, law, warmup_s=_FIRST_SHARE * arrival_s[-1])
