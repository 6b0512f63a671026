"""The answer of `sextant simulate`: latencies of one deployment under given traffic."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sextant.answer.pools import handover
from sextant.ask.laws import CaseLaws, find_laws
from sextant.ask.probe import used_note
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.base.errors import InputError
from sextant.base.files import jsonable
from sextant.decide.latency_surface import ReplicaLaws
from sextant.deploy.deployment import ReplicaDeployment, deployment_facts, deployment_of
from sextant.deploy.settings import ReplicaSettings, settings_of
from sextant.facts.llm import LLM
from sextant.facts.startup import Startup, startup_of
from sextant.law.means import BatchLimits, MeanLoad, saturation_rps
from sextant.pages.words import HOUR_S, MINUTE_S, duration_words, number
from sextant.simulate.pools import ReplicaPool, simulate_apart, simulate_users_apart
from sextant.simulate.scaling import Autoscaler, Scaling, ScalingPolicy, simulate_scaled
from sextant.simulate.server import OK, Scheduler, StepLaw
from sextant.simulate.simulation import (
    Router,
    Simulation,
    TooFewRequests,
    numbers_of_draws,
    on_threads,
    simulate,
    simulate_closed,
    summarise,
)
from sextant.workload.requests import RequestStream

MOST_REQUESTS = 10_000_000
"""Requests of one simulation."""
_REQUESTS_PER_USER = 10
"""Requests of each user where prefill and decode are on separate replicas."""


@dataclass(frozen=True)
class Sent:
    """Requests: they arrive whatever the servers do, or users wait for their last answer."""

    name: str
    requests: Callable[[int], RequestStream]
    """Draws a number of requests for users; requests that arrive are returned all."""
    duration_s: float
    users: int | None = None
    """Users who each send a request when their last one is answered; None: requests arrive."""
    notes: tuple[str, ...] = ()
    """Warnings of the answer about them."""

    def run(
        self, scheduler: Scheduler, law: StepLaw, replicas: int, router: Router, warmup_s: float
    ) -> Simulation:
        """Simulate them; users stay on their replicas, and send as many requests as they can."""
        if self.users is None:
            return simulate(
                self.requests(0),
                scheduler,
                law,
                router=router,
                n_replicas=replicas,
                warmup_s=warmup_s,
            )
        n_requests = 64 * self.users
        while True:
            try:
                return simulate_closed(
                    self.users,
                    self.requests(n_requests),
                    scheduler,
                    law,
                    n_replicas=replicas,
                    warmup_s=warmup_s,
                    duration_s=self.duration_s,
                )
            except TooFewRequests:
                if n_requests > MOST_REQUESTS:
                    problem = f"{self.users} users send more than {MOST_REQUESTS:,} requests"
                    fix = "give a shorter --duration, or fewer --users"
                    raise InputError(problem, field="--duration", fix=fix) from None
            n_requests *= 4


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Replicas, what is before them, and how they are simulated."""

    replicas: int = 1
    router: Router = "round_robin"
    decode_replicas: int | None = None
    """Replicas that decode, while `replicas` compute the prompts; None: all do both."""
    policy: ScalingPolicy | None = None
    """Orders and removes replicas; `replicas` serve at the start."""
    startup: Callable[[LLM], Startup] = startup_of
    """How long a replica takes to start."""
    warmup_s: float = 0.0
    """Requests that arrive before are simulated and not counted."""
    n_draws: int = 100
    """Draws of the law for the 90% intervals; 0: none."""
    limits_ms: Mapping[str, float] = field(default_factory=dict)
    """Limits of goodput, as in `summarise`."""


@dataclass(frozen=True)
class Saturation:
    """The rate that arrives and the one that the replicas can serve."""

    offered_rps: float
    served_rps: float
    is_exceeded: bool

    @classmethod
    def of(cls, simulation: Simulation, servers: ReplicaLaws, duration_s: float) -> "Saturation":
        """Return the rate of arrivals that are not refused, and the largest rate served."""
        scheduler = servers.scheduler
        inputs = simulation.input_tokens
        outputs = simulation.output_tokens
        is_taken = inputs + outputs <= scheduler.longest
        is_ok = simulation.status == OK
        cached = simulation.cached_tokens[is_ok].mean() if is_ok.any() else 0.0
        load = MeanLoad(inputs[is_taken].mean(), max(outputs[is_taken].mean(), 2.0), cached)
        limits = BatchLimits.of(scheduler)

        n_replicas = simulation.use.n_replicas
        served_rps = n_replicas * float(saturation_rps(servers.law(0), limits, load))
        offered_rps = float(is_taken.sum() / duration_s)
        # Requests that all decode at once never wait, however fast a short burst of them comes.
        at_once = n_replicas * float(limits.most_decoding(load))
        is_exceeded = (offered_rps - served_rps) * duration_s > at_once
        return cls(offered_rps, served_rps, is_exceeded)


@dataclass(frozen=True)
class Minute:
    """One minute under a policy."""

    start_s: float
    n_requests: int
    in_flight: float
    """Requests in flight, the mean."""
    median_ttft_ms: float | None
    """Of the requests that arrive in it; None: none of them is answered."""
    p90_ttft_ms: float | None
    ordered: int
    """Replicas that are ordered at its end."""
    ready: int


@dataclass(frozen=True, kw_only=True)
class SimulatedLoad:
    """What the servers were sent."""

    name: str
    users: int | None
    n_requests: int
    duration_s: float
    warmup_s: float
    mean_input_tokens: float
    mean_output_tokens: float


@dataclass(frozen=True, kw_only=True)
class SimulationAnswer:
    """Latencies, rates and use of a deployment."""

    laws: CaseLaws
    question: Question
    sent: Sent
    deployment: Deployment
    servers: ReplicaLaws
    """Of the replicas, or of those that compute prompts."""
    simulation: Simulation  #: At the most likely law of a step.
    numbers: Mapping[str, Any]
    """What `summarise` returns: the medians of the draws of the law; without draws, at the most
    likely law."""
    intervals: Mapping[str, Any] | None
    """The 90% interval of each number, over the same draws; None without draws."""
    saturation: Saturation | None
    """None for users, two pools or a policy."""
    scaling: Scaling | None
    minutes: Sequence[Minute] | None
    """Under a policy; None without one."""
    settings: ReplicaSettings
    """What is assumed of a replica, or of one that computes prompts."""
    warnings: Sequence[str]

    @property
    def gpu_profile_id(self) -> str:
        """Of the replicas, or of those that compute prompts."""
        return self.question.gpu_profile_ids[0]

    @property
    def decode_profile_id(self) -> str | None:
        """Of the replicas that decode; None: each replica computes prompts and decodes."""
        return (*self.question.gpu_profile_ids, None)[1]

    @property
    def replica_hours(self) -> float | None:
        """Of all replicas under a policy, starts included; None without one."""
        return self.scaling.replica_s / HOUR_S if self.scaling else None

    def deployments(self) -> list[ReplicaDeployment]:
        """Return what starts the replicas. InputError: nothing is known that does."""
        if self.deployment.decode_replicas is not None:
            problem = "prefill and decode are apart: no command of them is written"
            raise InputError(problem, field="--decode-replicas", fix="leave it out")
        return [deployment_of(self.settings, self.deployment.replicas)]

    @property
    def load(self) -> SimulatedLoad:
        """What the servers were sent."""
        simulation = self.simulation
        counted = simulation.is_counted  # users' first answers are shorter than what was asked
        return SimulatedLoad(
            name=self.sent.name,
            users=self.sent.users,
            n_requests=len(simulation.status),
            duration_s=self.sent.duration_s,
            warmup_s=self.deployment.warmup_s,
            mean_input_tokens=float(simulation.input_tokens[counted].mean()),
            mean_output_tokens=float(simulation.output_tokens[counted].mean()),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON of the answer."""
        deployment = self.deployment
        facts = {
            "llm_id": self.laws.case.llm_id,
            "gpu_profile_id": self.gpu_profile_id,
            "replicas": deployment.replicas,
            "decode_gpu_profile_id": self.decode_profile_id,
            "decode_replicas": deployment.decode_replicas,
            "router": deployment.router,
            "load": asdict(self.load),
            "saturation": self.saturation and asdict(self.saturation),
            "replica_hours": self.replica_hours,
            "by_minute": None
            if self.minutes is None
            else [asdict(minute) for minute in self.minutes],
            **self.numbers,
            "intervals": self.intervals,
            "n_draws": deployment.n_draws,
            "limits_ms": dict(deployment.limits_ms),
            **self.settings.start_up.facts(),
            "scheduler": asdict(self.servers.scheduler),
            "law": asdict(self.servers.law(0)),
            "warnings": [*self.warnings],
            "characterization": self.laws.case.source.facts(),
            "serving": {
                **self.laws.case.serving.facts(),
                **deployment_facts(self.deployments),
            },
            "seed": self.question.seed,
        }
        return dict(jsonable(facts))


def simulate_llm(
    question: Question, sent: Sent, settings: Settings, deployment: Deployment
) -> SimulationAnswer:
    """Return latencies, rates and use of a deployment.

    Args:
        question: the LLM, the measurements, the lengths of the requests, on one GPU profile; or on
            that of prefill, then that of decode.
        sent: the requests.
        settings: of each replica.
        deployment: the replicas.

    Raises:
        InputError: an option is wrong, the LLM does not fit, or every request is refused.
    """
    laws = find_laws(question, settings, deployment.n_draws, need_prices=False)
    for profile_id in question.gpu_profile_ids:
        if profile_id not in laws.servers:
            problem = f"{profile_id}: {laws.excluded[profile_id]}"
            field = "--gpu-profile, --decode-gpu-profile"
            raise InputError(problem, field=field, fix="give a larger one")
    profiles = [laws.case.gpu_profiles[profile_id] for profile_id in question.gpu_profile_ids]
    if len({gpu_profile.gpu.gpu_id for gpu_profile in profiles}) > 1:
        problem = "the pools have different GPUs"
        fix = "give GPU profiles of one type of GPU"
        raise InputError(problem, field="--decode-gpu-profile", fix=fix)

    settings_by_pool = [settings_of(laws.case, profile, settings) for profile in profiles]

    runner = _Runner(laws, sent, deployment)
    servers = runner.servers
    likeliest = runner.run(0)
    numbers = summarise(likeliest.simulation, deployment.limits_ms)
    intervals = None
    saturation = None
    is_plain = deployment.decode_replicas is None and deployment.policy is None
    if sent.users is None and is_plain:
        saturation = Saturation.of(likeliest.simulation, servers, sent.duration_s)
    notes = _notes(likeliest.simulation, sent, deployment, saturation, servers.scheduler)

    drawn = on_threads(
        lambda draw: summarise(runner.run(draw).simulation, deployment.limits_ms),
        range(1, len(servers.terms)),
    )
    if drawn:
        numbers, intervals = numbers_of_draws(drawn)
    scaling = likeliest.scaling
    return SimulationAnswer(
        laws=laws,
        question=question,
        sent=sent,
        deployment=deployment,
        servers=servers,
        simulation=likeliest.simulation,
        numbers=numbers,
        intervals=intervals,
        saturation=saturation,
        scaling=scaling,
        minutes=by_minute(likeliest.simulation, scaling, sent.duration_s) if scaling else None,
        settings=settings_by_pool[0],
        warnings=[
            *laws.case.failure_notes,
            *notes,
            *([] if laws.case.probe is None else [used_note(laws.case.probe)]),
            *laws.warnings,
            *dict.fromkeys(line for of in settings_by_pool for line in of.start_up.notes()),
        ],
    )


class _Run(NamedTuple):
    """A simulation in one draw of the law."""

    simulation: Simulation
    scaling: Scaling | None
    """Under a policy; None without one."""


@dataclass(frozen=True)
class _Runner:
    """Simulates a deployment in draws of the law."""

    laws: CaseLaws
    sent: Sent
    deployment: Deployment

    @property
    def servers(self) -> ReplicaLaws:
        """Of the replicas, or of those that compute prompts."""
        return self.laws.servers[self.laws.case.question.gpu_profile_ids[0]]

    def run(self, draw: int) -> _Run:
        """Simulate one draw; 0 is the most likely law."""
        deployment = self.deployment
        scheduler = self.servers.scheduler
        law = self.servers.law(draw)
        if deployment.policy is not None:
            return self._run_policy(deployment.policy, scheduler, law, draw)
        prefill = ReplicaPool(scheduler, law, deployment.replicas)
        profile_ids = self.laws.case.question.gpu_profile_ids
        if deployment.decode_replicas is not None and len(profile_ids) > 1:
            return _Run(self._run_pools(prefill, deployment.decode_replicas, draw), None)
        simulation = self.sent.run(
            scheduler, law, deployment.replicas, deployment.router, deployment.warmup_s
        )
        return _Run(simulation, None)

    def _run_policy(
        self, policy: ScalingPolicy, scheduler: Scheduler, law: StepLaw, draw: int
    ) -> _Run:
        deployment = self.deployment
        autoscaler = Autoscaler(
            policy,
            deployment.startup(self.laws.case.llm),
            deployment.replicas,
            self.laws.case.question.seed + draw,
        )
        simulation, scaling = simulate_scaled(
            self.sent.requests(0),
            scheduler,
            law,
            autoscaler,
            duration_s=self.sent.duration_s,
            router=deployment.router,
        )
        return _Run(simulation, scaling)

    def _run_pools(self, prefill: ReplicaPool, decode_replicas: int, draw: int) -> Simulation:
        case = self.laws.case
        profile_ids = case.question.gpu_profile_ids
        second = self.laws.servers[profile_ids[1]]
        decode = ReplicaPool(second.scheduler, second.law(draw), decode_replicas)
        profiles = [case.gpu_profiles[profile_id] for profile_id in profile_ids]
        between = handover(case.llm, case.engine, *profiles)
        users = self.sent.users
        if users is None:
            requests = self.sent.requests(0)
            return simulate_apart(requests, prefill, decode, between, self.deployment.warmup_s)
        requests = self.sent.requests(_REQUESTS_PER_USER * users)
        return simulate_users_apart(users, requests, prefill, decode, between)


def by_minute(simulation: Simulation, scaling: Scaling, duration_s: float) -> list[Minute]:
    """Return for each minute its requests and replicas."""
    s = simulation
    end_s = s.arrival_s + np.where(np.isnan(s.e2e_s), 0.0, s.e2e_s)
    minutes = []
    for start_s in np.arange(0.0, duration_s, MINUTE_S).tolist():
        until_s = min(start_s + MINUTE_S, duration_s)
        is_in = (s.arrival_s >= start_s) & ((s.arrival_s < until_s) | (until_s == duration_s))
        busy_s = np.minimum(end_s, until_s) - np.maximum(s.arrival_s, start_s)
        ttft_s = s.ttft_s[is_in & (s.status == OK)]
        median_ms, p90_ms = 1e3 * np.quantile(ttft_s, (0.5, 0.9)) if len(ttft_s) else (None, None)
        replicas = scaling.at(until_s - 1e-6)
        minutes.append(
            Minute(
                start_s,
                n_requests=int(is_in.sum()),
                in_flight=float(np.maximum(busy_s, 0).sum() / (until_s - start_s)),
                median_ttft_ms=median_ms,
                p90_ttft_ms=p90_ms,
                ordered=replicas.ordered,
                ready=replicas.ready,
            )
        )
    return minutes


def _notes(
    simulation: Simulation,
    sent: Sent,
    deployment: Deployment,
    saturation: Saturation | None,
    scheduler: Scheduler,
) -> list[str]:
    """Return what to know of overload, refused requests and pools.

    Raises:
        InputError: every request is longer than the server takes.
    """
    notes = []
    if saturation is not None and saturation.is_exceeded:
        notes.append(
            f"Arrivals exceed what the replicas serve: {number(saturation.offered_rps)} requests/s "
            f"arrive, about {number(saturation.served_rps)} can be served. Waits grow for as long "
            "as requests arrive."
        )
    elif deployment.decode_replicas is not None and sent.users is None:
        late_s = simulation.end_s - sent.duration_s
        if late_s > max(0.1 * sent.duration_s, 3 * float(np.nanmin(simulation.e2e_s))):
            notes.append(
                "Arrivals exceed what the pools serve: the last answer ends "
                f"{duration_words(round(late_s))} after the last one arrived."
            )

    tokens = simulation.input_tokens + simulation.output_tokens
    n_refused = int((tokens > scheduler.longest).sum())
    if n_refused == len(tokens):
        problem = f"the shortest request has {tokens.min()} tokens, the server takes "
        fix = "give shorter requests, more KV memory, or a higher --max-model-len"
        raise InputError(f"{problem}{scheduler.longest}", field="--max-model-len", fix=fix)
    if n_refused:
        has, are = ("has", "is") if n_refused == 1 else ("have", "are")
        notes.append(
            f"{n_refused:,} of {len(tokens):,} requests {has} more than {scheduler.longest:,} "
            f"tokens and {are} refused."
        )

    if not (simulation.is_counted & (simulation.status == OK)).any():
        notes.append("Every request is refused or times out: there are no latencies.")
    notes += sent.notes
    if deployment.decode_replicas is not None:
        notes.append("How busy engines are and what the KV cache holds is that of the decode pool.")
    return notes
