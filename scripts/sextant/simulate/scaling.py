"""Replicas that come and go: a policy looks at servers now and then, and orders or removes some.

`simulate_scaled` follows requests and replicas together. A policy is a `Timeline` (the number of
replicas from each time on) or `Reactive`: the rule of Kubernetes' HorizontalPodAutoscaler, which
KEDA uses too, over what vLLM exports
(kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale).
"""

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

from sextant.base.errors import InputError
from sextant.facts.startup import Startup
from sextant.simulate.server import PENDING, TIMEOUT, Scheduler, StepLaw
from sextant.simulate.simulation import Router, Simulation, simulation_of
from sextant.simulate.world import World, make_world, renew
from sextant.workload.requests import NONE, RequestStream

Gauge = Literal["requests_running", "requests_waiting", "requests_in_flight", "kv_used_fraction"]
Metric = Literal[Gauge, "request_rate_rps", "throughput_tok_s", "ttft_s"]
Aggregate = Literal["sum", "mean", "max"]
Read = Callable[["Trigger"], float]
_MOST_LOOKS = 50_000
"""Looks of a policy that are followed: a week of Kubernetes' 15 s."""


class Trigger(NamedTuple):
    """A metric and its target."""

    metric: Metric
    target: float
    is_average: bool = True
    """Kubernetes' `AverageValue`: the target is for each replica; else `Value`: for the metric."""
    aggregate: Aggregate = "sum"  #: Over replicas.
    window_s: float = 0.0
    """Time over which the metric is averaged; 0: its value when it is looked at."""
    share: float = 0.5  #: The quantile of a latency.
    labels: tuple[str, ...] = ()
    """Of Prometheus, which servers are looked at: `a="b"` for each metric; here all are."""


class Step(NamedTuple):
    """How much a number of replicas may change in a period."""

    kind: Literal["Pods", "Percent"]
    value: float
    period_s: float


class Direction(NamedTuple):
    """How fast replicas are added, or removed."""

    stabilization_s: float
    steps: tuple[Step, ...] = ()  #: Empty: any number at once.
    select: Literal["Max", "Min", "Disabled"] = "Max"


class Controller(Protocol):
    """Decides the number of replicas, with a memory of earlier looks."""

    def decide(self, now_s: float, ordered: int, ready: int, read: Read) -> int:
        """Return how many replicas there should be.

        `ordered` replicas exist at that time; `ready` of them serve.
        """


_UP = Direction(0.0, (Step("Percent", 100, 15), Step("Pods", 4, 15)))
_DOWN = Direction(300.0, (Step("Percent", 100, 15),))
_AT_ONCE = Startup(0.0, 0.0)


class ScalingPolicy(Protocol):
    """How replicas come and go."""

    @property
    def most(self) -> int:
        """The most replicas that the policy asks for."""

    def looks_s(self, end_s: float) -> np.ndarray:
        """Return when the policy looks, ascending from 0 on."""

    def controller(self) -> Controller:
        """Return a controller without a memory."""


@dataclass(frozen=True, eq=False)
class Timeline:
    """The number of replicas from each time on."""

    time_s: np.ndarray
    replicas: np.ndarray
    is_ready: bool = False
    """Whether replicas serve at once: then the times are those at which their start ends."""

    @property
    def most(self) -> int:
        """The most replicas that there are."""
        return int(self.replicas.max())

    def looks_s(self, end_s: float) -> np.ndarray:
        """Return when the number changes."""
        return self.time_s[self.time_s < end_s]

    def controller(self) -> Controller:
        """Return itself: it needs no memory."""
        return self

    def decide(self, now_s: float, ordered: int, ready: int, read: Read) -> int:
        """Return the number of that time."""
        last = int(np.searchsorted(self.time_s, now_s, side="right")) - 1
        return int(self.replicas[max(last, 0)])


@dataclass(frozen=True)
class Reactive:
    """The rule of a HorizontalPodAutoscaler, with its defaults, and KEDA's scaling to zero."""

    triggers: tuple[Trigger, ...]
    most: int
    least: int = 1
    period_s: float = 15.0
    tolerance: float = 0.1
    up: Direction = _UP
    down: Direction = _DOWN
    cooldown_s: float = 300.0
    """Time without any load after which the last replica goes, where `least` is 0."""
    poll_s: float = 0.0
    """KEDA's time between looks that order the first replica; 0: at each look."""

    @property
    def memory_s(self) -> float:
        """Longest time that a decision looks back."""
        ways = (self.up, self.down)
        spans = [way.stabilization_s for way in ways]
        return max(spans + [step.period_s for way in ways for step in way.steps])

    @property
    def is_rays(self) -> bool:
        """Whether it is the rule of Ray Serve: without a tolerance, any number at once."""
        return self.tolerance == 0 and not self.up.steps and not self.down.steps

    def looks_s(self, end_s: float) -> np.ndarray:
        """Return when the policy looks. Raises InputError: too often to be followed."""
        if (n_looks := end_s / self.period_s) > _MOST_LOOKS:
            least_s = math.ceil(end_s / _MOST_LOOKS)
            problem = f"{n_looks:,.0f} looks in {end_s:,.0f} s, {_MOST_LOOKS:,} are followed"
            fix = f"look every {least_s} s or less often, or give a shorter traffic"
            raise InputError(problem, field="metrics_interval_s", fix=fix)
        return np.arange(0.0, end_s, self.period_s)

    def is_polled(self, now_s: float) -> bool:
        """Return whether a first replica may be ordered at a look."""
        return not self.poll_s or now_s % self.poll_s < self.period_s

    def controller(self) -> Controller:
        """Return one without a memory."""
        return _Reacting(self)


def _is_within(age_s: float, way: Direction, is_closed: bool) -> bool:
    """Return whether what was wanted so long ago lies within the stabilization window."""
    return age_s == 0 or age_s < way.stabilization_s + (1e-9 if is_closed else 0.0)


@dataclass
class _Reacting:
    policy: Reactive
    wanted: list[tuple[float, int]] = field(default_factory=list)
    """Time and what the metrics asked for."""
    changes: list[tuple[float, int]] = field(default_factory=list)
    loaded_s: float = -math.inf

    def decide(self, now_s: float, ordered: int, ready: int, read: Read) -> int:
        policy = self.policy
        values = [read(trigger) for trigger in policy.triggers]
        if any(value > 0 for value in values):
            self.loaded_s = now_s
        if policy.least == 0 and now_s - self.loaded_s >= (policy.cooldown_s if ordered else 1e-9):
            return 0
        if ordered == 0:
            return int(policy.is_polled(now_s))
        wanted = max(
            self._by_metric(trigger, value, ordered, ready)
            for trigger, value in zip(policy.triggers, values, strict=True)
        )
        wanted = min(max(wanted, policy.least, 1), policy.most)
        if not self.wanted:  # as Kubernetes begins: what there is was wanted
            self.wanted.append((now_s - 1e-6, ordered))
        self.wanted.append((now_s, wanted))
        wanted = self._limited(now_s, ordered, self._stable(now_s, ordered))
        wanted = min(max(wanted, policy.least, 1), policy.most)
        self.changes.append((now_s, wanted - ordered))
        for kept in (self.wanted, self.changes):
            is_old = (at_s < now_s - policy.memory_s for at_s, _ in kept)
            del kept[: sum(takewhile(bool, is_old))]
        return wanted

    def _by_metric(self, trigger: Trigger, value: float, ordered: int, ready: int) -> int:
        if math.isnan(value):  # no metric: nothing changes
            return ordered
        ratio = value / trigger.target
        if abs(1 - ratio / (ordered if trigger.is_average else 1)) <= self.policy.tolerance:
            return ordered
        return math.ceil(ratio * (1 if trigger.is_average else max(ready, 1)) - 1e-9)

    def _stable(self, now_s: float, ordered: int) -> int:
        """Return the number, unless it was another one within the stabilization window."""
        # In Ray Serve what was wanted just a delay ago counts; in Kubernetes it does not.
        is_closed = self.policy.is_rays
        up, down = (
            [n for at_s, n in self.wanted if _is_within(now_s - at_s, way, is_closed)]
            for way in (self.policy.up, self.policy.down)
        )
        return min(max(ordered, min(up)), max(down))

    def _limited(self, now_s: float, ordered: int, wanted: int) -> int:
        """Return the number as far as the steps of its direction allow it, as Kubernetes has it:
        what was added and removed within a step's period counts, and a limit on the other side of
        the number of now changes nothing."""
        sign = 1 if wanted > ordered else -1
        way = self.policy.up if sign > 0 else self.policy.down
        if wanted == ordered or way.select == "Disabled":
            return ordered
        if not way.steps:
            return wanted
        ends = []
        for step in way.steps:
            start = ordered - sum(n for at_s, n in self.changes if at_s > now_s - step.period_s)
            if step.kind == "Pods":
                ends.append(int(start + sign * step.value))
            else:  # the part of a replica that remains is removed
                share = start * (1 + sign * step.value / 100)
                ends.append(math.ceil(share) if sign > 0 else int(share))
        furthest = [max, min][(way.select == "Max") == (sign < 0)](ends)
        if sign > 0:
            return min(wanted, max(furthest, ordered))
        return max(wanted, min(furthest, ordered))


class ReplicaCounts(NamedTuple):
    """Replicas at a time under a policy."""

    ordered: int
    """Those that start included."""
    ready: int


@dataclass(frozen=True, eq=False)
class Scaling:
    """What replicas there were; each array has a value for each time at which it changed."""

    time_s: np.ndarray
    ordered: np.ndarray
    ready: np.ndarray
    replica_s: float  #: Time of all replicas, from the order until the last answer.
    n_starts: int

    def at(self, time_s: float) -> ReplicaCounts:
        """Return the replicas at a time."""
        last = max(int(np.searchsorted(self.time_s, time_s, side="right")) - 1, 0)
        return ReplicaCounts(int(self.ordered[last]), int(self.ready[last]))


@dataclass(frozen=True)
class Autoscaler:
    """A policy, and how replicas begin under it."""

    policy: ScalingPolicy
    startup: Startup = _AT_ONCE  #: How long a replica takes to start.
    initial: int | None = None
    """Replicas that serve at the start; None: what the policy says at first."""
    seed: int = 0  #: Of the times of starts.


def simulate_scaled(
    requests: RequestStream,
    scheduler: Scheduler,
    law: StepLaw,
    autoscaler: Autoscaler,
    *,
    duration_s: float,
    router: Router = "least_requests",
    window_s: float = float("inf"),
) -> tuple[Simulation, Scaling]:
    """Return the outcome of requests, and of replicas that a policy orders and removes.

    Replicas that do not serve yet are removed first, then the last to start; a removed replica
    answers the requests that it has. While no replica serves, requests wait for
    one; requests without a replica at the end time out.

    Args:
        requests, scheduler, law, router, window_s: as `simulate` takes them.
        autoscaler: decides how many replicas there are.
        duration_s: the policy looks, and replicas are paid for, until then.
    """
    policy = autoscaler.policy
    # As many places again: a removed replica may still have requests.
    tables = make_world(requests, scheduler, law, 2 * policy.most, warmup_s=0.0, window_s=window_s)
    is_instant = isinstance(policy, Timeline) and policy.is_ready
    startup = _AT_ONCE if is_instant else autoscaler.startup
    triggers = policy.triggers if isinstance(policy, Reactive) else ()
    memory_s = max((trigger.window_s for trigger in triggers), default=0.0)
    pool = _Pool(tables, get_args(Router).index(router), startup, autoscaler.seed, memory_s)
    controller = policy.controller()

    initial = autoscaler.initial
    if initial is None:
        initial = controller.decide(0.0, 1, 1, lambda trigger: math.nan)
    pool.order(min(initial, policy.most), 0.0, is_start=True)
    pool.activate(0.0)
    for look_s in policy.looks_s(duration_s).tolist():
        pool.look(look_s)
        ordered = pool.ordered
        wanted = controller.decide(look_s, ordered, len(pool.serving), pool.read)
        pool.order(wanted - ordered, look_s)
        pool.remove(ordered - wanted, look_s)
        pool.activate(look_s)
    pool.finish(duration_s)

    replica_s = pool.replica_s(duration_s)
    simulation = simulation_of(tables, 0.0)
    use = simulation.use._replace(n_replicas=replica_s / duration_s)
    time_s, ordered_at, ready_at = np.array(pool.states).T
    scaling = Scaling(time_s, ordered_at, ready_at, replica_s, pool.n_starts)
    return replace(simulation, use=use), scaling


class _Pool:
    """Replicas in places of a simulated world; a place is free again when its last request left."""

    def __init__(
        self, world: World, router: int, startup: Startup, seed: int, memory_s: float
    ) -> None:
        self.world = world
        self.router = router
        self.startup = startup
        self.rng = np.random.default_rng(seed)
        self.free = list(range(len(world.replicas)))[::-1]
        self.starting: dict[int, float] = {}  # when a replica will serve
        self.serving: list[int] = []  # in the order of their starts
        self.leaving: dict[int, float] = {}  # when a replica was removed
        self.n_starts = 0
        self.states: list[tuple[float, int, int]] = []  # time, replicas ordered, ready
        self._ordered_s: dict[int, float] = {}
        self._paid_s: list[tuple[float, float]] = []  # of replicas that have left
        self._looks = deque[tuple[float, dict[str, np.ndarray]]]()
        self._memory_s = memory_s
        self._turn = 0

    @property
    def ordered(self) -> int:
        return len(self.serving) + len(self.starting)

    def order(self, n: int, now_s: float, *, is_start: bool = False) -> None:
        """Order replicas, at most one for each free place; at the start they serve at once."""
        for _ in range(min(n, len(self.free))):
            index = self.free.pop()
            unit = self.rng.standard_normal()
            took_s = 0.0 if is_start else self.startup.median_s * math.exp(self.startup.sd * unit)
            self._ordered_s[index] = now_s
            self.starting[index] = now_s + took_s
            self.n_starts += not is_start
            renew(self.world, index, now_s + took_s)

    def remove(self, n: int, now_s: float) -> None:
        """Remove replicas: first the ones that do not serve yet, then the last to start."""
        for index in [*self.starting, *self.serving[::-1]][: max(n, 0)]:
            if self.starting.pop(index, None) is None:
                self.serving.remove(index)
            else:  # it goes at once: nothing was sent to it
                self.world.replicas["free_s"][index] = now_s
            self.leaving[index] = now_s

    def serve(self, until_s: float) -> None:
        """Send what arrives before a time. Replicas take requests from the end of their start."""
        from sextant.simulate import routing

        for now_s in sorted({until_s, *(s for s in self.starting.values() if s <= until_s)}):
            if self.serving:
                serving = np.array(self.serving)
                self._turn = routing.route(self.world, self.router, serving, now_s, self._turn)
            self.activate(now_s)

    def finish(self, end_s: float) -> None:
        """Have all requests answered.

        Requests that never found a replica time out, and the turns that wait for their answers.
        """
        from sextant.simulate import routing

        if self.ordered:
            self.serve(np.inf)
        routing.finish(self.world)
        is_left = self.world.requests["status"] == PENDING
        left = self.world.requests[is_left]
        left["status"] = TIMEOUT
        left["arrival_s"] = np.minimum(left["arrival_s"], end_s)
        left["deadline_s"] = end_s
        self.world.requests[is_left] = left

    def activate(self, now_s: float) -> None:
        """Have replicas serve whose start is over, and record how many replicas there are."""
        for index in [index for index, ready_s in self.starting.items() if ready_s <= now_s]:
            del self.starting[index]
            self.serving.append(index)
        state = (now_s, self.ordered, len(self.serving))
        if not self.states or state[1:] != self.states[-1][1:]:
            self.states.append(state)

    def look(self, now_s: float) -> None:
        """Go to a time, free the places of replicas that have left, and keep the gauges."""
        from sextant.simulate import steps

        self.serve(now_s)
        for index in (*self.serving, *self.leaving):
            steps.advance(self.world, index, now_s)
        all_ = self.world.replicas
        for index in [p for p in self.leaving if all_["n_assigned"][p] == all_["n_left"][p]]:
            self._paid_s.append(self._paid(index))
            del self.leaving[index]
            self.free.append(index)
        serving = all_[self.serving]
        in_flight = serving["n_assigned"] - serving["n_left"]
        running = serving["n_running"]
        n_held = 0 if self.serving else int(self.is_held(now_s).sum())
        gauges = {
            "requests_running": running,
            "requests_waiting": np.append(in_flight - running, n_held),
            "requests_in_flight": np.append(in_flight, n_held),
            "kv_used_fraction": serving["used"] / self.world.n_blocks,
            "tokens": np.array([all_["n_gaps"].sum()]),
        }
        self._looks.append((now_s, gauges))
        while self._looks[0][0] < now_s - self._memory_s:
            self._looks.popleft()

    def is_held(self, now_s: float) -> np.ndarray:
        """Return which requests have arrived and are at no replica, of all requests."""
        table = self.world.requests
        is_unsent = (table["replica"] == NONE) & (table["status"] == PENDING)
        return np.asarray(is_unsent & (table["arrival_s"] < now_s))

    def read(self, trigger: Trigger) -> float:
        """Return the value of a trigger's metric now; NaN where there is none."""
        now_s, gauges = self._looks[-1]
        since_s = now_s - trigger.window_s
        if trigger.metric == "request_rate_rps":
            arrival_s = self.world.requests["arrival_s"]
            n_new = ((arrival_s >= since_s) & (arrival_s < now_s)).sum()
            return float(n_new) / trigger.window_s
        if trigger.metric == "ttft_s":
            return self._first_tokens(trigger, since_s, now_s)
        recent = [of for at_s, of in self._looks if at_s >= since_s]
        if trigger.metric == "throughput_tok_s":
            return float(gauges["tokens"][0] - recent[0]["tokens"][0]) / trigger.window_s
        values = [of[trigger.metric] for of in recent if len(of[trigger.metric])]
        aggregates = [getattr(np, trigger.aggregate)(value) for value in values]
        return float(np.mean(aggregates)) if aggregates else math.nan

    def _first_tokens(self, trigger: Trigger, since_s: float, now_s: float) -> float:
        """Return the quantile of TTFT of the first tokens that came since a time."""
        first_s = self.world.requests["first_s"]
        begun = self.world.requests[(first_s >= since_s) & (first_s < now_s)]
        if not len(begun):
            return math.nan
        return float(np.quantile(begun["first_s"] - begun["arrival_s"], trigger.share))

    def _paid(self, index: int) -> tuple[float, float]:
        end_s = max(self.leaving.get(index, np.inf), self.world.replicas["free_s"][index])
        return self._ordered_s[index], end_s

    def replica_s(self, duration_s: float) -> float:
        """Return the time of all replicas, from order to last answer, up to the end."""
        rest = [self._paid(index) for index in (*self.starting, *self.serving, *self.leaving)]
        return float(np.diff(np.minimum([*self._paid_s, *rest], duration_s)).sum())
