"""Groups of options, of which a command takes a dataclass each: those of a question and those of
how results are printed."""

import inspect
import math
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import MISSING, dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from sextant.base.errors import InputError, printable
from sextant.base.files import docstrings_below
from sextant.pages.blocks import Document, as_json, as_text

if TYPE_CHECKING:
    from sextant.ask.question import Question
    from sextant.facts.slo import SLO
    from sextant.workload.lengths import RequestLengths

_WIDTH = 100  # Letters in a line of prose, where the terminal has room for them.
Seed = Annotated[
    int, typer.Option(min=0, max=2**31 - 1, help="Seed; the same seed gives the same bytes.")
]
Database = Annotated[
    Path | None,
    typer.Option(
        help="Store that the pipeline built (default: results/sextant.duckdb), or a folder of what "
        "`sextant load` has written."
    ),
]
WORKLOAD_HELP = (
    "Folder of a fitted workload, a published histogram (Parquet), or the name of a use case "
    "that ships."
)
MaxInput = Annotated[
    int | None, typer.Option(help="Cap on a request's input in tokens; none by default.")
]
MaxOutput = Annotated[
    int | None, typer.Option(help="Cap on a request's output in tokens; none by default.")
]


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may hold names or values of strangers."""
    typer.echo(printable(text, keep="\n\t"), err=err)


def print_document(document: Document, printed: str = "text", out: Path | None = None) -> None:
    """Print a document as text or JSON (with `text`); or write the page `out`, and say where. Prose
    is wrapped in a terminal alone: in a file or a pipe a sentence stays one line."""
    text = as_text(document)
    if out is not None:
        from sextant.pages.page import write_page

        write_page(document, out)
        say(f"{out}: {text.splitlines()[0]}")
    elif printed == "json":
        say(as_json(replace(document, data={**document.data, "text": text})))
    else:
        columns = min(_WIDTH, shutil.get_terminal_size().columns)
        say(as_text(document, columns) if sys.stdout.isatty() else text)


@dataclass(frozen=True, kw_only=True)
class PrintOptions:
    """How an answer is given. Raises InputError for a page without a file, or the reverse."""

    printed: Annotated[Literal["text", "json", "html"], typer.Option("--format")] = "text"
    """How to give the answer."""
    out: Annotated[Path | None, typer.Option(dir_okay=False)] = None
    """File for the page of --format html."""

    def __post_init__(self) -> None:
        if (self.out is None) == (self.printed == "html"):
            fix = "give --format html --out FILE"
            raise InputError("a page needs a file", field="--out", fix=fix)

    def print(self, document: Document) -> None:
        """Print a document, or write its page."""
        print_document(document, self.printed, self.out)


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command whose parameters that are dataclasses are given field by field: the help of
    an option is the docstring below its field. What begins with `_` is no option."""
    hints = get_type_hints(command, include_extras=True)
    parameters, groups = [], {}
    for name, parameter in inspect.signature(command).parameters.items():
        if name.startswith("_"):
            continue
        if not hasattr(hints[name], "__dataclass_fields__"):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY))
            continue
        groups[name], docs = hints[name], docstrings_below(hints[name])
        of_group = get_type_hints(hints[name], include_extras=True)
        for field in fields(hints[name]):
            hint = of_group[field.name]
            kind, *given = get_args(hint) if get_origin(hint) is Annotated else (hint,)
            option = copy(given[0]) if given else typer.Option()
            option.help = option.help or docs[field.name]
            default = inspect.Parameter.empty if field.default is MISSING else field.default
            how = {"default": default, "annotation": Annotated[kind, option]}
            parameters.append(inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, **how))

    @wraps(command)
    def call(**given: Any) -> None:
        made = {
            name: group(**{field.name: given.pop(field.name) for field in fields(group)})
            for name, group in groups.items()
        }
        command(**given, **made)

    signature = inspect.Signature(parameters)
    call.__signature__ = signature  # type: ignore[attr-defined]  # which typer reads
    call.__annotations__ = {each.name: each.annotation for each in parameters}
    return call


def option_of(*names: str) -> str:
    """Return the options of these fields, e.g. `--ttft-ms, --users`."""
    return ", ".join("--" + name.replace("_", "-") for name in names)


def refuse(group: object, problem: str, *names: str) -> None:
    """Raise InputError if one of these options of a group is given."""
    for name in names:
        if getattr(group, name) is not None:
            raise InputError(problem, field=option_of(name), fix="leave it out")


@contextmanager
def naming_options(options: Mapping[str | None, str]) -> Iterator[None]:
    """Have an InputError name the option that gave a field: by default `--` and its name."""
    try:
        yield
    except InputError as error:
        field = error.field
        if field is not None and field.startswith("-") and field not in options:
            raise
        default = field and option_of(field.removesuffix("_s"))
        raise error.at(field=options.get(field, default)) from None


def numbers(text: str, option: str) -> list[float]:
    """Return the numbers of an option, separated by commas."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        fix = "write numbers separated by commas"
        raise InputError(f"{text!r} are not numbers", field=option, fix=fix) from None


# LLM-Pilot's own seed, with which its published predictions come out.
_SEED = 42
_LIMITS = ("ttft_ms", "nttft_ms", "itl_ms", "tpot_ms", "e2e_ms")
_LOADS = ("users", "request_rate", "tokens_per_day")
_SIZES = {
    "parameters": "n_parameters",
    "layers": "n_layers",
    "kv_bytes_per_token": "kv_bytes_per_token",
    "active_parameters": "n_active_parameters",
    "weight_gib": "weight_gib",
}
"""Fields of `GivenSizes` by option; the first three are needed."""
_SPECULATION = ("speculative", "draft_tokens", "acceptance", "draft_config")
_SERVED = ("engine", "dtype", "kv_dtype", "max_model_len", "prefix_hit_rate", *_SPECULATION)
_SAME = ("hf_config", "probe", "workload", *_SERVED)  # fields of a question by the same name
_FIELDS: dict[str | None, str] = {
    "request_rate_rps": "--request-rate",
    **{name.replace("_ms", "_percentile"): option_of(name) for name in _LIMITS},
}
_WITH_PERCENTILE = re.compile(r"p([0-9]+):(.*)")


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Which measurements to answer from."""

    database: Database = None
    source: list[str] | None = None
    """Characterization to use: a folder, a store, one that ships, or one of the store; may be given
    again, and --database counts beside it."""
    workload_id: str | None = None  #: Workload; the store's own by default.
    scenario_id: str | None = None  #: Scenario; the store's own by default.
    seed: Seed = _SEED

    def measurements(self) -> dict[str, Any]:
        """Return them as fields of a question."""
        ids = {"workload_id": self.workload_id, "scenario_id": self.scenario_id}
        sources = tuple(self.source or ())
        return {"sources": sources, "database": self.database, "seed": self.seed, **ids}


@dataclass(frozen=True, kw_only=True)
class AskedOptions(StoreOptions):
    """The LLM that is asked about, its requests and how it is served."""

    llm: str | None = None  #: An LLM of the characterization.
    hf_config: Path | None = None  #: config.json, or its folder, of an LLM never measured.
    parameters: float | None = None
    """Without a config: parameters of the LLM, e.g. 30e9; with the next ones."""
    layers: int | None = None  #: Its layers.
    kv_bytes_per_token: float | None = None  #: KV cache of a token over all layers, in 16 bits.
    active_parameters: float | None = None  #: Parameters that a token uses; all by default.
    weight_gib: float | None = None  #: Size of the weights; 2 bytes a parameter by default.
    percentile: int = 50  #: Percentile of the limits: 50, 90, 95, 99; one may have its own.
    probe: Path | None = None
    """CSV or TSV of what was measured of this LLM: gpu_profile_id, users, and any of ttft_ms,
    nttft_ms, itl_ms, tpot_ms, e2e_ms."""
    input_tokens: str | None = None
    """Input of a request: the mean, or percentiles, e.g. p50:900,p99:8000."""
    output_tokens: str | None = None  #: Output of a request, in the same way.
    workload: Annotated[
        str | None,
        typer.Option(help=f"Requests of a workload or normalised trace. {WORKLOAD_HELP}"),
    ] = None
    engine: str | None = None  #: What serves, e.g. vllm; that of most points by default.
    dtype: str | None = None
    """Precision of the weights: fp32, fp16, bf16, fp8, nvfp4, mxfp4, int4, int8."""
    kv_dtype: str | None = None
    """Precision of the KV cache, e.g. fp8; the checkpoint's, or 16 bits, else."""
    speculative: str | None = None  #: Speculative decoding: mtp, eagle3, ngram or draft-model.
    draft_tokens: int | None = None
    """Tokens of a draft; by default 1, and `recommend` and `capacity` compare 1, 2, 3, 5."""
    acceptance: float | None = None
    """Share of draft tokens accepted, up to 1 (0.7), or tokens of a step, above 1 (2.1)."""
    draft_config: Path | None = None  #: config.json of the LLM that drafts.
    data_parallel: str | None = None
    """Attention DP: copies of attention in a replica of a mixture of experts, whose experts the
    GPUs share out; a number, or all: one a GPU."""
    expert_parallel: str | None = None
    """EP: GPUs that share the experts out, a number or all; 1 splits each expert over all GPUs."""
    max_model_len: int | None = None  #: Tokens that the longest request may have.
    prefix_hit_rate: float = 0.0  #: Share of the input that the prefix cache saves, 0 to below 1.
    strict: Annotated[bool, typer.Option("--strict")] = False
    """Refuse what lies outside of what was measured."""

    def requests(self) -> "RequestLengths | None":
        """Return the lengths that are asked about."""
        from sextant.workload.lengths import parse_lengths

        return parse_lengths(self.input_tokens, self.output_tokens, self.workload)

    def question(self, slo: "SLO", **more: Any) -> "Question":
        """Return what is asked; `more` are other fields of `Question`."""
        from sextant.ask.question import Question
        from sextant.facts.llm import GivenSizes

        given, sizes = {field: getattr(self, name) for name, field in _SIZES.items()}, None
        if any(value is not None for value in given.values()):
            for name in [*_SIZES][:3]:
                if getattr(self, name) is None:
                    problem = "it is needed to describe an LLM without its config"
                    raise InputError(problem, field=option_of(name), fix="give it, or --hf-config")
            with naming_options({field: option_of(name) for name, field in _SIZES.items()}):
                sizes = GivenSizes(**given)
        return Question(
            slo,
            llm_id=self.llm,
            sizes=sizes,
            requests=self.requests(),
            is_strict=self.strict,
            data_parallel=_parts(self.data_parallel, "--data-parallel"),
            expert_parallel=_parts(self.expert_parallel, "--expert-parallel"),
            **{name: getattr(self, name) for name in _SAME},
            **self.measurements(),
            **more,
        )


def _parts(text: str | None, option: str) -> float | None:
    """Return a number of GPUs, infinite for all."""
    if text is None or text == "all":
        return None if text is None else math.inf
    if not text.isdecimal() or not int(text):
        fix = "give a whole number, or all"
        raise InputError(f"{text!r} is not a number of GPUs", field=option, fix=fix)
    return float(text)


@dataclass(frozen=True, kw_only=True)
class CandidateOptions:
    """Which GPU profiles are candidates, and what they cost."""

    gpu_profiles: str | None = None  #: Candidate GPU profiles, e.g. 1xA100-40GB,4xL4-24GB.
    prices: Path | None = None
    """Prices: your CSV or TSV of gpu_profile_id, usd_per_hour, a provider that ships (aws, azure,
    lambda, runpod), or both: mine.csv,aws. The cheapest that ships else."""
    api_prices: str | None = None
    """Compare with an API: your CSV or TSV of llm_id, provider, input_usd_per_mtok,
    output_usd_per_mtok, cached_input_usd_per_mtok; providers that ship (e.g. deepinfra); or all."""
    measured_only: Annotated[bool, typer.Option("--measured-only")] = False
    """Leave out GPUs that nobody measured."""

    def of(self) -> dict[str, Any]:
        """Return them as fields of a question."""
        names = () if self.gpu_profiles is None else tuple(self.gpu_profiles.split(","))
        ids = tuple(name.strip() for name in names)
        if not all(ids):
            problem, fix = f"{self.gpu_profiles!r} has an empty name", "separate names by commas"
            raise InputError(problem, field="--gpu-profiles", fix=fix)
        names = ("prices", "api_prices", "measured_only")
        return {"gpu_profile_ids": ids, **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What to serve: one of the three."""

    users: Annotated[int | None, typer.Option(min=1)] = None  #: Concurrent users to serve.
    request_rate: float | None = None  #: Requests a second to serve, at random.
    tokens_per_day: float | None = None
    """Input and output tokens a day to serve; needs the requests' lengths."""

    def of(self, requests: "RequestLengths | None") -> dict[str, Any]:
        """Return the load as fields of an SLO. Raises InputError unless there is exactly one."""
        if sum(getattr(self, name) is not None for name in _LOADS) != 1:
            problem = "one load is needed"
            raise InputError(problem, field=option_of(*_LOADS), fix="give exactly one of them")
        if self.tokens_per_day is None:
            return {"users": self.users, "request_rate_rps": self.request_rate}
        if requests is None:
            fix = "give --input-tokens and --output-tokens, or --workload"
            problem = "tokens a day do not say how many requests: their lengths are unknown"
            raise InputError(problem, field="--tokens-per-day", fix=fix)
        if not self.tokens_per_day > 0:
            problem, fix = f"{self.tokens_per_day:g} is not a load", "give tokens a day, above 0"
            raise InputError(problem, field="--tokens-per-day", fix=fix)
        return {"request_rate_rps": requests.per_second(self.tokens_per_day)}


@dataclass(frozen=True, kw_only=True)
class LimitOptions:
    """Latency limits in ms, one or more: `1000`, or with a percentile of its own `p95:1000`."""

    ttft_ms: str | None = None  #: Limit of TTFT in ms: 1000, or at a percentile, p95:1000.
    nttft_ms: str | None = None  #: Limit of TTFT per input token.
    itl_ms: str | None = None  #: Limit of the inter-token latency.
    tpot_ms: str | None = None  #: Limit of the time per output token after the first.
    e2e_ms: str | None = None  #: Limit of the time to the last token.

    def of(self) -> dict[str, Any]:
        """Return the limits as fields of an SLO. Raises InputError for none or a wrong one."""
        found: dict[str, Any] = {}
        for name in _LIMITS:
            if (text := getattr(self, name)) is None:
                continue
            own = _WITH_PERCENTILE.fullmatch(text)
            if own:
                found[name.replace("_ms", "_percentile")] = int(own[1])
            try:
                found[name] = float(own[2] if own else text)
            except ValueError:
                found[name] = math.nan
            if not 0 < found[name] < math.inf:
                fix = "give milliseconds above 0, e.g. 1000, or at a percentile, e.g. p95:1000"
                raise InputError(f"{text!r} is not a limit", field=option_of(name), fix=fix)
        if not found:
            problem, fix = "no limit is given", "give one or more of them in ms, e.g. p95:1000"
            raise InputError(problem, field=option_of(*_LIMITS), fix=fix)
        return found

    def of_each(self) -> dict[str, float]:
        """Return what each request has to keep to count as goodput; none need be given, and none
        may have a percentile."""
        found = self.of() if self != LimitOptions() else {}
        for name in found:
            if name.endswith("_percentile"):
                option = option_of(name.replace("_percentile", "_ms"))
                fix = "give milliseconds alone, e.g. 1000"
                raise InputError("goodput counts single requests", field=option, fix=fix)
        return found


def slo_of_options(
    asked: AskedOptions, load: LoadOptions, limits: LimitOptions, max_failed: float | None = None
) -> "SLO":
    """Return the SLO that options describe; an error names the option."""
    from sextant.facts.slo import SLO

    given = limits.of() | load.of(asked.requests()) | {"max_failed": max_failed}
    with naming_options(_FIELDS):
        return SLO("asked", **given | {"percentile": asked.percentile})
