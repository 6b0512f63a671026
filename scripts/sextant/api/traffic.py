"""Groups of options of simulated answers: what arrives, the scheduler, how a replica starts."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from sextant.api.groups import naming_options, refuse, seconds_of, time_option
from sextant.api.question_options import CaseOptions
from sextant.api.trace_choice import TraceChoiceOptions
from sextant.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sextant.ask.question import Question
    from sextant.ask.scheduling import Settings
    from sextant.facts.llm import LLM
    from sextant.facts.startup import Startup
    from sextant.workload.requests import ScalableTraffic

ROUTERS = Literal["round_robin", "least_requests", "prefix"]
_RATE_FIELDS: dict[str | None, str] = {
    "rate_rps": "--request-rate",
    "alpha": "--burstiness",
    "arrivals": "--burstiness",
}
_MOST_SESSIONS = 100_000
_MOST_DRAWN = 1_000_000
"""Requests of one simulation: an answer takes many of them, each seconds to minutes then."""


@dataclass(frozen=True, kw_only=True)
class TrafficOptions(TraceChoiceOptions):
    """What arrives: a trace, or requests of a workload or of given lengths at a rate."""

    trace: Path | None = None  #: Normalised trace (see `sextant ingest`): its own arrivals.
    request_rate: float | None = None  #: Requests a second, without a trace.
    burstiness: float | None = None
    """Shape of Gamma gaps: 1 Poisson, less is burstier; without it the arrivals of --workload's
    trace, or Poisson."""
    duration: str | None = None  #: How long requests of a rate arrive; 1h, or 200,000, by default.
    sessions: str | None = None
    """`trace`: turns of a session arrive after the last answer and the trace's think time; or
    so many sessions of the trace an hour, at random, for --duration."""
    traffic: float = 1.0
    """Factor on requests or sessions: 2 sends a trace's twice, on the same clock."""
    speed: float = 1.0  #: Factor on the trace's clock: 2 halves all gaps and the day.

    def of(self, case: CaseOptions, window_s: float | None) -> "ScalableTraffic":
        """Return the traffic. Raises InputError for a wrong option."""
        for option, factor in (("--traffic", self.traffic), ("--speed", self.speed)):
            if not 0 < factor < float("inf"):
                fix = "give a number above 0, e.g. 1.5"
                raise InputError(f"{factor:g} is not a factor", field=option, fix=fix)
        if self.trace is not None:
            return self._of_trace(self.trace, case, window_s)
        return self._at_rate(case)

    def _of_trace(
        self, trace: Path, case: CaseOptions, window_s: float | None
    ) -> "ScalableTraffic":
        from sextant.ask.traffic import TraceTraffic, demand_of_trace
        from sextant.capacity.sessions import SessionTraffic
        from sextant.workload.requests import mean_lengths_of

        sends_requests = self.sessions in (None, "trace")
        refuse(self, "the trace has its own", "request_rate", "burstiness")
        if sends_requests:
            refuse(self, "the trace has its own", "duration")
        refuse(case.requests, "the trace has its own", "workload", "input_tokens", "output_tokens")
        if not sends_requests and self.speed != 1:
            fix = "leave it out, or give --sessions trace"
            raise InputError("sessions start at their own rate", field="--speed", fix=fix)

        demand = demand_of_trace(
            trace,
            window_s=window_s or 300.0,
            choice=self.choice(),
            has_prefixes=True,
            has_turns=self.sessions is not None,
            factor=self.traffic if sends_requests else 1.0,
        )
        if demand.turns is not None:
            served = case.served(mean_lengths_of(demand))
            demand = demand.without_long_turns(served.longest_served_tokens)
        if not sends_requests:
            return SessionTraffic(demand, *self._sessions(), case.seed)
        demand = demand.at_speed(self.speed)
        if demand.turns is not None:
            think_s = demand.turns.think_s / self.speed
            demand = replace(demand, turns=demand.turns._replace(think_s=think_s))
        return TraceTraffic(demand, window_s)

    def _at_rate(self, case: CaseOptions) -> "ScalableTraffic":
        from sextant.ask.traffic import traffic_at_rate
        from sextant.facts.slo import RATES_RPS

        refuse(self, "there is no trace", "sessions")
        if self.speed != 1:
            raise InputError("there is no trace", field="--speed", fix="give --trace, or --traffic")
        if self.request_rate is None:
            fix = "give --trace FILE, or --request-rate with --workload or lengths"
            raise InputError("there is no traffic", field="--trace, --request-rate", fix=fix)

        lengths = case.lengths()
        rate_rps = self.request_rate * self.traffic
        _, most_rps = RATES_RPS
        if not 0 < rate_rps <= most_rps:
            fix = f"give a rate above 0, up to {most_rps:,.0f}"
            field = "--request-rate" if self.traffic == 1 else "--request-rate, --traffic"
            raise InputError(f"{rate_rps:g} is not a rate", field=field, fix=fix)
        duration_s = None
        if self.duration is not None:
            duration_s = seconds_of(self.duration, "--duration")
            if (n := rate_rps * duration_s) > _MOST_DRAWN:
                problem = f"about {n:,.0f} requests arrive; a simulation takes {_MOST_DRAWN:,}"
                fix = "give a shorter --duration, or a lower --request-rate"
                raise InputError(problem, field="--duration", fix=fix)

        workload = case.requests.workload
        with naming_options(_RATE_FIELDS):
            return traffic_at_rate(
                rate_rps,
                workload,
                lengths if workload is None else None,
                alpha=self.burstiness,
                duration_s=duration_s,
                first_seed=case.seed,
            )

    def _sessions(self) -> tuple[float, float]:
        """Return sessions an hour, and for how long they arrive, in seconds."""
        try:
            per_hour = float(self.sessions or "") * self.traffic
        except ValueError:
            per_hour = 0.0
        if not 0 < per_hour < float("inf"):
            fix = "give trace, or sessions an hour, e.g. 200"
            raise InputError(f"{self.sessions!r} is neither", field="--sessions", fix=fix)
        duration_s = seconds_of(self.duration or "1h", "--duration")
        if (n := per_hour * duration_s / 3600) > _MOST_SESSIONS:
            fix = f"give fewer: a simulation takes {_MOST_SESSIONS:,}"
            raise InputError(f"{n:,.0f} sessions", field="--sessions", fix=fix)
        return per_hour, duration_s


@dataclass(frozen=True, kw_only=True)
class SchedulerOptions:
    """How long clients wait, and what the server keeps of prompts."""

    timeout_s: Annotated[float, time_option(0.001)] = float("inf")
    """Time after which a client gives up; never by default."""
    prefix_caching: bool = True  #: vLLM's enable_prefix_caching: what repeats is computed once.

    def of(self, question: "Question") -> "Settings":
        """Return the settings of the servers of a question. Raises InputError for a wrong one."""
        from sextant.ask.scheduling import Settings

        settings = Settings.of(question, self.timeout_s, has_prefix_caching=self.prefix_caching)
        with naming_options({"timeout_s": "--timeout-s"}):
            settings.check()
        return settings


def startup_time_of(text: str | None) -> "Callable[[LLM], Startup]":
    """Return how long an LLM takes to start, of an option's time or phases."""
    from sextant.facts.startup import PHASES, Startup, startup_of

    if text is not None and "=" not in text:
        startup_s = seconds_of(text, "--startup")
        return lambda llm: Startup(startup_s)
    phases = [part.partition("=")[::2] for part in text.split(",")] if text else []
    names = [name for name, _ in phases]
    if wrong := [name for name in names if name not in PHASES or names.count(name) > 1]:
        fix = f"use each of {', '.join(PHASES)} once"
        raise InputError(f"{wrong[0]!r} is no phase, or there twice", field="--startup", fix=fix)
    times_s = {
        name: 0.0 if t.strip() in ("0", "0s") else seconds_of(t, "--startup") for name, t in phases
    }
    return lambda llm: startup_of(llm, times_s)
