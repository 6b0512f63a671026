"""The options of a question: which measurements, which LLM and requests, which load and limits."""

import math
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sextant.base.errors import InputError
from sextant.cli.options import WORKLOAD_HELP, Database, Seed, naming_options

if TYPE_CHECKING:
    from sextant.answer.question import Question, Requests
    from sextant.facts.llm import GivenSizes
    from sextant.facts.slo import SLO

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
_NEEDED_SIZES = ("parameters", "layers", "kv_bytes_per_token")
_FIELDS: dict[str | None, str] = {
    "request_rate_rps": "--request-rate",
    **{name.replace("_ms", "_percentile"): f"--{name.replace('_', '-')}" for name in _LIMITS},
}
_WITH_PERCENTILE = re.compile(r"p([0-9]+):(.*)")


def _options(names: tuple[str, ...]) -> str:
    return ", ".join("--" + name.replace("_", "-") for name in names)


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """Which measurements to answer from."""

    database: Database = None
    source: list[str] | None = None
    """Characterization to use: a folder, a store, one that ships, or one of the store; may be given
    again, and --database counts beside it."""
    workload_id: str | None = None
    """Workload; the store's own by default."""
    scenario_id: str | None = None
    """Scenario; the store's own by default."""
    seed: Seed = _SEED


@dataclass(frozen=True, kw_only=True)
class AskedOptions(StoreOptions):
    """The LLM that is asked about, its requests and how it is served."""

    llm: str | None = None
    """An LLM of the characterization."""
    hf_config: Path | None = None
    """config.json, or its folder, of an LLM never measured."""
    parameters: float | None = None
    """Without a config: parameters of the LLM, e.g. 30e9; with the next ones."""
    layers: int | None = None
    """Its layers."""
    kv_bytes_per_token: float | None = None
    """KV cache of a token over all layers, in 16 bits."""
    active_parameters: float | None = None
    """Parameters that a token uses; all by default."""
    weight_gib: float | None = None
    """Size of the weights; 2 bytes a parameter by default."""
    percentile: int = 50
    """Percentile of the limits: 50, 90, 95, 99; one may have its own."""
    probe: Path | None = None
    """CSV or TSV of what was measured of this LLM: gpu_profile_id, users, and any of ttft_ms,
    nttft_ms, itl_ms, tpot_ms, e2e_ms."""
    input_tokens: str | None = None
    """Input of a request: the mean, or percentiles, e.g. p50:900,p99:8000."""
    output_tokens: str | None = None
    """Output of a request, in the same way."""
    workload: Annotated[
        str | None,
        typer.Option(help=f"Requests of a workload or normalised trace. {WORKLOAD_HELP}"),
    ] = None
    engine: str | None = None
    """What serves, e.g. vllm; that of most points by default."""
    dtype: str | None = None
    """Precision of the weights: fp32, fp16, bf16, fp8, nvfp4, mxfp4, int4, int8."""
    kv_dtype: str | None = None
    """Precision of the KV cache, e.g. fp8; the checkpoint's, or 16 bits, else."""
    max_model_len: int | None = None
    """Tokens that the longest request may have."""
    prefix_hit_rate: float = 0.0
    """Share of the input that the prefix cache saves, 0 to below 1."""
    strict: Annotated[bool, typer.Option("--strict")] = False
    """Refuse what lies outside of what was measured."""

    def requests(self) -> "Requests | None":
        """Return the lengths that are asked about."""
        from sextant.answer.question import requests_of

        return requests_of(self.input_tokens, self.output_tokens, self.workload)

    def question(self, slo: "SLO", **more: Any) -> "Question":
        """Return what is asked; `more` are other fields of `Question`."""
        from sextant.answer.question import Question

        given = asdict(self)
        for name in ("input_tokens", "output_tokens", "workload", "percentile", *_SIZES):
            del given[name]
        given["sources"] = tuple(given.pop("source") or ())
        given["llm_id"], given["is_strict"] = given.pop("llm"), given.pop("strict")
        return Question(slo, requests=self.requests(), sizes=self._sizes(), **given, **more)

    def _sizes(self) -> "GivenSizes | None":
        from sextant.facts.llm import GivenSizes

        given = {name: getattr(self, name) for name in _SIZES}
        if all(value is None for value in given.values()):
            return None
        for name in _NEEDED_SIZES:
            if given[name] is None:
                problem = "it is needed to describe an LLM without its config"
                raise InputError(problem, field=_options((name,)), fix="give it, or --hf-config")
        with naming_options({field: _options((name,)) for name, field in _SIZES.items()}):
            return GivenSizes(**{field: given[name] for name, field in _SIZES.items()})


@dataclass(frozen=True, kw_only=True)
class CandidateOptions:
    """Which GPU profiles are candidates, and what they cost."""

    gpu_profiles: str | None = None
    """Candidate GPU profiles, e.g. 1xA100-40GB,4xL4-24GB."""
    prices: Path | None = None
    """Prices: your CSV or TSV of gpu_profile_id, usd_per_hour, a provider that ships (aws, azure,
    lambda, runpod), or both: mine.csv,aws. The cheapest that ships else."""
    measured_only: Annotated[bool, typer.Option("--measured-only")] = False
    """Leave out GPUs that nobody measured."""

    def of(self) -> dict[str, Any]:
        """Return them as fields of a question."""
        names = () if self.gpu_profiles is None else tuple(self.gpu_profiles.split(","))
        ids = tuple(name.strip() for name in names)
        if not all(ids):
            problem, fix = f"{self.gpu_profiles!r} has an empty name", "separate names by commas"
            raise InputError(problem, field="--gpu-profiles", fix=fix)
        given = {"prices": self.prices, "measured_only": self.measured_only}
        return {"gpu_profile_ids": ids, **given}


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """What to serve: one of the three."""

    users: Annotated[int | None, typer.Option(min=1)] = None
    """Concurrent users to serve."""
    request_rate: float | None = None
    """Requests a second to serve, at random."""
    tokens_per_day: float | None = None
    """Input and output tokens a day to serve; needs the requests' lengths."""

    def of(self, requests: "Requests | None") -> dict[str, Any]:
        """Return the load as fields of an SLO.

        Raises InputError: none or two are given, or tokens a day without lengths.
        """
        if sum(getattr(self, name) is not None for name in _LOADS) != 1:
            problem = "one load is needed"
            raise InputError(problem, field=_options(_LOADS), fix="give exactly one of them")
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

    ttft_ms: str | None = None
    """Limit of TTFT in ms: 1000, or at a percentile, p95:1000."""
    nttft_ms: str | None = None
    """Limit of TTFT per input token."""
    itl_ms: str | None = None
    """Limit of the inter-token latency."""
    tpot_ms: str | None = None
    """Limit of the time per output token after the first."""
    e2e_ms: str | None = None
    """Limit of the time to the last token."""

    def of(self) -> dict[str, Any]:
        """Return the limits as fields of an SLO.

        Raises InputError: none is given, or one is not a number.
        """
        found: dict[str, Any] = {}
        for name in _LIMITS:
            if (text := getattr(self, name)) is None:
                continue
            own = _WITH_PERCENTILE.fullmatch(text)
            if own:
                found[name.replace("_ms", "_percentile")] = int(own[1])
            try:
                found[name] = float(own[2] if own else text)
                if not 0 < found[name] < math.inf:
                    raise ValueError
            except ValueError:
                fix = "give milliseconds above 0, e.g. 1000, or at a percentile, e.g. p95:1000"
                raise InputError(
                    f"{text!r} is not a limit", field=_options((name,)), fix=fix
                ) from None
        if not found:
            problem, fix = "no limit is given", "give one or more of them in ms, e.g. p95:1000"
            raise InputError(problem, field=_options(_LIMITS), fix=fix)
        return found

    def of_each(self) -> dict[str, float]:
        """Return what each request has to keep to count as goodput; none need be given.

        Raises InputError: a limit is not a number, or has a percentile.
        """
        found = self.of() if self != LimitOptions() else {}
        for name in found:
            if name.endswith("_percentile"):
                option = _options((name.replace("_percentile", "_ms"),))
                fix = "give milliseconds alone, e.g. 1000"
                raise InputError("goodput counts single requests", field=option, fix=fix)
        return found


def slo_of(
    asked: AskedOptions, load: LoadOptions, limits: LimitOptions, max_failed: float | None = None
) -> "SLO":
    """Return the SLO that options describe; an error names the option."""
    from sextant.facts.slo import SLO

    given = limits.of() | load.of(asked.requests()) | {"max_failed": max_failed}
    with naming_options(_FIELDS):
        return SLO("asked", **given | {"percentile": asked.percentile})
