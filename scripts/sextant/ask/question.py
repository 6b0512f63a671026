"""A question: the options of a command, as they were given, and whether they make sense."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.facts.engine import engines_with_sheets, has_cuda_graphs
from sextant.facts.llm import DTYPE_PRECISION, KV_PRECISIONS, PRECISIONS, GivenSizes, name_of
from sextant.facts.slo import SLO
from sextant.points.characterization import Characterization
from sextant.predict.predictor import PREDICTOR, configurable
from sextant.workload.lengths import RequestLengths

PIPELINE_STORE = Path("results") / "sextant.duckdb"

LEAST_RISK = 0.001
"""With a thousand draws of the law no smaller risk can be told from none."""
_ENGINE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,99}")
GIVEN_NAME = "given-sizes"
"""Name of an LLM that is described by sizes alone."""

DECISIONS = ("utility", "paper")
SPECULATION = ("speculative", "draft_tokens", "acceptance", "draft_config")
"""Fields of a question on speculative decoding."""
PARALLEL = ("data_parallel", "expert_parallel")
"""Fields of a question on the layout of a mixture of experts."""


@dataclass(frozen=True)
class Question:
    """The options of `sextant recommend` and `sextant capacity`, as they were given.

    One of the few types with more than 15 fields: each field is one option, so that an option is
    found under its own name on the command line, in Python and here.
    """

    slo: SLO
    llm_id: str | None = None
    hf_config: Path | None = None
    sizes: GivenSizes | None = None
    """Sizes of the LLM, in place of its configuration."""
    characterization: Characterization | None = None
    """Points that are in memory already, in place of `database` and `sources`."""
    database: Path | None = None
    sources: tuple[str, ...] = ()
    """Folders of characterizations, names of shipped ones, or names of sources in the store."""
    workload_id: str | None = None
    scenario_id: str | None = None
    predictor: str = PREDICTOR
    decision: str = DECISIONS[0]
    """`utility` weighs price against the probability to meet the SLO; `paper` applies eq. 1-3 of
    LLM-Pilot to the medians."""
    risk: float | None = None
    """Largest probability of missing the SLO; None: the highest expected utility."""
    gpu_profile_ids: tuple[str, ...] = ()
    """The candidates; all GPU profiles of the source if empty."""
    prices: Path | None = None
    api_prices: str | None = None
    """Prices of an API to compare with, as `find_api_prices` takes them."""
    measured_only: bool = False
    """Leave out GPUs that the sources have no points of."""
    probe: Path | None = None
    dtype: str | None = None
    """Precision of the weights (`sextant.facts.llm.PRECISIONS`), or a data type."""
    kv_dtype: str | None = None
    requests: RequestLengths | None = None
    """Lengths of the requests; those of the source's workload if None."""
    workload: str | None = None
    """Workload that `requests` come from: a request rate is simulated with its requests."""
    engine: str | None = None
    """The engine that serves; the engine of most points if None."""
    speculative: str | None = None
    """What drafts tokens (`sextant.facts.speculation.METHODS`)."""
    draft_tokens: int | None = None
    acceptance: float | None = None
    """Share of the draft tokens that is accepted, or the accepted length."""
    draft_config: Path | None = None
    """config.json of the LLM that drafts."""
    data_parallel: float | None = None
    """Copies of attention in a replica of a mixture of experts; infinite: one on each GPU."""
    expert_parallel: float | None = None
    """GPUs that share the experts out; infinite: all GPUs of the replica."""
    is_disaggregated: bool = False
    """Compare with prefill and decode on separate replicas."""
    enforce_eager: bool = False
    """The engine runs without its CUDA graphs (vLLM's option of this name)."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory that the server may use; the source's or the engine's if None."""
    max_model_len: int | None = None
    """Tokens that the longest request may have."""
    max_num_seqs: int | None = None
    """Requests that decode at once, of each copy of attention; None: as the engine ships."""
    max_num_batched_tokens: int | None = None
    """Most tokens of a step, of each copy of attention; None: as the engine ships."""
    prefix_hit_rate: float = 0.0
    """Share of the input that prefill finds in the cache."""
    is_strict: bool = False
    """Refuse a question outside of what was measured."""
    seed: int = 42

    @property
    def llm_name(self) -> str:
        """Name of the LLM: its id, what its configuration's file is called, or `GIVEN_NAME`."""
        if self.sizes is not None:
            return GIVEN_NAME
        return name_of(self.hf_config) if self.hf_config else self.llm_id or ""

    @property
    def precision(self) -> str | None:
        """Precision of the weights, None for the LLM's own."""
        return DTYPE_PRECISION.get(self.dtype or "", self.dtype)

    @property
    def kv_precision(self) -> str | None:
        """Precision of the KV cache, None for the LLM's own."""
        return DTYPE_PRECISION.get(self.kv_dtype or "", self.kv_dtype)

    @property
    def assumptions(self) -> list[str]:
        """The given options that only a prediction can use."""
        names = ("dtype", "kv_dtype", "probe")
        return [name for name in names if getattr(self, name) is not None]

    def is_answered_by_points(self, characterization: Characterization) -> bool:
        """Return whether measurements of the LLM answer by themselves, and nothing is predicted.

        A prediction is needed in four cases:

        - the points have several request lengths, or several servers: the question is of one;
        - the LLM is described by its configuration and asked about as it was not measured;
        - requests or settings differ from the measured ones;
        - the load is a request rate, which is simulated. Where the measured engines have no CUDA
          graphs, no law of a step is known, and the points answer.
        """
        points = characterization.points
        # Files name an id of Hugging Face with `__` in place of `/`.
        names = [self.llm_name, self.llm_name.replace("/", "__")]
        measured_points = points[points["llm_id"].isin(names)]
        engines = measured_points["engine"].dropna()
        has_steps = len(engines) > 0 and all(map(has_cuda_graphs, engines))
        if self.slo.request_rate_rps is not None and has_steps:
            return False

        return (
            len(measured_points) > 0
            and not characterization.has_fixed_lengths
            and not self.is_changed
        )

    @property
    def is_changed(self) -> bool:
        """Whether requests or servers are asked about as they were not measured."""
        changes = (
            self.hf_config is not None and (self.assumptions or self.risk is not None),
            self.requests,
            self.engine,
            self.enforce_eager,
            self.gpu_memory_utilization,
            self.max_model_len,
            self.max_num_seqs,
            self.max_num_batched_tokens,
            self.prefix_hit_rate,
            self.speculative,
            self.data_parallel,
            self.expert_parallel,
        )
        return any(changes)


def check_question(question: Question) -> None:
    """Raise InputError unless the options make sense, each and together."""
    descriptions = (question.llm_id, question.hf_config, question.sizes)
    if sum(description is not None for description in descriptions) != 1:
        fix = "give one of them"
        raise InputError("one LLM is needed", field="--llm, --hf-config, --parameters", fix=fix)

    _check_choices(question, {"predictor": configurable(), "decision": DECISIONS})
    check_serving(question)
    _check_pools(question)
    _check_lengths(question)

    if question.risk is not None:
        check_risk(question.risk)
    if question.risk is not None and question.decision != "utility":
        problem = "a risk needs probabilities, which --decision paper does not use"
        raise InputError(problem, field="--risk", fix="use it with --decision utility")


def check_risk(risk: float) -> None:
    """Raise InputError unless a risk is between 0 and 1, and not less than the draws can show."""
    if not 0 < risk < 1:
        fix = "give a probability between 0 and 1, e.g. 0.1"
        raise InputError(f"{risk:g} is not a risk", field="--risk", fix=fix)
    if risk < LEAST_RISK:
        problem = f"{round(1 / LEAST_RISK):,} draws cannot show a risk of {risk:g}"
        fix = f"give {LEAST_RISK:g} or more; `sextant capacity` takes more draws (--draws)"
        raise InputError(problem, field="--risk", fix=fix)


def check_serving(question: Question) -> None:
    """Raise InputError unless the options of how an LLM is served make sense, whatever the LLM."""
    choices = {
        "dtype": [None, *PRECISIONS, *DTYPE_PRECISION],
        "kv_dtype": [None, *KV_PRECISIONS, *DTYPE_PRECISION],
    }
    _check_choices(question, choices)
    _check_engine(question.engine)
    if question.enforce_eager and question.engine and not has_cuda_graphs(question.engine):
        problem = f"{question.engine} has no CUDA graphs to leave out"
        raise InputError(problem, field="--enforce-eager", fix="leave it out, or name an engine")
    if not 0 <= question.prefix_hit_rate < 1:
        fix = "give a share of the input from 0 to below 1, e.g. 0.5"
        problem = f"{question.prefix_hit_rate} is not a share"
        raise InputError(problem, field="--prefix-hit-rate", fix=fix)

    share = question.gpu_memory_utilization
    if share is not None and not 0 < share <= 1:
        fix = "give a share of a GPU's memory above 0, up to 1, e.g. 0.9"
        raise InputError(f"{share} is not a share", field="--gpu-memory-utilization", fix=fix)

    longest = question.max_model_len
    if longest is not None and longest < 1:
        fix = "give the tokens of the longest request"
        raise InputError(f"{longest} is not a length", field="--max-model-len", fix=fix)
    _check_speculation(question)


def _check_choices(question: Question, choices: Mapping[str, Collection[Any]]) -> None:
    """Raise InputError for a field that has none of its allowed values."""
    for name, allowed in choices.items():
        if (value := getattr(question, name)) not in allowed:
            fix = f"use one of {', '.join(filter(None, allowed))}"
            problem = f"unknown {name.replace('_', ' ')} {value!r}"
            raise InputError(problem, field=f"--{name.replace('_', '-')}", fix=fix)


def _check_engine(engine: str | None) -> None:
    """Raise InputError for a name that is nearly that of an engine: an unknown one is allowed."""
    engines = engines_with_sheets()
    if engine is None or engine in engines:
        return
    if not _ENGINE.fullmatch(engine):
        fix = f"give its name: {', '.join(engines)}, or another of letters, digits and . _ -"
        raise InputError(f"{engine!r} is not the name of an engine", field="--engine", fix=fix)
    if near := get_close_matches(engine.lower(), engines, 1, cutoff=0.75):
        problem = f"unknown engine {engine!r}"
        raise InputError(problem, field="--engine", fix=f"use {near[0]}, or {', '.join(engines)}")


def _check_speculation(question: Question) -> None:
    for name in SPECULATION:
        if question.speculative is None and getattr(question, name) is not None:
            field = f"--{name.replace('_', '-')}"
            fix = "name what drafts: --speculative mtp"
            raise InputError("nothing drafts", field=field, fix=fix)
    if question.acceptance is not None and question.draft_tokens is None:
        problem = "acceptance depends on the length of the draft"
        raise InputError(problem, field="--acceptance", fix="give --draft-tokens too")


def _check_pools(question: Question) -> None:
    if question.is_disaggregated and question.slo.request_rate_rps is None:
        problem = "pools are sized for requests that arrive"
        raise InputError(problem, field="--disaggregated", fix="give --request-rate")


def _check_lengths(question: Question) -> None:
    longest = question.max_model_len
    requests = question.requests
    mean = sum(length.mean for length in requests) if requests is not None else 0
    if longest is not None and longest < mean:
        problem = f"{longest} tokens are fewer than a request of mean length has ({mean:.0f})"
        fix = "raise it, or ask about shorter requests"
        raise InputError(problem, field="--max-model-len", fix=fix)

    between_tokens = [name for name in ("itl", "tpot") if name in question.slo.limits]
    if between_tokens and requests is not None and requests.outputs.mean <= 1:
        problem = "requests with an output of 1 token have no time between tokens"
        fix = "leave it out, or ask about longer outputs"
        raise InputError(problem, field=f"--{between_tokens[0]}-ms", fix=fix)
