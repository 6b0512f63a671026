"""The commands `capacity` and `simulate`: replicas for traffic, and latencies of replicas."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sextant.base.errors import InputError
from sextant.cli.asked import AskedOptions, CandidateOptions, LimitOptions
from sextant.cli.options import (
    PageFile,
    Printed,
    check_page,
    grouped,
    naming_options,
    print_document,
)

if TYPE_CHECKING:
    from sextant.answer.capacity.answer import CapacityQuestion
    from sextant.answer.capacity.simulation import OpenLoop, Users
    from sextant.answer.demand import Traffic
    from sextant.answer.question import Requests as Lengths
    from sextant.answer.step_laws import Settings
    from sextant.simulate import Requests, Router

_TIME = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(s|min|h|d)?")
_UNITS_S = {None: 1, "s": 1, "min": 60, "h": 3600, "d": 86400}
_ANY_TOKENS = 1_000_000
_RATE_FIELDS: dict[str | None, str] = {
    "rate_rps": "--request-rate",
    "alpha": "--burstiness",
    "arrivals": "--burstiness",
}
_MOST_DRAWN = 1_000_000
"""Requests of one simulation: an answer takes many of them, each seconds to minutes then."""


@dataclass(frozen=True, kw_only=True)
class TrafficOptions:
    """What arrives: a trace, or requests of a workload or of given lengths at a rate."""

    trace: Path | None = None
    """Normalised trace (see `sextant ingest`): its own arrivals."""
    trace_llm: str | None = None
    """Only this LLM of the trace."""
    trace_service: str | None = None
    """Only this service of the trace."""
    request_rate: float | None = None
    """Requests a second, without a trace."""
    burstiness: float | None = None
    """Shape of Gamma gaps: 1 Poisson, less is burstier; without it the arrivals of --workload's
    trace, or Poisson."""
    duration: str | None = None
    """How long requests of a rate arrive; 1h, or 200,000, by default."""
    traffic: float = 1.0
    """Factor on the requests: 2 sends a trace's twice, on the same clock."""
    speed: float = 1.0
    """Factor on the trace's clock: 2 halves all gaps and the day."""


@dataclass(frozen=True, kw_only=True)
class KeepOptions:
    """What has to hold besides the limits, and in which windows."""

    goodput: float | None = None
    """Least share of requests that are answered within all limits."""
    max_failed: float = 0.01
    """Largest share of requests that are refused or time out."""
    window: str | None = None
    """Windows in which the SLO holds, e.g. 60s, or whole: that of a steady rate by default, 5min of
    others."""
    risk: float = 0.1
    """Largest probability that a window is missed."""


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """vLLM's settings, under its own names."""

    max_num_seqs: int = 256
    """vLLM's max_num_seqs."""
    max_num_batched_tokens: int = 8192
    """vLLM's max_num_batched_tokens."""
    timeout_s: float = float("inf")
    """Seconds after which a client gives up; never by default."""
    prefix_caching: bool = True
    """vLLM's enable_prefix_caching: what repeats is computed once."""

    def of(self) -> "Settings":
        """Return the settings. Raises InputError for those with which vLLM would not start."""
        from sextant.answer.step_laws import Settings

        sizes = (self.max_num_seqs, self.max_num_batched_tokens)
        settings = Settings(*sizes, self.timeout_s, self.prefix_caching)
        with naming_options({"timeout_s": "--timeout-s"}):
            settings.scheduler(_ANY_TOKENS, _ANY_TOKENS)
        return settings


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """How replicas come and go."""

    slot: str = "1h"
    """How long a number of replicas stays, e.g. 1h."""
    startup: str = "5min"
    """From the order of a replica until it serves, e.g. 5min."""
    least_replicas: Annotated[int, typer.Option(min=1)] = 1
    """Replicas at any time."""


_SERVER, _SCHEDULE = ServerOptions(), ScheduleOptions()


@grouped
def capacity(
    *,
    traffic: TrafficOptions,
    limits: LimitOptions,
    keep: KeepOptions,
    asked: AskedOptions,
    candidates: CandidateOptions,
    server: ServerOptions,
    schedule: ScheduleOptions,
    router: Annotated[
        Literal["round_robin", "least_requests"],
        typer.Option(help="Where a request goes: in turn, or to the replica with the fewest."),
    ] = "round_robin",
    draws: Annotated[
        int, typer.Option(min=0, help="Draws of the law and the traffic; 0: the likeliest alone.")
    ] = 32,
    printed: Printed = "text",
    out: PageFile = None,
) -> None:
    """Print how many replicas of which GPU profile meet an SLO under a trace's own traffic."""
    given = (traffic, limits, keep, asked, candidates, server, schedule)
    print_capacity(capacity_question(*given, router, draws), printed, out)


def print_capacity(
    asked: "CapacityQuestion", printed: str, out: Path | None, lead: str = ""
) -> None:
    """Answer, and print or write it; `lead` is the first of its warnings."""
    from sextant.answer.capacity.answer import answer_capacity
    from sextant.answer.capacity.document import capacity_document
    from sextant.base.files import provenance

    check_page(printed, out)
    answer = answer_capacity(asked, [lead] if lead else [])
    print_document(capacity_document(answer.data, provenance()), printed, out)
    if not answer.has_option:
        raise typer.Exit(3)


def capacity_question(
    traffic: TrafficOptions,
    limits: LimitOptions,
    keep: KeepOptions,
    asked: AskedOptions,
    candidates: CandidateOptions,
    server: ServerOptions = _SERVER,
    schedule: ScheduleOptions = _SCHEDULE,
    router: "Router" = "round_robin",
    draws: int = 32,
) -> "CapacityQuestion":
    """Return the question. Raises InputError for a wrong option."""
    from sextant.answer.capacity.answer import CapacityQuestion
    from sextant.answer.capacity.changes import Terms
    from sextant.answer.capacity.traffic import DrawnTraffic
    from sextant.answer.demand import WINDOW_S, Target, requests_of_demand
    from sextant.facts.slo import SLO

    if not 0 < keep.risk < 1:
        fix = "give a probability between 0 and 1, e.g. 0.1"
        raise InputError(f"{keep.risk:g} is not a risk", field="--risk", fix=fix)
    window_s: float | None = WINDOW_S
    if keep.window is not None:
        window_s = None if keep.window == "whole" else seconds_of(keep.window, "--window")
    arriving = traffic_of(traffic, asked, window_s)
    steady = None
    is_plain = router == "round_robin" and keep.window is None and traffic.duration is None
    if isinstance(arriving, DrawnTraffic) and is_plain:
        steady = arriving.steady()
    if steady is not None:
        window_s = None
    demand = arriving.drawn(0)
    with naming_options({"request_rate_rps": "--traffic"}):
        load: dict[str, Any] = {"percentile": asked.percentile, "request_rate_rps": demand.rate_rps}
        slo = SLO("asked", **limits.of(), **load)
    with naming_options({}):
        target = Target(slo.limits, keep.goodput, keep.max_failed, window_s)
    question = asked.question(slo, **candidates.of())
    if steady is None:
        question = replace(question, requests=requests_of_demand(demand))
    settings = server.of()
    slot_s = seconds_of(schedule.slot, "--slot")
    startup_s = seconds_of(schedule.startup, "--startup")
    terms = Terms(slot_s, startup_s, schedule.least_replicas)
    how = (settings, terms, keep.risk, draws, asked.seed, router, steady)
    return CapacityQuestion(question, arriving, target, *how)


def traffic_of(given: TrafficOptions, asked: AskedOptions, window_s: float | None) -> "Traffic":
    """Return the traffic. Raises InputError for a wrong option."""
    from sextant.answer.capacity.traffic import TraceTraffic, demand_of_trace

    for option, factor in (("--traffic", given.traffic), ("--speed", given.speed)):
        if not 0 < factor < float("inf"):
            fix = "give a number above 0, e.g. 1.5"
            raise InputError(f"{factor:g} is not a factor", field=option, fix=fix)
    if given.trace is None:
        return _drawn(given, asked)
    given_twice = {
        "--request-rate": given.request_rate,
        "--burstiness": given.burstiness,
        "--duration": given.duration,
        "--workload": asked.workload,
        "--input-tokens": asked.input_tokens,
        "--output-tokens": asked.output_tokens,
    }
    for option, value in given_twice.items():
        if value is not None:
            fix = "leave it out, or leave --trace out"
            raise InputError("the trace has its own", field=option, fix=fix)
    demand = demand_of_trace(
        given.trace,
        window_s=window_s or 300.0,
        llm=given.trace_llm,
        service=given.trace_service,
        has_prefixes=True,
        factor=given.traffic,
    )
    return TraceTraffic(demand.at_speed(given.speed), window_s)


def _drawn(given: TrafficOptions, asked: AskedOptions) -> "Traffic":
    from sextant.answer.capacity.traffic import traffic_at_rate

    if given.speed != 1:
        raise InputError("there is no trace", field="--speed", fix="give --trace, or --traffic")
    if given.request_rate is None:
        fix = "give --trace FILE, or --request-rate with --workload or lengths"
        raise InputError("there is no traffic", field="--trace, --request-rate", fix=fix)
    lengths = asked.requests()
    if lengths is None:
        fix = "give --workload, or --input-tokens and --output-tokens"
        raise InputError("the requests have no length", field="--request-rate", fix=fix)
    rate_rps = given.request_rate * given.traffic
    duration_s = None
    if given.duration is not None:
        duration_s = seconds_of(given.duration, "--duration")
        if (n := rate_rps * duration_s) > _MOST_DRAWN:
            problem = f"about {n:,.0f} requests arrive; a simulation takes {_MOST_DRAWN:,}"
            fix = "give a shorter --duration, or a lower --request-rate"
            raise InputError(problem, field="--duration", fix=fix)
    with naming_options(_RATE_FIELDS):
        return traffic_at_rate(
            rate_rps,
            asked.workload,
            None if asked.workload is not None else lengths,
            alpha=given.burstiness,
            duration_s=duration_s,
            first_seed=asked.seed,
        )


def seconds_of(text: str, option: str) -> float:
    """Return the seconds of an option, e.g. 90, 90s, 5min, 1h or 2d."""
    match = _TIME.fullmatch(text.strip())
    seconds = float(match[1]) * _UNITS_S[match[2]] if match else 0.0
    if not seconds > 0:
        whole = ", or whole" if option == "--window" else ""
        fix = f"give a time, e.g. 90s, 5min or 1h{whole}"
        raise InputError(f"{text!r} is not a time above 0", field=option, fix=fix)
    return seconds


_SIMULATE_FIELDS: dict[str | None, str] = {
    "kv_tokens": "--kv-dtype",
    "timeout_s": "--timeout-s",
    "requests": "--max-model-len",
    "--gpu-profiles": "--gpu-profile",
}


@dataclass(frozen=True, kw_only=True)
class SharingOptions:
    """What requests share, and who sends them."""

    users: Annotated[int | None, typer.Option(min=1)] = None
    """Instead of arrivals: users who each wait for their answer."""
    unique_prompts: Annotated[int | None, typer.Option(min=1)] = None
    """Whole prompts that repeat; all differ by default."""

    def of(self, requests: "Requests", seed: int) -> "Requests":
        """Return requests whose prompts repeat as asked."""
        if self.unique_prompts is None:
            return requests
        return requests.repeating(self.unique_prompts, seed)


@grouped
def simulate(
    *,
    gpu_profile: Annotated[str, typer.Option(help="GPU profile of a replica, e.g. 1xH100-80GB.")],
    replicas: Annotated[int, typer.Option(min=1, help="Replicas behind a router.")] = 1,
    router: Annotated[
        Literal["round_robin", "least_requests", "prefix"],
        typer.Option(help="Where a request goes: in turn, to the fewest requests, by its prefix."),
    ] = "round_robin",
    traffic: TrafficOptions,
    sharing: SharingOptions,
    limits: LimitOptions,
    asked: AskedOptions,
    server: ServerOptions,
    warmup: Annotated[
        str, typer.Option(help="Requests that arrive before are simulated and not counted.")
    ] = "0s",
    draws: Annotated[
        int, typer.Option(min=0, help="Draws of the law for the intervals; 0: none.")
    ] = 100,
    printed: Printed = "text",
    out: PageFile = None,
) -> None:
    """Simulate an LLM's servers under given traffic: latencies, throughput, failures."""
    from sextant.answer.capacity.simulation import simulate_llm, simulation_document
    from sextant.answer.step_laws import MEDIANS
    from sextant.base.files import provenance

    check_page(printed, out)
    if asked.prefix_hit_rate:
        fix = "give --unique-prompts: prompts that repeat hit the simulated cache"
        raise InputError("cache hits are simulated", field="--prefix-hit-rate", fix=fix)
    load, lengths = _load(traffic, sharing, asked, server.prefix_caching)
    question = replace(asked.question(MEDIANS, gpu_profile_ids=(gpu_profile,)), requests=lengths)
    settings = server.of()
    warmup_s = 0.0 if warmup.strip() in ("0", "0s") else seconds_of(warmup, "--warmup")
    with naming_options(_SIMULATE_FIELDS):
        facts = simulate_llm(
            question,
            load,
            settings,
            replicas=replicas,
            router=router,
            warmup_s=warmup_s,
            n_draws=draws,
            limits_ms=limits.of_each(),
        )
    print_document(simulation_document(facts, provenance()), printed, out)


def _load(
    traffic: TrafficOptions, sharing: SharingOptions, asked: AskedOptions, has_caching: bool
) -> "tuple[OpenLoop | Users, Lengths]":
    """Return the load, and the lengths of its requests."""
    from sextant.answer.capacity.simulation import OpenLoop
    from sextant.answer.capacity.traffic import demand_notes
    from sextant.answer.demand import requests_of_demand

    if sharing.users is not None:
        return _users(sharing.users, traffic, sharing, asked)
    demand = traffic_of(traffic, asked, None).drawn(0)
    requests = sharing.of(demand.simulated(), asked.seed)
    notes = tuple(demand_notes(demand, None if sharing.unique_prompts else has_caching))
    return OpenLoop(demand.name, requests, demand.duration_s, notes), requests_of_demand(demand)


def _users(
    users: int, traffic: TrafficOptions, sharing: SharingOptions, asked: AskedOptions
) -> "tuple[Users, Lengths]":
    import numpy as np

    from sextant.answer.capacity.simulation import Users
    from sextant.answer.demand import lengths_of
    from sextant.simulate import Requests
    from sextant.workload.draw import open_workload

    for option in ("trace", "request_rate", "burstiness"):
        if getattr(traffic, option) is not None:
            fix = "give --users, or arrivals"
            field = "--" + option.replace("_", "-")
            raise InputError("users send when their last request is answered", field=field, fix=fix)
    lengths = asked.requests()
    if lengths is None:
        fix = "give --workload, or --input-tokens and --output-tokens"
        raise InputError("the requests have no length", field="--users", fix=fix)
    is_given = asked.workload is None
    sample = lengths_of(lengths) if is_given else open_workload(asked.workload or "").sample

    def draw(n: int) -> "Requests":
        frame = sample(n, seed=asked.seed)
        inputs, outputs = (frame[name].to_numpy() for name in ("input_tokens", "output_tokens"))
        return sharing.of(Requests.of(np.zeros(n), inputs, np.maximum(outputs, 1)), asked.seed)

    name = "given lengths" if is_given else Path(asked.workload or "").name
    duration_s = seconds_of(traffic.duration or "1h", "--duration")
    return Users(name, users, draw, duration_s), lengths
