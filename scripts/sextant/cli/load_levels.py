"""Options of `sextant load` that say how load is put on the server: they become a scenario."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.base.errors import InputError
from sextant.cli.options import ArrivalOptions, naming_options, numbers

if TYPE_CHECKING:
    from sextant.experiment.scenarios import OpenLoop, Scenario
    from sextant.workload.generators import Arrivals

_DURATION_S, _WARMUP_S, _COOLDOWN_S = 120.0, 10.0, 5.0
_WAYS = {"--users": "closed_loop", "--request-rate": "open_loop", "--batch": "batch"}


@dataclass(frozen=True, kw_only=True)
class LevelOptions:
    """How load is put on the server, and for how long."""

    users: Annotated[
        str | None, typer.Option(help="Closed loop: concurrent users, e.g. 16 or 1,2,4.")
    ] = None
    request_rate: Annotated[
        str | None,
        typer.Option(
            help="Open loop, latency-critical: requests per second, e.g. 4 or 4,8,inf; inf is "
            "all at once."
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        typer.Option(help="Shape of an open loop's Gamma gaps; 1 (default) is Poisson."),
    ] = None
    batch: Annotated[
        str | None,
        typer.Option(help="Best effort: most requests in flight, e.g. 256 or 1,2,4."),
    ] = None
    n_requests: Annotated[
        int | None,
        typer.Option(
            min=1, help="Requests of a level: of a batch, as many as in flight by default."
        ),
    ] = None
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="Open loop by an arrival process of `sextant sample`: fitted, constant, "
            "poisson, gamma, windows, varying, replay or inf."
        ),
    ] = None
    duration: Annotated[
        float | None, typer.Option(help="Seconds of load that are measured; 120 by default.")
    ] = None
    warmup: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds of load before; 10 by default, 0 for a batch, replays and --n-requests.",
        ),
    ] = None
    cooldown: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seconds for which load goes on after, until the measured requests have ended; "
            "5 by default for rates, 0 for users.",
        ),
    ] = None
    max_in_flight: Annotated[
        int | None,
        typer.Option(min=1, help="Open loop: most requests in flight; others wait, which counts."),
    ] = None
    timeout: Annotated[
        float, typer.Option(min=0.001, max=1e6, help="Seconds until a request has failed.")
    ] = 120

    def scenario(self, process: ArrivalOptions, workload: str | None, seed: int) -> "Scenario":
        """Return the scenario that is asked for; `process` and `workload` (whose arrivals `fitted`
        are) serve `--arrivals`, seeded, whose mean rate is the level where no rate is given.

        Raises InputError for no way to put load on the server or several, or for an option that
        the way does not use or lacks.
        """
        from sextant.experiment.scenarios import scenario_of

        if self.arrivals is not None:
            return self._of_process(self.arrivals, process, workload, seed)
        if process.given():
            fix = "leave it out"
            raise InputError("it belongs to --arrivals", field=process.given()[0], fix=fix)
        chosen = self._ways()
        if len(chosen) != 1:
            fix = "give one of --users, --request-rate, --batch and --arrivals"
            raise InputError("how to load the server is not clear", field="--users", fix=fix)
        ((way, text),) = chosen.items()
        kind = _WAYS[way]
        with naming_options({"levels": way}):
            cooldown_s = 0.0 if kind == "closed_loop" else _COOLDOWN_S
            given = self._given(cooldown_s, ends_itself=kind == "batch")
            return scenario_of({"kind": kind, "levels": numbers(text, way)} | given)

    def replaying(
        self, trace: Path, process: ArrivalOptions
    ) -> "tuple[LevelOptions, ArrivalOptions]":
        """Return the options with which the requests of a trace come at its own times, unless
        these say others. Raises InputError if the times are those of a part of it alone.
        """
        for option in ("llm", "service"):
            if getattr(process, option) is not None:
                fix = "leave it out, or ingest that part as a trace of its own"
                raise InputError("--replay sends all requests", field=f"--{option}", fix=fix)
        arrivals = self.arrivals or (None if self._ways() else "replay")
        if arrivals == "replay" and process.arrivals_from is None:
            process = replace(process, arrivals_from=trace)
        return replace(self, arrivals=arrivals), process

    def _of_process(
        self, name: str, process: ArrivalOptions, workload: str | None, seed: int
    ) -> "OpenLoop":
        """Return one open loop of an arrival process."""
        from sextant.experiment.scenarios import OpenLoop

        if others := [way for way in self._ways() if way != "--request-rate"]:
            raise InputError("--arrivals are an open loop", field=others[0], fix="leave it out")
        rates = numbers(self.request_rate, "--request-rate") if self.request_rate else [None]
        if len(rates) > 1 or rates[0] == math.inf:
            fix = "give one rate"
            raise InputError("--arrivals are one level", field="--request-rate", fix=fix)
        arrivals = process.process(name, workload, rates[0], self.burstiness)
        with naming_options({"levels": "--arrivals"}):
            given = self._given(_COOLDOWN_S, ends_itself=arrivals.ends_itself)
            given.pop("burstiness", None)  # the process has it
            at_once = math.inf if arrivals.kind == "inf" else 1.0
            level = rates[0] or at_once
            scenario = OpenLoop(levels=(level,), arrivals=arrivals, **given)
            if rates[0] is not None or level == math.inf:
                return scenario
            return replace(scenario, levels=(_mean_rate(scenario, arrivals, seed),))

    def _ways(self) -> dict[str, str]:
        """Return the levels that were given, by their option."""
        texts = {"--users": self.users, "--request-rate": self.request_rate, "--batch": self.batch}
        return {way: text for way, text in texts.items() if text is not None}

    def _given(self, cooldown_s: float, *, ends_itself: bool) -> dict[str, Any]:
        """Return the fields of a scenario that were given, and the command's defaults."""
        given = {
            "duration_s": self.duration,
            "warmup_s": self.warmup,
            "cooldown_s": self.cooldown,
            "burstiness": self.burstiness,
            "n_requests": self.n_requests,
            "max_in_flight": self.max_in_flight,
        }
        defaults = {"timeout_s": self.timeout}
        if not ends_itself and self.n_requests is None:
            defaults |= {"duration_s": _DURATION_S, "warmup_s": _WARMUP_S, "cooldown_s": cooldown_s}
        return defaults | {name: value for name, value in given.items() if value is not None}


def _mean_rate(scenario: "OpenLoop", arrivals: "Arrivals", seed: int) -> float:
    """Return the mean rate of the requests that a schedule will send."""
    rate = getattr(arrivals, "rate_rps", None)
    if rate is not None:
        return float(rate)
    times = arrivals.times(n=scenario.n_requests, duration_s=scenario.extent_s, seed=seed)
    lasting_s = scenario.extent_s or (float(times[-1]) if len(times) else 0.0)
    return len(times) / lasting_s if lasting_s else math.inf
