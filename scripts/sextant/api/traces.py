"""Traces and workloads: normalise a log, fit a workload."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.api.groups import MaxInput, MaxOutput, Seed, refuse
from sextant.api.keywords import with_keywords
from sextant.api.metrics import MetricsOptions, rejected_of, report_of
from sextant.api.shown import ShownAnswer
from sextant.api.trace_choice import TraceChoiceOptions
from sextant.base.errors import InputError
from sextant.pages.blocks import Document, Note

if TYPE_CHECKING:
    from sextant.workload.fit import WorkloadFiles
    from sextant.workload.request_model import LengthCaps

_TEXT_ENDINGS = (".json", ".jsonl")


@dataclass(frozen=True, kw_only=True)
class IngestOptions:
    """How the rows of a log are read."""

    trace_format: Annotated[str | None, typer.Option("--format")] = None
    """azure, burstgpt, mooncake, qwen-bailian, openai, anthropic, litellm, langfuse, otel, sglang,
    aiperf, inference-perf, kv-cache-tester, ragpulse or sextant; prometheus for a server's metrics;
    or give --columns."""
    columns: str | None = None
    """Your own columns in place of a format, e.g.
    arrival=ts,input_tokens=usage.prompt_tokens,output_tokens=usage.completion_tokens; a|b is the
    first that has a value, a+b a sum; or a mapping file in YAML."""
    time_unit: str | None = None
    """Unit of the arrivals of --columns: s, ms, us, ns; iso, or mdy and dmy where the year comes
    last; by default as the first one looks."""
    where: str | None = None
    """Which rows are requests, e.g. call_type=completion|acompletion or model!=bge-m3."""
    status_words: str | None = None
    """Further words of the status, e.g. lost=failed,partial=ok."""
    ignore_unknown: Annotated[bool, typer.Option("--ignore-unknown")] = False
    """Leave out columns the format does not know."""
    max_rate_rps: Annotated[float, typer.Option(min=0)] = 1000.0
    """Highest mean rate that is believed, requests per second."""
    max_rejected_fraction: float = 0.01
    """Fraction of malformed rows that may be set aside, 0 to 1."""
    start_time: str | None = None
    """ISO 8601 date-time of the file's time zero, where arrivals are plain numbers; daily and
    weekly profiles need it."""


@with_keywords
def ingest(
    *,
    source: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Trace as its publisher wrote it. With --format prometheus: two snapshots of a "
            "server's /metrics, or the JSON of range queries; or none, and --prometheus."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(dir_okay=False, help="Normalised trace, Parquet.")],
    reading: IngestOptions,
    metrics: MetricsOptions,
    seed: Seed = 0,
) -> ShownAnswer:
    """Normalise a production trace; malformed rows go to OUT.rejected.parquet.

    Returns
    -------
    ShownAnswer
        The report on the rows that were read; its dictionary has the figures.

    Raises
    ------
    InputError
        The file is not in this format, or too many rows are malformed.

    Examples
    --------
    >>> import sextant
    >>> from tempfile import mkdtemp
    >>> answer = sextant.ingest(
    ...     "resources/traces/gateway-sample.jsonl", out=f"{mkdtemp()}/gateway.parquet",
    ...     format="litellm",
    ... )
    >>> answer.to_dict()["n_accepted"]
    599
    """
    from sextant.trace.job import IngestSettings, ingest_trace
    from sextant.trace.metrics_trace import PROMETHEUS
    from sextant.trace.reading import unnamed_error
    from sextant.trace.trace_format import MAPPED

    files = source or []
    if reading.trace_format == PROMETHEUS:
        settings = IngestSettings(
            columns=reading.columns,
            time_unit=reading.time_unit,
            where=reading.where,
            status_words=reading.status_words,
        )
        settings.require_none(PROMETHEUS, "columns", "time_unit", "where", "status_words")
        return _ingested(out, metrics.ingest(files, out, seed))
    metrics.refuse_without_metrics()
    if len(files) != 1:
        problem = f"{len(files)} files"
        raise InputError(problem, field="source", fix="give one, or --format prometheus")

    how = asdict(reading)
    trace_format = how.pop("trace_format")
    if trace_format is not None and reading.columns is not None:
        fix = "give --format for a published trace, or --columns for a log of your own"
        raise InputError("give one of the two", field="--format, --columns", fix=fix)
    if trace_format is None and reading.columns is None:
        raise unnamed_error(files[0])
    settings = IngestSettings(**how)
    report = ingest_trace(
        files[0], trace_format or MAPPED, out, rejected_of(out), report_of(out), settings
    )
    return _ingested(out, report)


def _ingested(out: Path, report: dict[str, Any]) -> ShownAnswer:
    """Return what was read, as lines and figures."""
    from sextant.trace.report_lines import ingest_lines

    return _written(f"{out}: ingested", ingest_lines(report, out, rejected_of(out)), report)


def _written(title: str, lines: list[str], facts: dict[str, Any]) -> ShownAnswer:
    """Return what was written, as lines and figures."""
    document = Document(title, [Note(line) for line in lines], facts)
    return ShownAnswer(result=facts, document=lambda _: document, rows=[facts])


@dataclass(frozen=True, kw_only=True)
class FitOptions(TraceChoiceOptions):
    """What a workload is made of."""

    max_input_tokens: MaxInput = None
    max_output_tokens: MaxOutput = None
    n_bins: int | None = None  #: Most bins per request parameter; 64 by default.
    tokenizer: Path | None = None  #: The LLM's tokenizer.json, to count tokens of texts.


@with_keywords
def fit(
    *,
    source: Annotated[
        str,
        typer.Argument(
            help="Normalised trace (see `sextant ingest`), a published histogram (Parquet), a "
            "file of prompts and responses (.json, .jsonl; needs --tokenizer), or the name of a "
            "use case that ships."
        ),
    ],
    out: Annotated[Path, typer.Option(file_okay=False, help="Folder of the workload.")],
    made_of: FitOptions,
    seed: Seed = 0,
) -> ShownAnswer:
    """Fit a workload (requests and arrivals) to a trace; or take its requests from elsewhere.

    Returns
    -------
    ShownAnswer
        The figures of the fit, in its dictionary.

    Raises
    ------
    InputError
        The source is neither a trace nor a histogram, texts or a use case.

    Examples
    --------
    >>> import pandas as pd
    >>> import sextant
    >>> from tempfile import mkdtemp
    >>> trace = pd.read_csv("resources/traces/azure-2023-conv-sample.csv")
    >>> answer = sextant.fit(trace, out=mkdtemp())
    >>> answer.to_dict()["n_requests"] == len(trace)
    True
    """
    from sextant.base.files import sha256_file
    from sextant.base.whole_files import atomic_folder
    from sextant.trace.choice import mixture_notes
    from sextant.workload import published
    from sextant.workload.fit import WorkloadFiles, fit_workload, write_use_case, write_workload
    from sextant.workload.request_model import N_BINS, LengthCaps

    lines: list[str] = []
    caps = LengthCaps(
        max_input_tokens=made_of.max_input_tokens, max_output_tokens=made_of.max_output_tokens
    )
    path = Path(source)
    is_use_case = source in published.use_case_names() and not path.exists()
    is_text = path.suffix in _TEXT_ENDINGS
    is_histogram = not is_use_case and not is_text and _is_histogram(path)
    is_trace = not (is_use_case or is_histogram or is_text)
    if not is_trace:
        refuse(made_of, "only a trace has LLMs and services", "llm_in_trace", "service_in_trace")
    if made_of.n_bins is not None and (is_use_case or is_histogram):
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
            figures = _fit_texts(path, files, made_of, caps, lines)
        else:
            n_bins = made_of.n_bins or N_BINS
            figures = fit_workload(
                path, files, caps=caps, n_bins=n_bins, seed=seed, choice=made_of.choice()
            )
            lines += mixture_notes(path, made_of.choice())
    return _written(f"{out}: fitted", [*lines, *_fit_lines(out, figures)], figures)


def _fit_lines(out: Path, figures: dict[str, Any]) -> list[str]:
    """Return what a fitted workload has, and how near it is to the trace."""
    from sextant.pages.words import joined, percent

    bins = f"{figures['n_joint_bins']:,} joint bins"
    n_requests = figures["n_requests"]
    lines = []
    if "clipped_fraction" in figures:
        shares = ", ".join(f"{100 * s:.1f}% of {n}" for n, s in figures["clipped_fraction"].items())
        lines.append(f"{out}: {bins}; caps shortened {shares}")
        return lines
    distances = ", ".join(f"{name} {value:.3f}" for name, value in figures["ks"].items())
    lines.append(f"{out}: {n_requests:,} requests in {bins}; KS distances: {distances}")
    cut = {side: figures[f"n_clipped_{side}"] for side in ("input", "output")}
    if any(cut.values()):
        cuts = [f"{n:,} {side}s ({percent(n / n_requests)})" for side, n in cut.items() if n]
        lines.append(f"caps shortened {joined(cuts)}: the distances are to the trace as capped")
    return lines


def _is_histogram(source: Path) -> bool:
    import pyarrow.parquet as pq

    from sextant.base.files import absence, reading
    from sextant.workload.published import use_case_names

    if not source.is_file():
        fix = f"correct its path, or give a use case: {', '.join(use_case_names())}"
        raise InputError(absence(source), file=source, fix=fix)
    fix = "give a normalised trace (`sextant ingest` makes one) or a published histogram"
    with reading(source, fix=fix):
        return "arrival_s" not in pq.read_schema(source).names


def _fit_texts(
    source: Path,
    files: "WorkloadFiles",
    made_of: FitOptions,
    caps: "LengthCaps",
    lines: list[str],
) -> dict[str, Any]:
    """Write the workload of a file of prompts and responses, and return its figures."""
    from sextant.base.files import sha256_file
    from sextant.workload.fit import write_workload
    from sextant.workload.prompts import read_conversations
    from sextant.workload.request_model import N_BINS, fit_request_model

    tokenizer = made_of.tokenizer
    n_bins = made_of.n_bins or N_BINS
    if tokenizer is None:
        fix = "give the tokenizer.json of the LLM whose tokens count; if this is a trace, "
        fix += "normalise it first: sextant ingest"
        raise InputError("texts have no token counts", file=source, field="--tokenizer", fix=fix)
    requests, n_items, n_empty = read_conversations(source, tokenizer)
    left_out = ", ".join(f"{n} {name.replace('_', ' ')}" for name, n in n_empty.items())
    lines.append(f"{source}: {len(requests):,} requests of {n_items:,} items; {left_out}")
    inputs = {"source": sha256_file(source), "tokenizer": sha256_file(tokenizer)}
    origin = {"inputs_sha256": inputs, "n_bins": n_bins}
    return write_workload(fit_request_model(requests, n_bins), files, origin=origin, caps=caps)
