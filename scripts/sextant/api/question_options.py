"""Groups of options of a question: the LLM, its requests and limits, the candidates."""

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.api.groups import WORKLOAD_HELP, Database, Seed, naming_options, option_of
from sextant.base.errors import InputError
from sextant.base.numbers import number_of

if TYPE_CHECKING:
    from sextant.ask.case import Case
    from sextant.ask.question import Question
    from sextant.facts.llm import GivenSizes
    from sextant.facts.slo import SLO
    from sextant.workload.lengths import RequestLengths

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
_PARALLEL = ("data_parallel", "expert_parallel")
"""Options of a number of GPUs, or all."""
_FIELDS: dict[str | None, str] = {
    "request_rate_rps": "--request-rate",
    **{name.replace("_ms", "_percentile"): option_of(name) for name in _LIMITS},
}
VaryOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Answer again for other values, all combinations in one table: traffic=0.8,1,1.5 and "
        "price:H200=0.8,1 are factors, ttft-ms=500,1000 and input-tokens=500,2000 are values; may "
        "be given again."
    ),
]
_WITH_PERCENTILE = re.compile(r"p([0-9]+):(.*)")


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Which measurements to answer from."""

    database: Database = None
    source: list[str] | None = None
    """Measurements to answer from: a folder of points, a store, or the name of a source that ships
    or is in --database. Several count together: state it again. By default all that ship."""
    workload_id: str | None = None  #: Workload; the store's own by default.
    scenario_id: str | None = None  #: Scenario; the store's own by default.
    seed: Seed = _SEED

    def measurements(self) -> dict[str, Any]:
        """Return them as fields of a question."""
        ids = {"workload_id": self.workload_id, "scenario_id": self.scenario_id}
        sources = tuple(self.source or ())
        return {"sources": sources, "database": self.database, "seed": self.seed, **ids}


@dataclass(frozen=True, kw_only=True)
class LLMOptions:
    """The LLM that is asked about: by name, by its configuration, or by its sizes."""

    llm: str | None = None  #: An LLM of the characterization.
    hf_config: Path | None = None  #: config.json, or its folder, of an LLM never measured.
    parameters: float | None = None
    """Without a config: parameters of the LLM, e.g. 30e9; with the next ones."""
    layers: int | None = None  #: Its layers.
    kv_bytes_per_token: float | None = None  #: KV cache of a token over all layers, in 16 bits.
    active_parameters: float | None = None  #: Parameters that a token uses; all by default.
    weight_gib: float | None = None  #: Size of the weights; 2 bytes a parameter by default.

    def sizes(self) -> "GivenSizes | None":
        """Return the sizes, None without any. Raises InputError for one that is missing or wrong.

        Parameters, layers and the KV cache of a token are needed.
        """
        from sextant.facts.llm import GivenSizes

        sizes = {field: getattr(self, name) for name, field in _SIZES.items()}
        if all(size is None for size in sizes.values()):
            return None

        for name in [*_SIZES][:3]:
            if getattr(self, name) is None:
                problem = "it is needed to describe an LLM without its config"
                raise InputError(problem, field=option_of(name), fix="give it, or --hf-config")

        with naming_options({field: option_of(name) for name, field in _SIZES.items()}):
            return GivenSizes(**sizes)


@dataclass(frozen=True, kw_only=True)
class LengthOptions:
    """How long the requests are."""

    input_tokens: str | None = None
    """Input of a request: the mean, or percentiles, e.g. p50:900,p99:8000."""
    output_tokens: str | None = None  #: Output of a request, in the same way.
    workload: Annotated[
        str | None,
        typer.Option(help=f"Requests of a workload or normalised trace. {WORKLOAD_HELP}"),
    ] = None

    def lengths(self) -> "RequestLengths | None":
        """Return the lengths that are asked about, None without any."""
        from sextant.workload.length_options import parse_lengths

        return parse_lengths(self.input_tokens, self.output_tokens, self.workload)


@dataclass(frozen=True, kw_only=True)
class ServingOptions:
    """How the LLM is served."""

    engine: str | None = None  #: What serves, e.g. vllm; that of most points by default.
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory that the server may use, above 0 to 1; the engine's by default."""
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
    max_num_seqs: int | None = None
    """Requests that decode at once (vLLM's max_num_seqs); the engine's default else: 1,024 or 256
    of vLLM."""
    max_num_batched_tokens: int | None = None
    """Tokens of a step (vLLM's max_num_batched_tokens); the engine's default on the GPU else."""
    enforce_eager: Annotated[bool, typer.Option("--enforce-eager")] = False
    """The engine runs without CUDA graphs: its host launches a step's kernels one by one."""
    prefix_hit_rate: float = 0.0  #: Share of the input that the prefix cache saves, 0 to below 1.

    def of(self) -> dict[str, Any]:
        """Return them as fields of a question.

        Raises InputError for a wrong number of GPUs, and where vLLM would not start.
        """
        parts = {name: _parts(getattr(self, name), option_of(name)) for name in _PARALLEL}
        if self.max_num_seqs is not None or self.max_num_batched_tokens is not None:
            from sextant.ask.scheduling import Settings

            with naming_options({}):
                Settings(self.max_num_seqs, self.max_num_batched_tokens).check()
        return vars(self) | parts


@dataclass(frozen=True, kw_only=True)
class CaseOptions:
    """The measurements, the LLM that is asked about, its requests and how it is served."""

    store: StoreOptions = StoreOptions()
    subject: LLMOptions = LLMOptions()
    percentile: int = 50  #: Percentile of the limits: 50, 90, 95, 99; one may have its own.
    requests: LengthOptions = LengthOptions()
    serving: ServingOptions = ServingOptions()
    strict: Annotated[bool, typer.Option("--strict")] = False
    """Refuse what lies outside of what was measured."""

    @property
    def seed(self) -> int:
        """Seed of all that is drawn."""
        return self.store.seed

    def served(self, requests: "RequestLengths | None" = None) -> "Case":
        """Return the case of the LLM and the measurements, whatever the limits, load and prices.

        `requests` are those of a trace, in place of stated lengths.
        """
        from sextant.ask.case import read_case
        from sextant.ask.forecast import MEDIANS

        question = self.question(MEDIANS)
        if requests is not None:
            question = replace(question, requests=requests)
        return read_case(question, need_prices=False)

    def lengths(self) -> "RequestLengths":
        """Return the stated lengths, or those that answers assume (`Case.lengths_notes`)."""
        from sextant.workload.lengths import Length, RequestLengths

        stated = self.requests.lengths()
        if stated is not None:
            return stated
        return RequestLengths(*(Length(mean, mean) for mean in self.served().lengths[0].tolist()))

    def lengths_notes(self) -> list[str]:
        """Return which lengths are assumed; nothing where they are stated."""
        return [] if self.requests.lengths() is not None else self.served().lengths_notes

    def question(self, slo: "SLO", **more: Any) -> "Question":
        """Return what is asked; `more` are other fields of `Question`."""
        from sextant.ask.question import Question

        return Question(
            slo,
            llm_id=self.subject.llm,
            hf_config=self.subject.hf_config,
            sizes=self.subject.sizes(),
            requests=self.requests.lengths(),
            workload=self.requests.workload,
            is_strict=self.strict,
            **self.serving.of(),
            **self.store.measurements(),
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class ProbedCaseOptions(CaseOptions):
    """The same, with measurements of the LLM."""

    probe: Path | None = None
    """CSV or TSV of what was measured of this LLM: gpu_profile_id, users or request_rate_rps (of a
    replica), and any of ttft_ms, nttft_ms, itl_ms, tpot_ms, e2e_ms."""

    def question(self, slo: "SLO", **more: Any) -> "Question":
        """Return what is asked; `more` are other fields of `Question`."""
        return super().question(slo, probe=self.probe, **more)


def _parts(text: str | None, option: str) -> float | None:
    """Return a number of GPUs, infinite for all."""
    if text is None or text == "all":
        return None if text is None else math.inf
    if not (text.isascii() and text.isdecimal() and int(text)):
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
            problem = f"{self.gpu_profiles!r} has an empty name"
            fix = "separate names by commas"
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
        from sextant.facts.slo import RATES_RPS

        if sum(getattr(self, name) is not None for name in _LOADS) != 1:
            problem = "one load is needed"
            raise InputError(problem, field=option_of(*_LOADS), fix="give exactly one of them")
        if self.tokens_per_day is None:
            return {"users": self.users, "request_rate_rps": self.request_rate}
        if requests is None:
            fix = "give --input-tokens and --output-tokens, or --workload"
            problem = "tokens a day do not say how many requests: their lengths are unknown"
            raise InputError(problem, field="--tokens-per-day", fix=fix)

        rate_rps = requests.per_second(self.tokens_per_day)
        least, most = RATES_RPS
        if not least <= rate_rps <= most:
            problem = f"{self.tokens_per_day:g} tokens a day are {rate_rps:.3g} requests a second"
            rps_a_token = requests.per_second(1)
            fix = f"give {least / rps_a_token:.3g} to {most / rps_a_token:.3g}"
            raise InputError(problem, field="--tokens-per-day", fix=fix)
        return {"request_rate_rps": rate_rps}


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
        limits: dict[str, Any] = {}
        for name in _LIMITS:
            if (text := getattr(self, name)) is None:
                continue
            match = _WITH_PERCENTILE.fullmatch(text)
            if match:
                limits[name.replace("_ms", "_percentile")] = int(match[1])
            try:
                limits[name] = number_of(match[2] if match else text)
            except ValueError:
                limits[name] = math.nan
            if not 0 < limits[name] < math.inf:
                fix = "give milliseconds above 0, e.g. 1000, or at a percentile, e.g. p95:1000"
                raise InputError(f"{text!r} is not a limit", field=option_of(name), fix=fix)

        if not limits:
            fix = "give one or more of them in ms, e.g. p95:1000"
            raise InputError("no limit is given", field=option_of(*_LIMITS), fix=fix)
        return limits

    def of_each(self) -> dict[str, float]:
        """Return what each request has to keep to count as goodput.

        None has to be stated, and none may have a percentile.
        """
        limits = self.of() if self != LimitOptions() else {}
        for name in limits:
            if name.endswith("_percentile"):
                option = option_of(name.replace("_percentile", "_ms"))
                fix = "give milliseconds alone, e.g. 1000"
                raise InputError("goodput counts single requests", field=option, fix=fix)
        return limits


def slo_of_options(
    case: CaseOptions, load: LoadOptions, limits: LimitOptions, max_failed: float | None = None
) -> "SLO":
    """Return the SLO that options describe; an error names the option."""
    from sextant.facts.slo import SLO

    facts = limits.of() | load.of(case.requests.lengths()) | {"max_failed": max_failed}
    with naming_options(_FIELDS):
        return SLO("asked", **facts | {"percentile": case.percentile})


def refuse_varied_budget(vary: list[str] | None) -> None:
    """Raise InputError where a budget is varied."""
    if vary:
        fix = "leave it out, or give a load in place of the budget"
        raise InputError("a budget is asked about", field="--vary", fix=fix)
