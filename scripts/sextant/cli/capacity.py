"""The commands `capacity` and `simulate`: replicas for traffic, and latencies of replicas."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sextant.base.errors import InputError
from sextant.cli import options

if TYPE_CHECKING:
    from collections.abc import Callable

    from sextant.ask.laws import Settings
    from sextant.capacity.simulation import Sent
    from sextant.facts.llm import LLM
    from sextant.facts.startup import Startup
    from sextant.simulate.scaling import ScalingPolicy
    from sextant.workload.lengths import RequestLengths as Lengths
    from sextant.workload.requests import RequestStream, Traffic

ROUTERS = Literal["round_robin", "least_requests", "prefix"]
_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)?")
_UNITS_S = {None: 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
_ANY_TOKENS = 1_000_000
_RATE_FIELDS: dict[str | None, str] = {
    "rate_rps": "--request-rate",
    "alpha": "--burstiness",
    "arrivals": "--burstiness",
}
_SIMULATE_FIELDS: dict[str | None, str] = {
    "kv_tokens": "--kv-dtype",
    "timeout_s": "--timeout-s",
    "requests": "--max-model-len",
    "--gpu-profiles": "--gpu-profile",
}
_MOST_SESSIONS = 100_000
_MOST_DRAWN = 1_000_000
"""Requests of one simulation: an answer takes many of them, each seconds to minutes then."""


@dataclass(frozen=True, kw_only=True)
class TrafficOptions:
    """What arrives: a trace, or requests of a workload or of given lengths at a rate."""

    trace: Path | None = None  #: Normalised trace (see `sextant ingest`): its own arrivals.
    trace_llm: str | None = None  #: Only this LLM of the trace.
    trace_service: str | None = None  #: Only this service of the trace.
    request_rate: float | None = None  #: Requests a second, without a trace.
    burstiness: float | None = None
    """Shape of Gamma gaps: 1 Poisson, less is burstier; without it the arrivals of --workload's
    trace, or Poisson."""
    duration: str | None = None  #: How long requests of a rate arrive; 1h, or 200,000, by default.
    sessions: str | None = None
    """`trace`: turns of a session arrive after the last answer and the trace's think time; or
    so many sessions of the trace an hour, at random, for --duration."""
    traffic: float = 1.0  #: Factor on the requests: 2 sends a trace's twice, on the same clock.
    speed: float = 1.0  #: Factor on the trace's clock: 2 halves all gaps and the day.


@dataclass(frozen=True, kw_only=True)
class KeepOptions:
    """What has to hold besides the limits, and in which windows."""

    goodput: float | None = None  #: Least share of requests that are answered within all limits.
    max_failed: float = 0.01  #: Largest share of requests that are refused or time out.
    window: str | None = None
    """Windows in which the SLO holds, e.g. 60s, or whole: that of a rate without --duration by
    default, 5min of others."""
    risk: float = 0.1  #: Largest probability that a window is missed.


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    """The engine's settings, under vLLM's names."""

    max_num_seqs: int | None = None
    """vLLM's max_num_seqs; the engine's default otherwise (vLLM: 256)."""
    max_num_batched_tokens: int | None = None
    """vLLM's max_num_batched_tokens; the engine's default otherwise (8,192)."""
    timeout_s: float = float("inf")  #: Seconds after which a client gives up; never by default.
    prefix_caching: bool = True  #: vLLM's enable_prefix_caching: what repeats is computed once.

    def of(self) -> "Settings":
        """Return the settings. Raises InputError where vLLM would not start with them."""
        from sextant.ask.laws import Settings

        sizes = (self.max_num_seqs, self.max_num_batched_tokens)
        settings = Settings(*sizes, self.timeout_s, self.prefix_caching)
        with options.naming_options({"timeout_s": "--timeout-s"}):
            settings.scheduler(_ANY_TOKENS, _ANY_TOKENS)
        return settings


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How replicas come and go, and how their number is searched for."""

    slot: str = "1h"  #: How long a number of replicas stays, e.g. 1h.
    startup: str | None = None
    """From the order of a replica until it serves: 5min, or phases of the measured start,
    image=0s,weights=60s; by the LLM's size by default."""
    least_replicas: Annotated[int, typer.Option(min=1)] = 1  #: Replicas at any time.
    router: ROUTERS = "round_robin"
    """Where a request goes: in turn, to the fewest requests, by cached prefix and load."""
    split_tokens: Annotated[int | None, typer.Option(min=1)] = None
    """Compare with two pools: inputs of up to so many tokens, and longer ones."""
    disaggregated: Annotated[bool, typer.Option("--disaggregated")] = False
    """Compare with prefill and decode on replicas of their own, of one type of GPU."""
    policy: Path | None = None
    """Autoscaling policy to compare: a KEDA ScaledObject, a HorizontalPodAutoscaler, a Ray Serve
    config, or a .csv of t_s and ready or replicas."""
    tune_policy: Path | None = None
    """File to write: a KEDA ScaledObject with the target that costs least, of --policy's metric or
    of requests in flight; beside it .values.yaml for vLLM's production stack."""
    attainment: float | None = None
    """Share of windows that a tuned policy has to meet; 0.99 by default."""
    draws: Annotated[int, typer.Option(min=0)] = 32
    """Draws of the law and the traffic; 0: the likeliest alone."""


def print_capacity(
    *,
    traffic: TrafficOptions,
    limits: options.LimitOptions,
    keep: KeepOptions,
    asked: options.AskedOptions,
    candidates: options.CandidateOptions,
    server: SchedulerOptions,
    search: SearchOptions,
    shown: options.PrintOptions,
    _notes: tuple[str, ...] = (),
) -> None:
    """Print how many replicas of which GPU profile meet an SLO under a trace's own traffic."""
    from sextant.ask.traffic import DrawnTraffic
    from sextant.base.files import provenance
    from sextant.base.sheets import write_yaml
    from sextant.capacity import policies
    from sextant.capacity.capacity import answer_capacity
    from sextant.capacity.document import capacity_document
    from sextant.capacity.question import CapacityQuestion, Terms
    from sextant.decide.windows import WINDOW_S, Target
    from sextant.facts.slo import SLO
    from sextant.workload.requests import mean_lengths_of

    if not 0 < keep.risk < 1:
        fix = "give a probability between 0 and 1, e.g. 0.1"
        raise InputError(f"{keep.risk:g} is not a risk", field="--risk", fix=fix)
    window_s: float | None = WINDOW_S
    if keep.window is not None:
        window_s = None if keep.window == "whole" else _seconds(keep.window, "--window")
    arriving, steady = traffic_of(traffic, asked, window_s), None
    is_plain = keep.window is None and traffic.duration is None
    if isinstance(arriving, DrawnTraffic) and is_plain:
        steady = arriving.steady()
    demand = arriving.drawn(0)
    with options.naming_options({"request_rate_rps": "--traffic"}):
        load: dict[str, Any] = {"percentile": asked.percentile, "request_rate_rps": demand.rate_rps}
        slo = SLO("asked", **limits.of(), **load)
    with options.naming_options({}):
        target = Target(slo.limits, keep.goodput, keep.max_failed, None if steady else window_s)
    question = asked.question(slo, **candidates.of())
    if steady is None:
        question = replace(question, requests=mean_lengths_of(demand))
    slot_s = _seconds(search.slot, "--slot")
    terms = Terms(slot_s, _startup(search.startup), search.least_replicas)
    policy = policies.read_policy(search.policy) if search.policy is not None else None
    if search.tune_policy is None:
        options.refuse(search, "no policy is tuned", "attainment")
    if search.tune_policy is not None and search.tune_policy == search.policy:
        problem, fix = "it would replace --policy", "give another file"
        raise InputError(problem, field="--tune-policy", fix=fix)
    attainment = None if search.tune_policy is None else search.attainment or 0.99
    if attainment is not None and not 0 < attainment <= 1:
        fix = "give a share of the windows, e.g. 0.99"
        raise InputError(f"{attainment:g} is not a share", field="--attainment", fix=fix)
    asked_for = CapacityQuestion(
        question,
        arriving,
        target,
        server.of(),
        terms,
        keep.risk,
        search.draws,
        router=search.router,
        split_tokens=search.split_tokens,
        is_disaggregated=search.disaggregated,
        policy=policy,
        attainment=attainment,
        steady=steady,
    )
    answer = answer_capacity(asked_for, _notes)
    scaling = answer.findings.scaling if answer.findings else None
    if search.tune_policy is not None and scaling is not None and scaling.manifest is not None:
        write_yaml(search.tune_policy, scaling.manifest)
        values = search.tune_policy.with_suffix(".values.yaml")
        write_yaml(values, policies.stack_values(scaling.manifest))
    shown.print(capacity_document(answer, provenance()))
    if not answer.has_option:
        raise typer.Exit(3)


capacity = options.grouped(print_capacity)


def traffic_of(
    given: TrafficOptions, asked: options.AskedOptions, window_s: float | None
) -> "Traffic":
    """Return the traffic. Raises InputError for a wrong option."""
    from sextant.ask.traffic import TraceTraffic, demand_of_trace, traffic_at_rate
    from sextant.capacity.sessions import SessionTraffic

    for option, factor in (("--traffic", given.traffic), ("--speed", given.speed)):
        if not 0 < factor < float("inf"):
            fix = "give a number above 0, e.g. 1.5"
            raise InputError(f"{factor:g} is not a factor", field=option, fix=fix)
    if given.trace is not None:
        options.refuse(given, "the trace has its own", "request_rate", "burstiness")
        if given.sessions in (None, "trace"):
            options.refuse(given, "the trace has its own", "duration")
        options.refuse(asked, "the trace has its own", "workload", "input_tokens", "output_tokens")
        if given.sessions == "trace" and given.traffic != 1:
            fix = "give so many sessions an hour to --sessions"
            raise InputError("copies of sessions are drawn", field="--traffic", fix=fix)
        demand = demand_of_trace(
            given.trace,
            window_s=window_s or 300.0,
            llm=given.trace_llm,
            service=given.trace_service,
            has_prefixes=True,
            has_turns=given.sessions is not None,
            factor=given.traffic if given.sessions in (None, "trace") else 1.0,
        )
        if given.sessions not in (None, "trace"):
            return SessionTraffic(demand, *_sessions(given), asked.seed)
        return TraceTraffic(demand.at_speed(given.speed), window_s)
    options.refuse(given, "there is no trace", "sessions")
    if given.speed != 1:
        raise InputError("there is no trace", field="--speed", fix="give --trace, or --traffic")
    if given.request_rate is None:
        fix = "give --trace FILE, or --request-rate with --workload or lengths"
        raise InputError("there is no traffic", field="--trace, --request-rate", fix=fix)
    lengths = _lengths(asked, "--request-rate")
    rate_rps, duration_s = given.request_rate * given.traffic, None
    if given.duration is not None:
        duration_s = _seconds(given.duration, "--duration")
        if (n := rate_rps * duration_s) > _MOST_DRAWN:
            problem = f"about {n:,.0f} requests arrive; a simulation takes {_MOST_DRAWN:,}"
            fix = "give a shorter --duration, or a lower --request-rate"
            raise InputError(problem, field="--duration", fix=fix)
    how = {"alpha": given.burstiness, "duration_s": duration_s}
    with options.naming_options(_RATE_FIELDS):
        own = None if asked.workload is not None else lengths
        return traffic_at_rate(rate_rps, asked.workload, own, **how, first_seed=asked.seed)


def _sessions(given: TrafficOptions) -> tuple[float, float]:
    """Return sessions an hour, and for how long they arrive, in seconds."""
    try:
        per_hour = float(given.sessions or "") * given.traffic
    except ValueError:
        per_hour = 0.0
    if not 0 < per_hour < float("inf"):
        fix = "give trace, or sessions an hour, e.g. 200"
        raise InputError(f"{given.sessions!r} is neither", field="--sessions", fix=fix)
    duration_s = _seconds(given.duration or "1h", "--duration")
    if (n := per_hour * duration_s / 3600) > _MOST_SESSIONS:
        fix = f"give fewer: a simulation takes {_MOST_SESSIONS:,}"
        raise InputError(f"{n:,.0f} sessions", field="--sessions", fix=fix)
    return per_hour, duration_s


def _startup(text: str | None) -> "Callable[[LLM], Startup]":
    """Return how long an LLM takes to start, of an option's time or phases."""
    from sextant.facts.startup import PHASES, Startup, startup_of

    if text is not None and "=" not in text:
        given_s = _seconds(text, "--startup")
        return lambda llm: Startup(given_s)
    phases = [part.partition("=")[::2] for part in text.split(",")] if text else []
    names = [name for name, _ in phases]
    if wrong := [name for name in names if name not in PHASES or names.count(name) > 1]:
        fix = f"use each of {', '.join(PHASES)} once"
        raise InputError(f"{wrong[0]!r} is no phase, or there twice", field="--startup", fix=fix)
    times_s = {
        name: 0.0 if t.strip() in ("0", "0s") else _seconds(t, "--startup") for name, t in phases
    }
    return lambda llm: startup_of(llm, times_s)


def _lengths(asked: options.AskedOptions, option: str) -> "Lengths":
    lengths = asked.requests()
    if lengths is None:
        fix = "give --workload, or --input-tokens and --output-tokens"
        raise InputError("the requests have no length", field=option, fix=fix)
    return lengths


def _seconds(text: str, option: str) -> float:
    """Return the seconds of an option, e.g. 90, 90s, 5min, 1h or 2d."""
    match = _TIME.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not seconds > 0:
        whole = ", or whole" if option == "--window" else ""
        fix = f"give a time, e.g. 90s, 5min or 1h{whole}"
        raise InputError(f"{text!r} is not a time above 0", field=option, fix=fix)
    return seconds


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """The deployment, who sends requests, and how it is simulated."""

    gpu_profile: str  #: GPU profile of a replica, e.g. 1xH100-80GB.
    replicas: Annotated[int, typer.Option(min=1)] = 1  #: Replicas behind a router.
    decode_replicas: Annotated[int | None, typer.Option(min=1)] = None
    """Replicas that decode, while --replicas compute the prompts; all do both by default."""
    decode_gpu_profile: str | None = None  #: GPU profile of those; that of the others by default.
    policy: Path | None = None
    """Autoscaling policy, as `capacity` takes it; --replicas are there at the start."""
    startup: str | None = None
    """From the order of a replica until it serves, as `capacity` takes it."""
    router: ROUTERS = "round_robin"
    """Where a request goes: in turn, to the fewest requests, by cached prefix and load."""
    users: Annotated[int | None, typer.Option(min=1)] = None
    """Instead of arrivals: users who each wait for their answer."""
    unique_prompts: Annotated[int | None, typer.Option(min=1)] = None
    """Whole prompts that repeat; all differ by default."""
    warmup: str = "0s"  #: Requests that arrive before are simulated and not counted.
    draws: Annotated[int, typer.Option(min=0)] = 100
    """Draws of the law for the intervals; 0: none."""


@options.grouped
def simulate(
    *,
    given: SimulateOptions,
    traffic: TrafficOptions,
    limits: options.LimitOptions,
    asked: options.AskedOptions,
    server: SchedulerOptions,
    shown: options.PrintOptions,
) -> None:
    """Simulate an LLM's servers under given traffic: latencies, throughput, failures."""
    from sextant.ask.forecast import MEDIANS
    from sextant.ask.traffic import demand_notes
    from sextant.base.files import provenance
    from sextant.capacity.simulation import Deployment, Sent, simulate_llm
    from sextant.capacity.simulation_document import simulation_document
    from sextant.workload.requests import mean_lengths_of

    if asked.prefix_hit_rate:
        fix = "give --unique-prompts: prompts that repeat hit the simulated cache"
        raise InputError("cache hits are simulated", field="--prefix-hit-rate", fix=fix)

    def repeating(requests: "RequestStream") -> "RequestStream":
        n = given.unique_prompts
        return requests.repeating(n, asked.seed) if n else requests

    if given.users is not None:
        sent, lengths = _users(given.users, traffic, asked), _lengths(asked, "--users")
        drawn = sent.requests
        sent = replace(sent, requests=lambda n: repeating(drawn(n)))
    else:
        demand: RequestStream = traffic_of(traffic, asked, None).drawn(0)
        requests, lengths = repeating(demand), mean_lengths_of(demand)
        notes = demand_notes(demand, None if given.unique_prompts else server.prefix_caching)
        sent = Sent(demand.name, lambda n: requests, demand.duration_s, notes=tuple(notes))
    any_limit = replace(MEDIANS, itl_ms=None)  # outputs of one token have no ITL
    if given.decode_gpu_profile and given.decode_replicas is None:
        field, fix = "--decode-gpu-profile", "give --decode-replicas"
        raise InputError("the number of its replicas is missing", field=field, fix=fix)
    profiles: tuple[str, ...] = (given.gpu_profile,)
    if given.decode_replicas is not None:
        problem = "two pools take requests in turn, share no prefixes, and users send ten each"
        ignored = {
            "--router": given.router != "round_robin",
            "--unique-prompts": given.unique_prompts is not None,
            "--warmup": given.users is not None and given.warmup != "0s",
            "--duration": given.users is not None and traffic.duration is not None,
        }
        for option in (name for name, is_given in ignored.items() if is_given):
            raise InputError(problem, field=option, fix="leave it out with --decode-replicas")
        profiles += (given.decode_gpu_profile or given.gpu_profile,)
    policy = _policy(given)
    question = asked.question(any_limit, gpu_profile_ids=profiles)
    question = replace(question, requests=lengths)
    settings = server.of()
    has_none = given.warmup.strip() in ("0", "0s")
    warmup_s = 0.0 if has_none else _seconds(given.warmup, "--warmup")
    startup = _startup(given.startup)
    with options.naming_options(_SIMULATE_FIELDS):
        deployment = Deployment(
            replicas=given.replicas,
            router=given.router,
            decode_replicas=given.decode_replicas,
            policy=policy,
            startup=startup,
            warmup_s=warmup_s,
            n_draws=given.draws,
            limits_ms=limits.of_each(),
        )
        answer = simulate_llm(question, sent, settings, deployment)
    shown.print(simulation_document(answer, provenance()))


def _policy(given: SimulateOptions) -> "ScalingPolicy | None":
    from sextant.capacity.policies import read_policy

    if given.policy is None:
        options.refuse(given, "there is no --policy", "startup")
        return None
    problem = "a policy follows requests that arrive"
    options.refuse(given, problem, "users", "decode_replicas")
    if given.warmup != "0s":
        raise InputError(problem, field="--warmup", fix="leave it out")
    return read_policy(given.policy)


def _users(users: int, traffic: TrafficOptions, asked: options.AskedOptions) -> "Sent":
    import numpy as np

    from sextant.capacity.simulation import Sent
    from sextant.workload.draw import open_workload
    from sextant.workload.lengths import length_sampler
    from sextant.workload.requests import RequestStream

    problem = "users send when their last request is answered"
    options.refuse(traffic, problem, "trace", "request_rate", "burstiness")
    sample, name = length_sampler(_lengths(asked, "--users")), "given lengths"
    if asked.workload is not None:
        sample, name = open_workload(asked.workload).sample, Path(asked.workload).name

    def draw(n: int) -> RequestStream:
        frame = sample(n, seed=asked.seed)
        inputs, outputs = (frame[name].to_numpy() for name in ("input_tokens", "output_tokens"))
        # Users are met amid their first answers: else those of equal requests stay in step.
        left = np.ones(n)
        left[:users] = np.random.default_rng(asked.seed).random(min(users, n))
        return RequestStream.of(np.zeros(n), inputs, np.ceil(left * np.maximum(outputs, 1)))

    return Sent(name, draw, _seconds(traffic.duration or "1h", "--duration"), users)
