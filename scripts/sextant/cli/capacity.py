"""The command `capacity`: replicas for a trace or a rate, by simulation."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sextant.base.errors import InputError
from sextant.cli.asked import AskedOptions, CandidateOptions, LimitOptions
from sextant.cli.options import PageFile, Printed, grouped, naming_options
from sextant.cli.terminal import check_page, say_answer

if TYPE_CHECKING:
    from sextant.answer.capacity.answer import Asked
    from sextant.answer.capacity.demand import Traffic
    from sextant.answer.step_laws import Settings

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

    trace: Annotated[
        Path | None, typer.Option(help="Normalised trace (see `sextant ingest`): its own arrivals.")
    ] = None
    trace_llm: Annotated[str | None, typer.Option(help="Only this LLM of the trace.")] = None
    trace_service: Annotated[str | None, typer.Option(help="Only this service of the trace.")] = (
        None
    )
    request_rate: Annotated[
        float | None, typer.Option(help="Requests a second, without a trace.")
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(
            help="Shape of Gamma gaps: 1 Poisson, less is burstier; without it the arrivals of "
            "--workload's trace, or Poisson."
        ),
    ] = None
    duration: Annotated[
        str | None,
        typer.Option(help="How long requests of a rate arrive; 1h, or 200,000, by default."),
    ] = None
    traffic: Annotated[float, typer.Option(help="Factor on the traffic: 2 halves all gaps.")] = 1.0


@dataclass(frozen=True, kw_only=True)
class KeepOptions:
    """What has to be kept beside the limits, and in which windows."""

    goodput: Annotated[
        float | None,
        typer.Option(help="Least share of requests that are answered within all limits."),
    ] = None
    max_failed: Annotated[
        float, typer.Option(help="Largest share of requests that are refused or time out.")
    ] = 0.01
    window: Annotated[
        str, typer.Option(help="Windows in which the SLO holds, e.g. 5min or 60s, or whole.")
    ] = "5min"
    risk: Annotated[float, typer.Option(help="Largest probability that a window is missed.")] = 0.1


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """vLLM's settings, under its own names."""

    max_num_seqs: Annotated[int, typer.Option(help="vLLM's max_num_seqs.")] = 256
    max_num_batched_tokens: Annotated[int, typer.Option(help="vLLM's max_num_batched_tokens.")] = (
        8192
    )
    timeout_s: Annotated[
        float, typer.Option(help="Seconds after which a client gives up; never by default.")
    ] = float("inf")
    prefix_caching: Annotated[
        bool, typer.Option(help="vLLM's enable_prefix_caching: what repeats is computed once.")
    ] = True

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

    slot: Annotated[str, typer.Option(help="How long a number of replicas stays, e.g. 1h.")] = "1h"
    startup: Annotated[
        str, typer.Option(help="From the order of a replica until it serves, e.g. 5min.")
    ] = "5min"
    least_replicas: Annotated[int, typer.Option(min=1, help="Replicas at any time.")] = 1


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
    """Say how many replicas of which GPU profile keep an SLO under a trace's own traffic."""
    found = capacity_asked(traffic, limits, keep, asked, candidates, server, schedule, draws)
    answer_capacity(replace(found, router=router), printed, out)


def answer_capacity(asked: "Asked", printed: str, out: Path | None, lead: str = "") -> None:
    """Answer, and print or write it; `lead` is the first of its warnings."""
    from sextant.answer.capacity.answer import capacity

    check_page(printed, out)
    answer = capacity(asked, [lead] if lead else [])
    if out is not None:
        from sextant.answer.capacity.page import write_capacity

        write_capacity(answer, out)
    say_answer(answer, printed, out)
    if answer["gpu_profile_id"] is None:
        raise typer.Exit(3)


def capacity_asked(
    traffic: TrafficOptions,
    limits: LimitOptions,
    keep: KeepOptions,
    asked: AskedOptions,
    candidates: CandidateOptions,
    server: ServerOptions = _SERVER,
    schedule: ScheduleOptions = _SCHEDULE,
    draws: int = 32,
) -> "Asked":
    """Return what is asked. Raises InputError for an option that makes no sense."""
    from sextant.answer.capacity.answer import Asked
    from sextant.answer.capacity.changes import Terms
    from sextant.answer.capacity.demand import requests_of_demand
    from sextant.answer.capacity.target import Target
    from sextant.facts.slo import SLO

    if not 0 < keep.risk < 1:
        fix = "give a probability between 0 and 1, e.g. 0.1"
        raise InputError(f"{keep.risk:g} is not a risk", field="--risk", fix=fix)
    window_s = None if keep.window == "whole" else seconds_of(keep.window, "--window")
    arriving = traffic_of(traffic, asked, window_s)
    demand = arriving.drawn(0)
    with naming_options({"request_rate_rps": "--traffic"}):
        load: dict[str, Any] = {"percentile": asked.percentile, "request_rate_rps": demand.rate_rps}
        slo = SLO("asked", **limits.of(), **load)
    with naming_options({}):
        target = Target(slo.limits, keep.goodput, keep.max_failed, window_s)
    question = replace(asked.question(slo, **candidates.of()), requests=requests_of_demand(demand))
    settings = server.of()
    slot_s = seconds_of(schedule.slot, "--slot")
    startup_s = seconds_of(schedule.startup, "--startup")
    terms = Terms(slot_s, startup_s, schedule.least_replicas)
    return Asked(question, arriving, target, settings, terms, keep.risk, draws, asked.seed)


def traffic_of(given: TrafficOptions, asked: AskedOptions, window_s: float | None) -> "Traffic":
    """Return what arrives. Raises InputError for an option that makes no sense."""
    from sextant.answer.capacity.demand import TraceTraffic, demand_of_trace

    if not 0 < given.traffic < float("inf"):
        fix = "give a number above 0, e.g. 1.5"
        raise InputError(f"{given.traffic:g} is not a factor", field="--traffic", fix=fix)
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
            raise InputError("the trace says it", field=option, fix=fix)
    demand = demand_of_trace(
        given.trace,
        window_s=window_s or 300.0,
        llm=given.trace_llm,
        service=given.trace_service,
        has_prefixes=True,
    )
    return TraceTraffic(demand.at_rate(given.traffic), window_s)


def _drawn(given: TrafficOptions, asked: AskedOptions) -> "Traffic":
    from sextant.answer.capacity.demand import traffic_at_rate

    if given.request_rate is None:
        fix = "give --trace FILE, or --request-rate with --workload or lengths"
        raise InputError("nothing arrives", field="--trace, --request-rate", fix=fix)
    lengths = asked.requests()
    if lengths is None:
        fix = "give --workload, or --input-tokens and --output-tokens"
        raise InputError("requests of no length", field="--request-rate", fix=fix)
    rate_rps = given.request_rate * given.traffic
    duration_s = None
    if given.duration is not None:
        duration_s = seconds_of(given.duration, "--duration")
        _check_count(rate_rps * duration_s)
    with naming_options(_RATE_FIELDS):
        return traffic_at_rate(
            rate_rps,
            asked.workload,
            None if asked.workload is not None else lengths,
            alpha=given.burstiness,
            duration_s=duration_s,
            first_seed=asked.seed,
        )


def _check_count(n_requests: float) -> None:
    if n_requests > _MOST_DRAWN:
        problem = f"some {n_requests:,.0f} requests arrive; a simulation takes {_MOST_DRAWN:,}"
        fix = "give a shorter --duration, or a lower --request-rate"
        raise InputError(problem, field="--duration", fix=fix)


def seconds_of(text: str, option: str) -> float:
    """Return the seconds that an option says, e.g. 90, 90s, 5min, 1h or 2d."""
    found = _TIME.fullmatch(text.strip())
    seconds = float(found[1]) * _UNITS_S[found[2]] if found else 0.0
    if not seconds > 0:
        whole = ", or whole" if option == "--window" else ""
        fix = f"give a time, e.g. 90s, 5min or 1h{whole}"
        raise InputError(f"{text!r} is not a time above 0", field=option, fix=fix)
    return seconds
