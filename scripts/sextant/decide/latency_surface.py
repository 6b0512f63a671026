"""Latencies of a replica at any steady load, by any law of a step, from a few simulations.

The closed form (`law.means.open_loop`) gives mean latencies of equal requests. Percentiles lie
above means, lengths differ, memory fills. By how much is a smooth function of a few ratios: how
many requests share a step, how full the memory is, how near saturation is, how long a prompt takes
beside a step, how regular arrivals are. A few laws at a few loads, spread over all of these, are
simulated (`choose_design`). The logarithm of each latency over that of the
closed form is a surface through them (`LatencySurface`), which holds for all laws, so for all GPU
profiles, limits and rates.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from sextant.base.kept import keep_arrays, kept_path, read_arrays
from sextant.decide.asked_limits import Asked, asked_of, shape_of, unit_limits, worst_of
from sextant.decide.kriging import Kriging, fit_kriging
from sextant.decide.missed_rates import UNMEASURED, MissedLoad, RateMeasurements
from sextant.decide.sizing import RATE_STEPS, in_steps
from sextant.decide.windows import ServingResults, Target
from sextant.facts.slo import Limit
from sextant.law.means import (
    BatchLimits,
    MeanLoad,
    Means,
    open_loop_at,
    saturation_rps,
    step_parts,
)
from sextant.simulate.server import EDGES_MS, OK, Scheduler, StepLaw
from sextant.simulate.simulation import on_threads, simulate
from sextant.simulate.source import DIGEST
from sextant.workload.requests import RequestStream, SteadyTraffic

N_POINTS = 160
"""Simulations of a design."""
_TRIED = 8
"""Times as many laws and loads are compared when they are chosen."""
LEAST_DECODING = 0.03
"""Sequences that decode where a request is practically alone."""
_MOST_FILLED = 0.98
"""Share of the sequences that can decode at once at the highest load."""
_N_LOW_LEVELS = 3
_N_LEVELS = 11
"""Levels of load below and above one sequence at which latencies are read."""
_LEAST_CV2 = 1 / 64
"""Squared coefficient of variation of gaps, below which arrivals count as regular."""
_CROWDED = 0.6
"""Exponent of the levels of a design: more of them are high than low."""
_N_INPUTS = 8
_N_IDENTIFIED = 2
"""Draws of requests that tell one kind of requests from another."""
_MOST_ERROR = 0.1
"""Largest median error of a surface that is read: of each point's latency, by all the others."""
_MOST_PROMPTS = 12
"""The most prompts in one step that are counted."""


class MeanRequest(NamedTuple):
    """The mean request of some traffic."""

    input_tokens: float
    output_tokens: float  #: At least 2.
    shared_tokens: float = 0.0
    """Input tokens that all requests have in common: computed and kept in memory once."""

    def load(self, cv2: Any = 1.0) -> MeanLoad:
        """Return requests like this one whose gaps have this squared variation."""
        return MeanLoad(self.input_tokens, self.output_tokens, self.shared_tokens, cv2)

    def limits(self, scheduler: Scheduler) -> BatchLimits:
        """Return what a replica admits of such requests.

        The memory counts as if each request had the shared tokens for itself.
        """
        limits = BatchLimits.of(scheduler)
        held = self.input_tokens + max(scheduler.reserved_share, 0.5) * self.output_tokens
        own = held - self.shared_tokens
        kv_tokens = (scheduler.kv_tokens - self.shared_tokens) * held / own
        return limits._replace(kv_tokens=max(kv_tokens, held))


@dataclass(frozen=True, eq=False)
class ReplicaLaws:
    """How a replica works in each draw, the likeliest first."""

    scheduler: Scheduler
    terms: np.ndarray  #: Of the law of a step, (1 + draws, terms), in the order of `NAMES`.
    measured: RateMeasurements = UNMEASURED
    """Of such a replica: no draw bears a rate that was measured to break a limit."""
    missed: tuple[MissedLoad, ...] = ()
    """Measured loads that the likeliest law does not give back, the worst first."""

    @property
    def n_draws(self) -> int:
        """Draws beside the likeliest law."""
        return len(self.terms) - 1

    def law(self, draw: int) -> StepLaw:
        """Return the law of one draw; 0 is the likeliest."""
        return StepLaw.of(self.terms[draw])

    def of_draws(self, draws: np.ndarray) -> "ReplicaLaws":
        """Return some of the draws."""
        return replace(self, terms=self.terms[draws])

    def most_decoding(self, request: MeanRequest) -> float:
        """Return the sequences that can decode at once, of requests like this one."""
        return float(request.limits(self.scheduler).most_decoding(request.load()))

    def levels(self, request: MeanRequest) -> np.ndarray:
        """Return numbers of sequences that decode, from a request that is practically alone on."""
        most = max(_MOST_FILLED * self.most_decoding(request), 2 * LEAST_DECODING)
        few = np.geomspace(LEAST_DECODING, min(1.0, most / 2), _N_LOW_LEVELS, endpoint=False)
        return np.concatenate([few, np.geomspace(min(1.0, most / 2), most, _N_LEVELS)])


class Gaps(NamedTuple):
    """Gaps between tokens: steps with more prompts in them are longer; arrays of one shape."""

    decode_ms: np.ndarray  #: Without prompts.
    prompt_ms: np.ndarray  #: What a prompt, or a part of it, adds to a step.
    prompts_in_step: np.ndarray  #: Mean number in a step.

    def quantile_ms(self, share: float) -> np.ndarray:
        """Return a quantile of gaps, with prompts that fall into steps at random (Poisson)."""
        term = np.exp(-self.prompts_in_step)
        reached = term
        n_prompts = np.zeros_like(term)
        for number in range(1, _MOST_PROMPTS + 1):
            n_prompts = np.where(reached < share, number, n_prompts)
            term = term * self.prompts_in_step / number
            reached = reached + term
        return self.decode_ms + n_prompts * self.prompt_ms


@dataclass(frozen=True, eq=False)
class Loads:
    """Draws of a replica at levels of load, by the closed form; arrays of (draws, levels)."""

    means: Means
    inputs: np.ndarray  #: What a surface is a function of, (draws, levels, inputs).
    input_tokens: float  #: Mean of a request.
    gaps: "Gaps"

    @classmethod
    def of(
        cls, replica: ReplicaLaws, decoding: np.ndarray, request: MeanRequest, cv2: np.ndarray
    ) -> Self:
        """Return the loads at which this many sequences decode.

        Args:
            replica: the draws.
            decoding: sequences, (draws or 1, levels).
            request: the mean one.
            cv2: squared coefficient of variation of the gaps between requests, (draws or 1, levels
                or 1).
        """
        law = StepLaw(*replica.terms.T[:, :, None])
        limits = request.limits(replica.scheduler)
        load = request.load(cv2)
        means = open_loop_at(law, limits, load, decoding)
        parts = step_parts(law, limits, load, means.batch)
        n_chunks = np.maximum(parts.n_steps, 1.0)
        prompts_in_step = 1e-3 * means.request_rate_rps * n_chunks * means.itl_ms
        alone = open_loop_at(law, limits, load, np.array([[LEAST_DECODING]]))
        most = limits.most_decoding(load)
        columns = (
            np.log(decoding),
            decoding / most,
            means.request_rate_rps / saturation_rps(law, limits, load),
            np.sqrt(cv2),
            np.log(means.prompt_ms / means.itl_ms),
            np.log(means.itl_ms / alone.itl_ms),
            np.log(means.ttft_ms / means.prompt_ms),
            np.log(most),
        )
        shape = np.broadcast_shapes(means.itl_ms.shape, np.shape(cv2))
        means = Means(*(np.broadcast_to(values, shape) for values in means))
        inputs = np.stack([np.broadcast_to(column, shape) for column in columns], axis=-1)
        of_gaps = (
            np.broadcast_to(values, shape)
            for values in (parts.decode_ms, parts.prompt_ms / n_chunks, prompts_in_step)
        )
        return cls(means, inputs, request.input_tokens, Gaps(*of_gaps))

    def of_draw(self, draw: int) -> "Loads":
        """Return the loads of one draw alone."""
        row = slice(draw, draw + 1)
        means = Means(*(values[row] for values in self.means))
        gaps = Gaps(*(values[row] for values in self.gaps))
        return Loads(means, self.inputs[row], self.input_tokens, gaps)

    def base_ms(self, metric: str, percentile: float) -> np.ndarray:
        """Return what a percentile of a metric is compared with: of all but ITL the mean."""
        match metric:
            case "ttft":
                return self.means.ttft_ms
            case "nttft":
                return self.means.ttft_ms / self.input_tokens
            case "e2e":
                return self.means.e2e_ms
            case "itl":
                return self.gaps.quantile_ms(percentile / 100)
        return self.means.itl_ms

    def worst_ratio(self, limits: Mapping[str, Limit], percentile: float) -> np.ndarray:
        """Return the largest ratio of what limits are compared with."""
        if len(limits) > 1:  # of one request: its gaps count by their mean
            limits = {"tpot" if name == "itl" else name: limit for name, limit in limits.items()}
        ratios = [self.base_ms(name, percentile) / limit.limit_ms for name, limit in limits.items()]
        return np.maximum.reduce(ratios)


@dataclass(frozen=True, eq=False)
class DesignPoint:
    """A law at one load, to be simulated."""

    scheduler: Scheduler
    law: StepLaw
    load: Loads  #: Of shape (1, 1).
    cv2: float  #: Squared coefficient of variation of the gaps between requests.

    def simulated(
        self, traffic: SteadyTraffic, prefix_hit_rate: float, number: int
    ) -> ServingResults:
        """Return what requests get; each number has other requests and gaps."""
        drawn = traffic.drawn(number)
        rng = np.random.default_rng([traffic.seed, number, 2])  # lengths have another random stream
        gaps = rng.standard_gamma(1 / self.cv2, drawn.n)
        arrival_s = gaps.cumsum() / gaps.mean() / float(self.load.means.request_rate_rps[0, 0])
        requests = RequestStream(
            traffic.name,
            arrival_s,
            drawn.input_tokens,
            drawn.output_tokens,
            float(arrival_s[-1]),
        ).with_common_prefix(prefix_hit_rate)
        simulation = simulate(requests, self.scheduler, self.law)
        return ServingResults(
            arrival_s,
            requests.input_tokens,
            requests.output_tokens,
            simulation.ttft_s,
            simulation.e2e_s,
            simulation.status == OK,
            EDGES_MS,
            simulation.gaps.counts,
        )


@dataclass(frozen=True, eq=False)
class LatencySurface:
    """Latencies at percentiles, over the means of the closed form, at any load by any law."""

    replicas: Mapping[str, ReplicaLaws]
    """By GPU profile: their laws are spread over the surface."""
    traffic: SteadyTraffic  #: Its requests are simulated; its rate plays no part.
    prefix_hit_rate: float = 0.0
    """Share of a request's input that all requests have in common."""
    n_points: int = N_POINTS
    surfaces: dict[object, Kriging] = field(default_factory=dict, repr=False)
    """What was fitted already, by what was asked."""

    @cached_property
    def request(self) -> MeanRequest:
        """The mean request of the traffic."""
        inputs, outputs = self.traffic.drawn(0).mean_lengths
        return MeanRequest(inputs, max(outputs, 2.0), self.prefix_hit_rate * inputs)

    @cached_property
    def points(self) -> list[DesignPoint]:
        """The laws and loads that are simulated."""
        return choose_design(
            self.replicas, self.request, self.traffic.alpha, self.traffic.seed, self.n_points
        )

    @cached_property
    def finer(self) -> "LatencySurface":
        """The same surface with twice as many points."""
        return replace(self, n_points=2 * self.n_points, surfaces={})

    def fit_for(self, asked: Sequence[Asked]) -> "LatencySurface":
        """Return the surface that is read: a finer one where this one is not close.

        It is the same whatever the limits are, so tighter ones never look easier.
        """
        return self if self.is_close(asked) else self.finer

    @cached_property
    def results(self) -> list[ServingResults]:
        """What requests get at each point."""
        return on_threads(
            lambda number: self.points[number].simulated(
                self.traffic, self.prefix_hit_rate, number
            ),
            range(len(self.points)),
        )

    def log_ratios(self, asked: Sequence[Asked], loads: Loads) -> np.ndarray:
        """Return the logarithm of each largest latency over its limit, (draws, levels, asked)."""
        means = [loads.worst_ratio(limits, percentile) for limits, percentile in asked]
        return np.asarray(self.surface_of(asked).at(loads.inputs) + np.log(np.stack(means, -1)))

    def surface_of(self, asked: Sequence[Asked]) -> Kriging:
        """Return the surface of what is asked: the logarithm of each ratio over that of means."""
        key = shape_of(asked)
        if key not in self.surfaces:
            values = np.array([self._values(limits, percentile) for limits, percentile in asked]).T
            is_known = np.isfinite(values).all(axis=1)  # elsewhere all requests are refused
            inputs = np.stack([point.load.inputs[0, 0] for point in self.points])
            self.surfaces[key] = fit_kriging(inputs[is_known], values[is_known])
        return self.surfaces[key]

    def is_close(self, asked: Sequence[Asked]) -> bool:
        """Return whether the surface tells what is asked: the latency at each of its points.

        Each is told by the surface through all the other points. The median error counts.
        """
        errors = np.median(np.abs(self.surface_of(asked).errors), axis=0)
        return bool((errors <= _MOST_ERROR).all())

    def _values(self, limits: Mapping[str, Limit], percentile: float) -> np.ndarray:
        """Return the logarithm of the largest simulated ratio over the largest of means.

        Simulations take a second: their values are kept for the next question.
        """
        path = kept_path("surface", *self._identity, repr((limits, percentile)))
        kept = read_arrays(path)
        if kept is not None and len(kept["simulated"]) == len(self.points):
            simulated = kept["simulated"]
        else:
            simulated = np.array([worst_of(result, limits, percentile) for result in self.results])
            keep_arrays(path, {"simulated": simulated})
        means = [point.load.worst_ratio(limits, percentile)[0, 0] for point in self.points]
        return np.log(simulated / np.array(means))

    @cached_property
    def _identity(self) -> list[str | np.ndarray]:
        """What the results follow from: laws, loads, requests, and the code that simulates."""
        requests = [self.traffic.drawn(number) for number in range(_N_IDENTIFIED)]
        numbers = [
            np.array([*point.law.array(), point.cv2, point.load.means.request_rate_rps[0, 0]])
            for point in self.points
        ]
        schedulers = repr([point.scheduler for point in self.points])
        lengths = [np.stack([one.input_tokens, one.output_tokens]) for one in requests]
        code = f"{DIGEST} {self.prefix_hit_rate} {self.traffic.seed}"
        return [code, schedulers, np.stack(numbers), np.stack(lengths)]


def choose_design(
    replicas: Mapping[str, ReplicaLaws],
    request: MeanRequest,
    alpha: float,
    seed: int,
    n_points: int,
) -> list[DesignPoint]:
    """Return laws and loads, spread over all that occur on these GPU profiles.

    Half of them are drawn at random. Each of the others is the one of many random ones that is
    farthest from all that are chosen already, so that the surface has few laws beyond it.

    Args:
        replicas: by GPU profile.
        request: the mean one.
        alpha: shape of the Gamma gaps between all requests.
        seed: of the choice.
        n_points: how many.
    """
    rng = np.random.default_rng([seed, 3])
    names = sorted(replicas)
    n_tried = _TRIED * n_points
    of_profile = np.arange(n_tried) % len(names)
    draws = rng.integers(0, min(len(replica.terms) for replica in replicas.values()), n_tried)
    heights = rng.random(n_tried) ** _CROWDED
    cv2 = np.exp(rng.random(n_tried) * np.log(_LEAST_CV2)) / alpha

    loads_of: dict[int, Loads] = {}
    inputs = np.empty((n_tried, _N_INPUTS))
    for profile, name in enumerate(names):
        rows = np.flatnonzero(of_profile == profile)
        low, high = np.log(replicas[name].levels(request)[[0, -1]])
        decoding = np.exp(low + heights[rows] * (high - low))[:, None]
        loads = Loads.of(replicas[name].of_draws(draws[rows]), decoding, request, cv2[rows, None])
        inputs[rows] = loads.inputs[:, 0]
        loads_of |= {row: loads.of_draw(index) for index, row in enumerate(rows.tolist())}

    points = []
    for row in _spread(inputs, n_points):
        replica = replicas[names[of_profile[row]]]
        law = replica.law(draws[row])
        points.append(DesignPoint(replica.scheduler, law, loads_of[row], float(cv2[row])))
    return points


def _spread(inputs: np.ndarray, n: int) -> list[int]:
    """Return n rows: the first half as they come, then each the farthest from those before."""
    standard = (inputs - inputs.mean(axis=0)) / (inputs.std(axis=0) + 1e-9)
    chosen = [*range(n // 2)]
    squares = ((standard[:, None] - standard[None, chosen]) ** 2).sum(axis=-1).min(axis=1)
    while len(chosen) < n:
        farthest = int(squares.argmax())
        chosen.append(farthest)
        squares = np.minimum(squares, ((standard - standard[farthest]) ** 2).sum(axis=-1))
    return chosen


@dataclass(frozen=True)
class SteadyLoad:
    """Requests that arrive at random at a rate."""

    rate_rps: float
    alpha: float  #: Shape of the Gamma gaps between all requests; 1: Poisson.
    request: MeanRequest

    def cv2(self, replica_rps: np.ndarray) -> np.ndarray:
        """Return the squared variation of a replica's gaps, where replicas take turns.

        A gap of one of n replicas is the sum of n gaps, so its variation is 1/n of that of all.
        """
        n_replicas = np.maximum(self.rate_rps / replica_rps, 1.0)
        return np.maximum(1 / (self.alpha * n_replicas), _LEAST_CV2 / self.alpha)


class LoadTable(NamedTuple):
    """Rates and latencies of a replica at rising levels of load, in logarithms."""

    log_rates: np.ndarray  #: Requests a second at the replica, (draws, levels).
    log_ratios: np.ndarray  #: Of what is asked, over limits of 1 ms, (draws, levels, asked).

    def borne_rates(self, limits_ms: Sequence[Sequence[float]] | np.ndarray) -> list[np.ndarray]:
        """Return the requests a second within each of some limits, each (draws,).

        The limits stand by what is asked; the least of the rates of several keeps them all. A rate
        is 0 where a request alone breaks the limit, and the highest one where none breaks it.
        """
        worst = np.maximum.accumulate(self.log_ratios, axis=1)
        return [
            self._rates_within(worst[..., number], limit_ms)
            for number, of_asked in enumerate(limits_ms)
            for limit_ms in of_asked
        ]

    def _rates_within(self, log_ms: np.ndarray, limit_ms: float) -> np.ndarray:
        """Return the rates at which rising latencies, (draws, levels), reach a limit."""
        ratios = log_ms - np.log(limit_ms)
        over = np.where(ratios[:, -1] > 0, (ratios > 0).argmax(axis=1), ratios.shape[1] - 1)
        over = np.maximum(over, 1)
        row = np.arange(len(ratios))
        before = ratios[row, over - 1]
        rise = ratios[row, over] - before
        share = np.divide(-before, rise, out=np.ones(len(row)), where=rise > 0)
        log_rate = self.log_rates[row, over - 1]
        step = self.log_rates[row, over] - log_rate
        borne_rps = np.exp(log_rate + np.clip(share, 0, 1) * step)
        return np.where(ratios[:, 0] > 0, 0.0, borne_rps)


def load_table(
    surface: LatencySurface, replica: ReplicaLaws, asked: Sequence[Asked], load: SteadyLoad
) -> LoadTable:
    """Return rates and latencies of a replica of those that share the rate of a load in turn."""
    levels = replica.levels(load.request)[None]
    law = StepLaw(*replica.terms.T[:, :, None])
    limits = load.request.limits(replica.scheduler)
    random = open_loop_at(law, limits, load.request.load(), levels)
    loads = Loads.of(replica, levels, load.request, load.cv2(random.request_rate_rps))
    rates_rps = np.maximum.accumulate(loads.means.request_rate_rps, axis=1)
    return LoadTable(np.log(rates_rps), surface.log_ratios(asked, loads))


ANCHOR_STEP = 4.0
"""Rates of all requests at which the rates that a replica bears are read, each times this one."""


@dataclass(frozen=True, eq=False)
class BorneRates:
    """What a replica bears within limits, by draw, whatever the rate of all requests.

    It depends on that rate a little, as a replica of many gets more regular gaps. So it is read at
    a few rates (`ANCHOR_STEP`), and interpolated between them.
    """

    surface: LatencySurface
    replica: ReplicaLaws
    target: Target
    alpha: float  #: Shape of the Gamma gaps between all requests.
    tables: dict[tuple[object, int], LoadTable] = field(default_factory=dict, repr=False)
    """What was read already, by what is asked and number of the rate."""

    def within(self, target: Target) -> "BorneRates":
        """Return what the replica bears within another target; what was read is shared."""
        return replace(self, target=target)

    def steps(self, anchor: int) -> np.ndarray:
        """Return steps of `RATE_STEPS`, (draws,), at the rate `ANCHOR_STEP` ** anchor.

        -inf where nothing is borne.
        """
        _, limits_ms = unit_limits(asked_of(self.target))
        return np.minimum.reduce(self.steps_by_limit(anchor, limits_ms[:, None]))

    def steps_by_limit(
        self, anchor: int, limits_ms: Sequence[Sequence[float]] | np.ndarray
    ) -> list[np.ndarray]:
        """Return the same within each of some limits, by what the target asks, each (draws,)."""
        rates = self._table(anchor).borne_rates(limits_ms)
        most_rps = self.replica.measured.most_rps_of([*self.target.limits], limits_ms)
        with np.errstate(divide="ignore"):
            return [
                in_steps(np.minimum(borne_rps, most))
                for borne_rps, most in zip(rates, most_rps, strict=True)
            ]

    def most_measured_rps(self) -> float:
        """Return the rate below the lowest one that was measured to break a limit."""
        limits = self.target.limits.items()
        measured = self.replica.measured
        return min(measured.most_rps(name, limit.limit_ms) for name, limit in limits)

    def _table(self, anchor: int) -> LoadTable:
        units, _ = unit_limits(asked_of(self.target))
        key = shape_of(units), anchor
        if key not in self.tables:
            load = SteadyLoad(ANCHOR_STEP**anchor, self.alpha, self.surface.request)
            surface = self.surface.fit_for(units)
            self.tables[key] = load_table(surface, self.replica, units, load)
        return self.tables[key]

    def alone(self) -> dict[str, np.ndarray]:
        """Return each latency over its limit of a request that is alone, by metric, (draws,)."""
        units, limits_ms = unit_limits(asked_of(self.target))
        shape = shape_of(units)
        tables = (table for (asked, _), table in self.tables.items() if asked == shape)
        table = next(tables, None) or self._table(0)  # alone, the rate of all makes no difference
        ratios = np.exp(table.log_ratios[:, 0]) / limits_ms
        return {name: ratios[:, number] for number, name in enumerate(self.target.limits)}

    def at(self, rate_rps: float) -> np.ndarray:
        """Return requests a second that a replica bears, of this rate of all requests, (draws,)."""
        position = np.log(rate_rps) / np.log(ANCHOR_STEP)
        low = int(np.floor(position + 1e-9))
        share = max(position - low, 0.0)
        steps = self.steps(low)
        if share > 1e-9:
            with np.errstate(invalid="ignore"):
                steps = (1 - share) * steps + share * self.steps(low + 1)
        return np.nan_to_num(np.exp2(steps / RATE_STEPS))
