"""The commands `sample` and `trace-report`: draw from workloads, report on traces."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.api.groups import WORKLOAD_HELP, Seed, numbers, option_of, time_option
from sextant.api.trace_choice import TraceChoiceOptions
from sextant.base.errors import InputError
from sextant.cli.printing import grouped, say

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from sextant.trace.choice import TraceChoice
    from sextant.workload.generators import Arrivals

_LONG = 200  # Letters of an arrival process's parameter from which on the provenance leaves it out.


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """What is drawn, and how requests arrive."""

    n: Annotated[int | None, typer.Option("-n", min=1)] = None
    """Most requests; give this or --duration."""
    duration: Annotated[float | None, time_option()] = None
    """Time of arrivals at most."""
    form: Annotated[str | None, typer.Option("--format")] = None
    """parquet, csv (by default from OUT's ending), mooncake, vllm-timed-trace."""
    sampler: str = "joint"
    """joint; independent, each parameter for itself; or raw, whole requests of a normalised trace
    that --workload names."""
    zipf_theta: Annotated[float | None, typer.Option(min=0)] = None
    """Inputs by Zipf's law with this exponent instead, as BurstGPT's."""
    arrivals: str | None = None
    """fitted (default), constant, poisson (default with --request-rate), gamma (default with
    --burstiness), windows, varying, replay or inf."""

    def requests_of(self, workload: str, choice: "TraceChoice") -> "Callable[..., pd.DataFrame]":
        """Return a function that draws requests of a workload.

        Raises InputError if `raw` requests have no trace, or are to have other lengths.
        """
        from sextant.trace.choice import chosen_requests
        from sextant.trace.trace_format import require_trace
        from sextant.workload import draw
        from sextant.workload.request_model import resample_trace, served_requests

        if self.sampler == "raw":
            require_trace(workload)
            if self.zipf_theta is not None:
                problem = "raw requests have the lengths they have"
                fix = "leave it out, or draw from a model"
                raise InputError(problem, field="--zipf-theta", fix=fix)
            if not choice.values:
                return partial(resample_trace, workload)
            with chosen_requests(workload, choice) as part:
                return partial(resample_trace, served_requests(part))

        model = draw.open_workload(workload)
        if self.zipf_theta is not None:
            model = draw.with_zipf_inputs(model, self.zipf_theta)
        return partial(model.sample, sampler=self.sampler)


@dataclass(frozen=True, kw_only=True)
class ArrivalOptions:
    """Parameters of an arrival process."""

    request_rate: float | None = None  #: Requests per second.
    burstiness: float | None = None
    """Shape of the Gamma gaps, as vLLM's; below 1 is burstier than Poisson."""
    arrivals_from: Path | None = None  #: Normalised trace, for windows and replay.
    time_factor: float | None = None  #: Factor on all gaps of that trace; 0.5 doubles the rate.
    alpha: str | None = None  #: varying: a0,a1,a2 of the shape a0 + a1·u + a2·u².
    beta_s: str | None = None  #: varying: b0,b1 of the scale b0 + b1·u in seconds.
    over: str | None = None  #: varying: u is time (seconds, the default) or steps.
    every: int | None = None  #: varying: requests from one change to the next.

    def kind(self, stated: str | None) -> str:
        """Return the kind of the process: the stated one, or the default of the parameters."""
        default = "fitted" if self.request_rate is None else "poisson"
        kind = stated or (default if self.burstiness is None else "gamma")
        if (self.burstiness if kind == "varying" else self.alpha) is not None:
            fix = "--alpha is for varying arrivals, --burstiness for all others"
            raise InputError(f"{kind} arrivals", field="--alpha, --burstiness", fix=fix)
        return kind

    def arrivals(self, kind: str, workload: str, choice: "TraceChoice") -> "Arrivals":
        """Return the process of this kind, for requests of a workload."""
        from sextant.workload import draw

        parameters = draw.ArrivalParameters(
            rate_rps=self.request_rate,
            alpha=numbers(self.alpha, "--alpha") if self.alpha else self.burstiness,
            beta_s=numbers(self.beta_s, "--beta-s") if self.beta_s else None,
            trace=self.arrivals_from,
            llm=None if self.arrivals_from is None else choice.llm,
            service=None if self.arrivals_from is None else choice.service,
            time_factor=self.time_factor,
            over=self.over,
            every=self.every,
        )
        return draw.chosen_arrivals(kind, workload, parameters)


@grouped
def sample(
    *,
    workload: Annotated[
        str,
        typer.Option(
            help=f"{WORKLOAD_HELP} Or the folder of a service of ServeGen, for its clients'"
            " own requests and times."
        ),
    ],
    out: Annotated[Path, typer.Option(dir_okay=False, help="File to write.")],
    chosen: SampleOptions,
    process: ArrivalOptions,
    in_trace: TraceChoiceOptions,
    seed: Seed = 0,
) -> None:
    """Draw a trace from a workload, in Sextant's format or another tool's."""
    from sextant.workload import draw
    from sextant.workload.trace_arrivals import arrivals_to_plain

    form = chosen.form or out.suffix.removeprefix(".")
    draw.check_format(form, out)
    extent: dict[str, Any] = {"seed": seed, "n": chosen.n, "duration_s": chosen.duration}
    facts: dict[str, Any] = {"workload": workload, "seed": seed}
    notes: list[str] = []
    if draw.is_service(workload):
        _refuse_for_services(chosen, process, in_trace)
        drawn = draw.draw_service(workload, **extent)
    else:
        choice = in_trace.choice()
        notes = _mixtures(workload, chosen, process, choice)
        requests = chosen.requests_of(workload, choice)
        kind = process.kind(chosen.arrivals)
        arrivals = process.arrivals(kind, workload, choice)
        drawn = draw.draw_trace(requests, arrivals, **extent)
        # Of a process with many numbers (a profile) the name is enough.
        facts |= {
            name: value
            for name, value in arrivals_to_plain(arrivals).items()
            if name not in ("kind", "trace") and value is not None and len(str(value)) < _LONG
        }
        facts |= {"sampler": chosen.sampler, "arrivals": kind}
    draw.write_trace(drawn, out, form, facts)

    last_s = drawn["arrival_s"].max() if len(drawn) else 0.0
    say(f"{out}: {len(drawn):,} requests in {last_s:,.1f} s")
    for note in notes:
        say(note)


def _mixtures(
    workload: str, chosen: SampleOptions, process: ArrivalOptions, choice: "TraceChoice"
) -> list[str]:
    """Return what the traces that are read mix. Raises InputError: a choice, and no trace."""
    from sextant.trace.choice import OPTIONS, mixture_notes

    traces = [Path(workload)] if chosen.sampler == "raw" else []
    traces += [] if process.arrivals_from is None else [process.arrivals_from]
    if choice.values and not traces:
        (name, *_) = choice.values
        fix = "leave it out, or give --arrivals-from TRACE or --sampler raw"
        raise InputError("no trace is read", field=OPTIONS[name], fix=fix)
    notes = [note for trace in traces if trace.is_file() for note in mixture_notes(trace, choice)]
    return list(dict.fromkeys(notes))


def _refuse_for_services(
    chosen: SampleOptions, process: ArrivalOptions, in_trace: TraceChoiceOptions
) -> None:
    """Raise InputError for an option that the tables of a service of ServeGen do not use."""
    options = asdict(process) | asdict(in_trace)
    options |= {"zipf_theta": chosen.zipf_theta, "arrivals": chosen.arrivals}
    options |= {"sampler": None if chosen.sampler == "joint" else chosen.sampler}
    for name in (name for name, value in options.items() if value is not None):
        problem = "ServeGen's tables have their own requests and times"
        fix = "leave it out, or name a workload"
        raise InputError(problem, field=option_of(name), fix=fix)


@grouped
def trace_report(
    *,
    trace: Annotated[Path, typer.Argument(help="Normalised trace (see `sextant ingest`).")],
    out: Annotated[
        Path, typer.Option(dir_okay=False, help="Page, .html; the JSON goes into the same folder.")
    ],
    workload: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of a workload fitted to it, to judge the fit; may be repeated."),
    ] = None,
    in_trace: TraceChoiceOptions,
    seed: Seed = 0,
) -> None:
    """Report on a trace: traffic, burstiness, failures, lengths, and how faithful models are."""
    from sextant.pages.page import json_path
    from sextant.report.trace_characterize import write_trace_report
    from sextant.trace.choice import mixture_notes

    choice = in_trace.choice()
    report = write_trace_report(
        trace, workload or [], out, json_path(out), seed=seed, choice=choice
    )
    for note in mixture_notes(trace, choice):
        say(f"- {note}")
    for sentence in report["takeaways"].values():
        say(f"- {sentence}")
    say(f"\nPage: {out}")
