"""The command line's part on workloads: fit them, draw from them, report on traces."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.base.errors import InputError
from sextant.cli.options import (
    WORKLOAD_HELP,
    ArrivalOptions,
    MaxInput,
    MaxOutput,
    Seed,
    grouped,
    say,
)

if TYPE_CHECKING:
    import pandas as pd

    from sextant.workload.request_model import RequestModel

_TEXT_ENDINGS = (".json", ".jsonl")

ReportPage = Annotated[
    Path,
    typer.Option(dir_okay=False, help="Page to write, .html; the JSON goes into the same folder."),
]

_LONG = 200
"""Letters of an arrival process's parameter from which on the provenance leaves it out."""


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
    max_input_tokens: MaxInput = None,
    max_output_tokens: MaxOutput = None,
    n_bins: Annotated[
        int | None, typer.Option(help="Most bins per request parameter; 64 by default.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The LLM's tokenizer.json, to count tokens of texts.")
    ] = None,
    seed: Seed = 0,
) -> None:
    """Fit a workload (requests and arrivals) to a trace; or take its requests from elsewhere."""
    from sextant.base.files import atomic_folder
    from sextant.pages.wording import listed, percent
    from sextant.workload.fit import fit_workload, write_use_case, write_workload
    from sextant.workload.published import use_case_names
    from sextant.workload.request_model import N_BINS

    caps: dict[str, Any] = {
        "max_input_tokens": max_input_tokens,
        "max_output_tokens": max_output_tokens,
    }
    path, is_use_case = Path(source), source in use_case_names() and not Path(source).exists()
    is_text = path.suffix in _TEXT_ENDINGS
    is_histogram = not is_use_case and not is_text and _is_histogram(path)
    if n_bins is not None and (is_use_case or is_histogram):
        fix = "leave it out: the bins are there already"
        raise InputError("nothing is binned", field="--n-bins", fix=fix)
    with atomic_folder(out, last="arrivals.json") as new:
        files = [new / name for name in ("requests.parquet", "arrivals.json", "validation.json")]
        if is_use_case:
            figures = write_use_case(source, *files, **caps)
        elif is_histogram or is_text:
            model, origin = _model_of(path, tokenizer, n_bins or N_BINS)
            figures = write_workload(model, *files, origin=origin, **caps)
        else:
            figures = fit_workload(path, *files, **caps, n_bins=n_bins or N_BINS, seed=seed)
    if not (is_use_case or is_histogram or is_text):
        distances = ", ".join(f"{name} {value:.3f}" for name, value in figures["ks"].items())
        n_requests = figures["n_requests"]
        say(
            f"{out}: {n_requests:,} requests in {figures['n_joint_bins']:,} joint bins; KS "
            f"distances: {distances}"
        )
        cut = {side: figures[f"n_clipped_{side}"] for side in ("input", "output")}
        if any(cut.values()):
            cuts = [f"{n:,} {side}s ({percent(n / n_requests)})" for side, n in cut.items() if n]
            say(f"caps shortened {listed(cuts)}: the distances are to the trace as capped")
        return
    shares = ", ".join(f"{100 * s:.1f}% of {n}" for n, s in figures["clipped_fraction"].items())
    say(f"{out}: {figures['n_joint_bins']:,} joint bins; caps shortened {shares}")


def _is_histogram(source: Path) -> bool:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from sextant.workload.published import use_case_names

    if not source.is_file():
        fix = f"correct its path, or give a use case: {', '.join(use_case_names())}"
        raise InputError("there is no such file", file=source, fix=fix)
    try:
        names = pq.read_schema(source).names
    except (OSError, pa.ArrowInvalid) as error:
        fix = "give a normalised trace (`sextant ingest` makes one) or a published histogram"
        raise InputError(f"no Parquet file ({error})", file=source, fix=fix) from None
    return "arrival_s" not in names


def _model_of(
    source: Path, tokenizer: Path | None, n_bins: int
) -> "tuple[RequestModel, dict[str, Any]]":
    """Return the request model of a histogram or of a file of texts, and where it comes from."""
    from sextant.base.files import sha256_file
    from sextant.workload.prompts import read_conversations
    from sextant.workload.published import load_request_model, require_lengths
    from sextant.workload.request_model import fit_request_model

    inputs = {"source": sha256_file(source)}
    origin: dict[str, Any] = {"inputs_sha256": inputs}
    if source.suffix not in _TEXT_ENDINGS:
        return require_lengths(load_request_model(source), source), origin
    if tokenizer is None:
        fix = (
            "give the tokenizer.json of the LLM whose tokens count; if this is a trace, "
            "normalise it first: sextant ingest"
        )
        raise InputError("texts have no token counts", file=source, field="--tokenizer", fix=fix)
    read = read_conversations(source, tokenizer)
    left_out = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in read.n_empty.items()
    )
    say(f"{source}: {len(read.requests):,} requests of {read.n_items:,} items; {left_out}")
    inputs["tokenizer"] = sha256_file(tokenizer)
    return fit_request_model(read.requests, n_bins), origin | {"n_bins": n_bins}


@grouped
def sample(
    *,
    workload: Annotated[
        str,
        typer.Option(
            help=f"{WORKLOAD_HELP} Or the folder of a service of ServeGen, for its clients' own "
            "requests and times."
        ),
    ],
    out: Annotated[Path, typer.Option(dir_okay=False, help="File to write.")],
    n: Annotated[
        int | None, typer.Option("-n", min=1, help="Most requests; give this or --duration.")
    ] = None,
    duration: Annotated[float | None, typer.Option(help="Seconds of arrivals at most.")] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="parquet, csv (by default from OUT's ending), mooncake, vllm-timed-trace.",
        ),
    ] = None,
    sampler: Annotated[
        str,
        typer.Option(
            help="joint; independent, each parameter for itself; or raw, whole requests of a "
            "normalised trace that --workload names."
        ),
    ] = "joint",
    zipf_theta: Annotated[
        float | None,
        typer.Option(min=0, help="Inputs by Zipf's law with this exponent instead, as BurstGPT's."),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            help="fitted (default), constant, poisson (default with --request-rate), gamma "
            "(default with --burstiness), windows, varying, replay or inf."
        ),
    ] = None,
    request_rate: Annotated[float | None, typer.Option(help="Requests per second.")] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(help="Shape of the Gamma gaps, as vLLM's; below 1 is burstier than Poisson."),
    ] = None,
    process: ArrivalOptions,
    seed: Seed = 0,
) -> None:
    """Draw a trace from a workload, in Sextant's format or another tool's."""
    from sextant.workload.draw import (
        check_format,
        draw_service,
        draw_trace,
        is_service,
        write_trace,
    )
    from sextant.workload.trace_arrivals import arrivals_to_plain

    form = form or out.suffix.removeprefix(".")
    check_format(form, out)
    facts: dict[str, Any] = {"workload": workload, "seed": seed}
    if is_service(workload):
        given = {"--zipf-theta": zipf_theta, "--arrivals": arrivals, "--burstiness": burstiness}
        given |= {"--sampler": None if sampler == "joint" else sampler}
        given |= {"--request-rate": request_rate} | dict.fromkeys(process.given(), True)
        for option in (name for name, value in given.items() if value is not None):
            fix = "leave it out, or name a workload"
            raise InputError(
                "ServeGen's tables have their own requests and times", field=option, fix=fix
            )
        drawn = draw_service(workload, seed=seed, n=n, duration_s=duration)
    else:
        default = "fitted" if request_rate is None else "poisson"
        kind = arrivals or (default if burstiness is None else "gamma")
        requests = _requests(workload, sampler, zipf_theta)
        chosen = process.process(kind, workload, request_rate, burstiness)
        drawn = draw_trace(requests, chosen, seed=seed, n=n, duration_s=duration)
        # Of a process with many numbers (a profile) the name is enough.
        facts |= {
            name: value
            for name, value in arrivals_to_plain(chosen).items()
            if name not in ("kind", "trace") and value is not None and len(str(value)) < _LONG
        }
        facts |= {"sampler": sampler, "arrivals": kind}
    write_trace(drawn, out, form, **facts)
    last_s = drawn["arrival_s"].max() if len(drawn) else 0.0
    say(f"{out}: {len(drawn):,} requests in {last_s:,.1f} s")


def _requests(
    workload: str, sampler: str, zipf_theta: float | None
) -> "Callable[..., pd.DataFrame]":
    """Return what draws requests when called with their number and a seed."""
    from functools import partial

    from sextant.trace.trace_format import require_trace
    from sextant.workload.draw import open_workload, with_zipf_inputs
    from sextant.workload.request_model import resample_trace

    if sampler == "raw":
        require_trace(workload)
        if zipf_theta is not None:
            fix = "leave it out, or draw from a model"
            raise InputError(
                "raw requests have the lengths they have", field="--zipf-theta", fix=fix
            )
        return partial(resample_trace, workload)
    model = open_workload(workload)
    if zipf_theta is not None:
        model = with_zipf_inputs(model, zipf_theta)
    return partial(model.sample, sampler=sampler)


def trace_report(
    trace: Annotated[Path, typer.Argument(help="Normalised trace (see `sextant ingest`).")],
    out: ReportPage,
    workload: Annotated[
        list[Path] | None,
        typer.Option(help="Folder of a workload fitted to it, to judge the fit; may be repeated."),
    ] = None,
    seed: Seed = 0,
) -> None:
    """Report on a trace: traffic, burstiness, failures, lengths, and how faithful models are."""
    from sextant.pages.page import json_path
    from sextant.report.trace_characterize import write_trace_report

    report = write_trace_report(trace, workload or [], out, json_path(out), seed=seed)
    for sentence in report["takeaways"].values():
        say(f"- {sentence}")
    say(f"\nPage: {out}")
