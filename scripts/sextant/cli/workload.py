"""The command line's part on workloads: fit them, draw from them, report on traces."""

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.base.errors import InputError
from sextant.cli import options

if TYPE_CHECKING:
    from sextant.workload.fit import WorkloadFiles
    from sextant.workload.request_model import LengthCaps

_TEXT_ENDINGS = (".json", ".jsonl")
_LONG = 200  # Letters of an arrival process's parameter from which on the provenance leaves it out.


def fit(
    source: Annotated[
        str,
        typer.Argument(
            help="Normalised trace (see `sextant ingest`), a published histogram (Parquet), a "
            "file of prompts and responses (.json, .jsonl; needs --tokenizer), or the name of a "
            "use case that ships."
        ),
    ],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder of the workload.")],
    max_input_tokens: options.MaxInput = None,
    max_output_tokens: options.MaxOutput = None,
    n_bins: Annotated[
        int | None, typer.Option(help="Most bins per request parameter; 64 by default.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The LLM's tokenizer.json, to count tokens of texts.")
    ] = None,
    seed: options.Seed = 0,
) -> None:
    """Fit a workload (requests and arrivals) to a trace; or take its requests from elsewhere."""
    from sextant.base.files import atomic_folder, sha256_file
    from sextant.pages.words import joined, percent
    from sextant.workload import published
    from sextant.workload.fit import WorkloadFiles, fit_workload, write_use_case, write_workload
    from sextant.workload.request_model import N_BINS, LengthCaps

    caps = LengthCaps(max_input_tokens=max_input_tokens, max_output_tokens=max_output_tokens)
    path = Path(source)
    is_use_case = source in published.use_case_names() and not path.exists()
    is_text = path.suffix in _TEXT_ENDINGS
    is_histogram = not is_use_case and not is_text and _is_histogram(path)
    if n_bins is not None and (is_use_case or is_histogram):
        fix = "leave it out: the bins are there already"
        raise InputError("nothing is binned", field="--n-bins", fix=fix)
    with atomic_folder(out, last="arrivals.json") as new:
        files = WorkloadFiles.in_folder(new)
        if is_use_case:
            figures = write_use_case(source, files, caps=caps)
        elif is_histogram:
            model = published.require_lengths(published.load_request_model(path), path)
            origin = {"inputs_sha256": {"source": sha256_file(path)}}
            figures = write_workload(model, files, origin=origin, caps=caps)
        elif is_text:
            figures = _fit_texts(path, files, tokenizer, n_bins or N_BINS, caps)
        else:
            n_bins = n_bins or N_BINS
            figures = fit_workload(path, files, caps=caps, n_bins=n_bins, seed=seed)
    bins, n_requests = f"{figures['n_joint_bins']:,} joint bins", figures["n_requests"]
    if "clipped_fraction" in figures:
        shares = ", ".join(f"{100 * s:.1f}% of {n}" for n, s in figures["clipped_fraction"].items())
        options.say(f"{out}: {bins}; caps shortened {shares}")
        return
    distances = ", ".join(f"{name} {value:.3f}" for name, value in figures["ks"].items())
    options.say(f"{out}: {n_requests:,} requests in {bins}; KS distances: {distances}")
    cut = {side: figures[f"n_clipped_{side}"] for side in ("input", "output")}
    if any(cut.values()):
        cuts = [f"{n:,} {side}s ({percent(n / n_requests)})" for side, n in cut.items() if n]
        options.say(f"caps shortened {joined(cuts)}: the distances are to the trace as capped")


def _is_histogram(source: Path) -> bool:
    import pyarrow.parquet as pq

    from sextant.base.files import reading
    from sextant.workload.published import use_case_names

    if not source.is_file():
        fix = f"correct its path, or give a use case: {', '.join(use_case_names())}"
        raise InputError("there is no such file", file=source, fix=fix)
    fix = "give a normalised trace (`sextant ingest` makes one) or a published histogram"
    with reading(source, fix=fix):
        return "arrival_s" not in pq.read_schema(source).names


def _fit_texts(
    source: Path,
    files: "WorkloadFiles",
    tokenizer: Path | None,
    n_bins: int,
    caps: "LengthCaps",
) -> dict[str, Any]:
    """Write the workload of a file of prompts and responses, and return its figures."""
    from sextant.base.files import sha256_file
    from sextant.workload.fit import write_workload
    from sextant.workload.prompts import read_conversations
    from sextant.workload.request_model import fit_request_model

    if tokenizer is None:
        fix = "give the tokenizer.json of the LLM whose tokens count; if this is a trace, "
        fix += "normalise it first: sextant ingest"
        raise InputError("texts have no token counts", file=source, field="--tokenizer", fix=fix)
    requests, n_items, n_empty = read_conversations(source, tokenizer)
    left_out = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in n_empty.items())
    options.say(f"{source}: {len(requests):,} requests of {n_items:,} items; {left_out}")
    inputs = {"source": sha256_file(source), "tokenizer": sha256_file(tokenizer)}
    origin = {"inputs_sha256": inputs, "n_bins": n_bins}
    return write_workload(fit_request_model(requests, n_bins), files, origin=origin, caps=caps)


@dataclass(frozen=True, kw_only=True)
class SampleOptions:
    """What is drawn, and how requests arrive."""

    n: Annotated[int | None, typer.Option("-n", min=1)] = None
    """Most requests; give this or --duration."""
    duration: float | None = None  #: Seconds of arrivals at most.
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


@dataclass(frozen=True, kw_only=True)
class ArrivalOptions:
    """Parameters of an arrival process."""

    request_rate: float | None = None  #: Requests per second.
    burstiness: float | None = None
    """Shape of the Gamma gaps, as vLLM's; below 1 is burstier than Poisson."""
    arrivals_from: Path | None = None  #: Normalised trace, for windows and replay.
    llm: str | None = None  #: Only this LLM of that trace.
    service: str | None = None  #: Only this service of that trace.
    time_factor: float | None = None  #: Factor on all gaps of that trace; 0.5 doubles the rate.
    alpha: str | None = None  #: varying: a0,a1,a2 of the shape a0 + a1·u + a2·u².
    beta_s: str | None = None  #: varying: b0,b1 of the scale b0 + b1·u in seconds.
    over: str | None = None  #: varying: u is time (seconds, the default) or steps.
    every: int | None = None  #: varying: requests from one change to the next.


@options.grouped
def sample(
    *,
    workload: Annotated[
        str,
        typer.Option(
            help=f"{options.WORKLOAD_HELP} Or the folder of a service of ServeGen, for its clients'"
            " own requests and times."
        ),
    ],
    out: Annotated[Path, typer.Option(dir_okay=False, help="File to write.")],
    given: SampleOptions,
    process: ArrivalOptions,
    seed: options.Seed = 0,
) -> None:
    """Draw a trace from a workload, in Sextant's format or another tool's."""
    from sextant.trace.trace_format import require_trace
    from sextant.workload import draw
    from sextant.workload.request_model import resample_trace
    from sextant.workload.trace_arrivals import arrivals_to_plain

    form = given.form or out.suffix.removeprefix(".")
    draw.check_format(form, out)
    facts: dict[str, Any] = {"workload": workload, "seed": seed}
    extent: dict[str, Any] = {"seed": seed, "n": given.n, "duration_s": given.duration}
    of = asdict(process)
    if draw.is_service(workload):
        of |= {"zipf_theta": given.zipf_theta, "arrivals": given.arrivals}
        of |= {"sampler": None if given.sampler == "joint" else given.sampler}
        for name in (name for name, value in of.items() if value is not None):
            problem, fix = (
                "ServeGen's tables have their own requests and times",
                "leave it out, or name a workload",
            )
            raise InputError(problem, field=options.option_of(name), fix=fix)
        drawn = draw.draw_service(workload, **extent)
    else:
        rate_rps, burstiness = of.pop("request_rate"), of.pop("burstiness")
        default = "fitted" if rate_rps is None else "poisson"
        kind = given.arrivals or (default if burstiness is None else "gamma")
        if given.sampler == "raw":
            require_trace(workload)
            if given.zipf_theta is not None:
                problem, fix = "raw requests have the lengths they have", "leave it out"
                raise InputError(problem, field="--zipf-theta", fix=f"{fix}, or draw from a model")
            requests = partial(resample_trace, workload)
        else:
            model = draw.open_workload(workload)
            if given.zipf_theta is not None:
                model = draw.with_zipf_inputs(model, given.zipf_theta)
            requests = partial(model.sample, sampler=given.sampler)
        alpha, beta_s = of.pop("alpha"), of.pop("beta_s")
        if (burstiness if kind == "varying" else alpha) is not None:
            fix = "--alpha is for varying arrivals, --burstiness for all others"
            raise InputError(f"{kind} arrivals", field="--alpha, --burstiness", fix=fix)
        parameters = draw.ArrivalParameters(
            rate_rps=rate_rps,
            alpha=options.numbers(alpha, "--alpha") if alpha else burstiness,
            beta_s=options.numbers(beta_s, "--beta-s") if beta_s else None,
            trace=of.pop("arrivals_from"),
            **of,
        )
        chosen = draw.chosen_arrivals(kind, workload, parameters)
        drawn = draw.draw_trace(requests, chosen, **extent)
        # Of a process with many numbers (a profile) the name is enough.
        facts |= {
            name: value
            for name, value in arrivals_to_plain(chosen).items()
            if name not in ("kind", "trace") and value is not None and len(str(value)) < _LONG
        }
        facts |= {"sampler": given.sampler, "arrivals": kind}
    draw.write_trace(drawn, out, form, facts)
    last_s = drawn["arrival_s"].max() if len(drawn) else 0.0
    options.say(f"{out}: {len(drawn):,} requests in {last_s:,.1f} s")


def trace_report(
    trace: Annotated[Path, typer.Argument(help="Normalised trace (see `sextant ingest`).")],
    out: Annotated[
        Path, typer.Option(dir_okay=False, help="Page, .html; the JSON goes into the same folder.")
    ],
    workload: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of a workload fitted to it, to judge the fit; may be repeated."),
    ] = None,
    seed: options.Seed = 0,
) -> None:
    """Report on a trace: traffic, burstiness, failures, lengths, and how faithful models are."""
    from sextant.pages.page import json_path
    from sextant.report.trace_characterize import write_trace_report

    report = write_trace_report(trace, workload or [], out, json_path(out), seed=seed)
    for sentence in report["takeaways"].values():
        options.say(f"- {sentence}")
    options.say(f"\nPage: {out}")
