"""What requests are asked about: their lengths, and the load that a number of tokens makes."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from sextant.base.errors import InputError
from sextant.facts import llm as llms
from sextant.facts.engine import has_cuda_graphs
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import LLM, GivenSizes, served
from sextant.facts.slo import SLO
from sextant.points.characterization import Characterization
from sextant.predict.predictor import JointPredictor
from sextant.predict.registry import PREDICTOR, PREDICTORS, configurable, predictor_class
from sextant.workload.lengths import RequestLengths

PIPELINE_STORE = Path("results") / "sextant.duckdb"
DECISIONS = ("utility", "paper")
SPECULATION = ("speculative", "draft_tokens", "acceptance", "draft_config")
"""Fields of a question on speculative decoding."""
PARALLEL = ("data_parallel", "expert_parallel")
"""Fields of a question on how a mixture of experts is laid out."""
GIVEN_NAME = "given-sizes"  # the name of an LLM of which only sizes are given


@dataclass(frozen=True)
class Question:
    """The options of `sextant recommend`, as they were given."""

    slo: SLO
    llm_id: str | None = None
    hf_config: Path | None = None
    sizes: GivenSizes | None = None  # in place of a config: what the user says of the LLM
    known: Characterization | None = None
    """Points that are read already, in place of `database` and `sources`."""
    database: Path | None = None
    sources: tuple[str, ...] = ()
    """Folders of characterizations, those that ship, or those of the store."""
    workload_id: str | None = None
    scenario_id: str | None = None
    predictor: str = PREDICTOR
    decision: str = DECISIONS[0]
    """`utility`: weighs price against the probability to meet the SLO; `paper`: eq. 1-3 of
    LLM-Pilot on the medians."""
    risk: float | None = None
    """Largest probability of missing the SLO; None for the highest expected utility."""
    gpu_profile_ids: tuple[str, ...] = ()  # the candidates; all of the characterization if empty
    prices: Path | None = None
    api_prices: str | None = None  # what an API asks, to compare with; as `find_api_prices` has it
    measured_only: bool = False  # leave out GPUs that the sources have no points of
    probe: Path | None = None
    dtype: str | None = None
    """Precision of the weights, one of `sextant.facts.llm.PRECISIONS`, or a data type."""
    kv_dtype: str | None = None
    requests: RequestLengths | None = None  # lengths; those of the source's workload if None
    workload: str | None = None
    """Where these lengths are from: a request rate is simulated with its requests."""
    engine: str | None = None  # what serves; that of most points if None
    speculative: str | None = None  # what drafts, one of `sextant.facts.speculation.METHODS`
    draft_tokens: int | None = None
    acceptance: float | None = None
    """Share of the draft tokens that is accepted, or the accepted length."""
    draft_config: Path | None = None  # config.json of the LLM that drafts
    data_parallel: float | None = None
    """Copies of attention in a replica of a mixture of experts, infinite for one a GPU."""
    expert_parallel: float | None = None  # GPUs that share its experts out, infinite for all
    is_disaggregated: bool = False  # compare with prefill and decode on replicas of their own
    max_model_len: int | None = None  # tokens that the longest request may have
    prefix_hit_rate: float = 0.0  # share of the input that prefill finds in the cache
    is_strict: bool = False  # refuse what lies outside of what was measured
    seed: int = 42

    @property
    def precision(self) -> str | None:
        """Precision of the weights, None for the LLM's own."""
        return llms.DTYPE_PRECISION.get(self.dtype or "", self.dtype)

    @property
    def kv_precision(self) -> str | None:
        """Precision of the KV cache, None for the LLM's own."""
        return llms.DTYPE_PRECISION.get(self.kv_dtype or "", self.kv_dtype)

    @property
    def assumptions(self) -> list[str]:
        """The options that are given and that only a prediction can use."""
        names = ("dtype", "kv_dtype", "probe")
        return [name for name in names if getattr(self, name) is not None]


def check_question(question: Question) -> None:
    """Raise InputError unless the options make sense, each and together."""
    described = (question.llm_id, question.hf_config, question.sizes)
    if sum(each is not None for each in described) != 1:
        fix = "give one of them"
        raise InputError("one LLM is needed", field="--llm, --hf-config, --parameters", fix=fix)
    known: dict[str, Collection[str | None]] = {
        "predictor": configurable(),
        "decision": DECISIONS,
        "dtype": [None, *llms.PRECISIONS, *llms.DTYPE_PRECISION],
        "kv_dtype": [None, *llms.KV_PRECISIONS, *llms.DTYPE_PRECISION],
    }
    for name, allowed in known.items():
        if (value := getattr(question, name)) not in allowed:
            fix = f"use one of {', '.join(filter(None, allowed))}"
            problem = f"unknown {name.replace('_', ' ')} {value!r}"
            raise InputError(problem, field=f"--{name.replace('_', '-')}", fix=fix)
    if not 0 <= question.prefix_hit_rate < 1:
        fix = "give a share of the input from 0 to below 1, e.g. 0.5"
        problem = f"{question.prefix_hit_rate} is not a share"
        raise InputError(problem, field="--prefix-hit-rate", fix=fix)
    for name in SPECULATION:
        if question.speculative is None and getattr(question, name) is not None:
            field, fix = f"--{name.replace('_', '-')}", "name what drafts: --speculative mtp"
            raise InputError("nothing drafts", field=field, fix=fix)
    if question.is_disaggregated and question.slo.request_rate_rps is None:
        problem, fix = "pools are sized for requests that arrive", "give --request-rate"
        raise InputError(problem, field="--disaggregated", fix=fix)
    if question.acceptance is not None and question.draft_tokens is None:
        problem, fix = "acceptance depends on the length of the draft", "give --draft-tokens too"
        raise InputError(problem, field="--acceptance", fix=fix)
    longest, requests = question.max_model_len, question.requests
    if longest is not None and longest < 1:
        fix = "give the tokens of the longest request"
        raise InputError(f"{longest} is not a length", field="--max-model-len", fix=fix)
    mean = sum(each.mean for each in requests) if requests is not None else 0
    if longest is not None and longest < mean:
        problem = f"{longest} tokens are fewer than a request of mean length has ({mean:.0f})"
        fix = "raise it, or ask about shorter requests"
        raise InputError(problem, field="--max-model-len", fix=fix)
    between = [name for name in ("itl", "tpot") if name in question.slo.limits]
    if between and requests is not None and requests.outputs.mean <= 1:
        problem = "requests with an output of 1 token have no time between tokens"
        fix = "leave it out, or ask about longer outputs"
        raise InputError(problem, field=f"--{between[0]}-ms", fix=fix)
    if question.risk is None:
        return
    if not 0 < question.risk < 1:
        fix = "give a probability between 0 and 1, e.g. 0.1"
        raise InputError(f"{question.risk} is not a risk", field="--risk", fix=fix)
    if question.decision != "utility":
        problem = "a risk needs probabilities, which --decision paper does not use"
        raise InputError(problem, field="--risk", fix="use it with --decision utility")


def make_predictor(question: Question, profiles: Mapping[str, GPUProfile]) -> JointPredictor:
    """Return the predictor that is asked for, not fitted yet.

    Raises InputError: it does not draw samples, or a library that it needs is not installed.
    """
    made = None
    if question.predictor in PREDICTORS:
        made = predictor_class(question.predictor)(question.slo, profiles, question.seed)
    if not isinstance(made, JointPredictor):
        problem = f"{question.predictor} does not draw samples, so no probability is known"
        fix = f"use --predictor {PREDICTOR}; `sextant evaluate` judges the others"
        raise InputError(problem, field="--predictor", fix=fix)
    return made


def named_llm(question: Question, known: Characterization) -> tuple[str, LLM]:
    """Return the name and the facts of the LLM that is asked about.

    One that was measured has the facts of the characterization. Another would be served in the data
    type of the measured ones, unless the question says which. Raises InputError: it is unknown, or
    another LLM of this name was measured.
    """
    llm_id, config = asked_llm_id(question), question.hf_config
    asked = question.precision, question.kv_precision
    if question.sizes is not None:
        return llm_id, served(question.sizes.llm(), *asked)
    if llm_id not in known.llms:
        if config is None:
            config = llms.shipped_config(llm_id.replace("/", "__"))
            fix = f"give {config or 'its config.json'} (--hf-config) for a prediction, or "
            fix += f"one that was measured: {', '.join(known.llms)}"
            if not PIPELINE_STORE.is_file():
                fix += "; those of the demo are known after `make demo`"
            problem = f"{known.source} has no LLM {llm_id!r}"
            raise InputError(problem, field="--llm", fix=fix)
        usual: str | None = next(iter(known.llms.values())).dtype
        if any(each.dtype is None for each in known.descriptions):  # each LLM has its own
            usual = None
        dtype = llms.DTYPES.get(question.precision or "", usual)
        return llm_id, served(llms.load_llm(llms.config_file(config), dtype), *asked)
    llm = known.llms[llm_id]
    if config is not None and llms.load_llm(llms.config_file(config), llm.dtype) != llm:
        fix = f"ask with --llm {llm_id}, or rename the file"
        problem = f"{known.source} has another LLM that is called {llm_id!r}"
        raise InputError(problem, file=config, fix=fix)
    if not answers_from_points(question, llm_id, known):
        return llm_id, served(llm, *asked)
    if given := question.assumptions:
        problem = f"{llm_id} was measured as it is: nothing is predicted of it"
        fix = "leave it out, or describe the LLM with --hf-config"
        raise InputError(problem, field=f"--{given[0].replace('_', '-')}", fix=fix)
    return llm_id, llm


def speculated(question: Question, llm_id: str, llm: LLM) -> LLM:
    """Return an LLM as the question has it speculate. Raises InputError as `speculating` does."""
    if question.speculative is None:
        return llm
    from sextant.facts.speculation import speculating  # few questions need it

    config, n = question.draft_config, question.draft_tokens or 1
    draft = llms.load_llm(llms.config_file(config)) if config else None
    return speculating(llm, llm_id, question.speculative, n, question.acceptance, draft)


def asked_llm_id(question: Question) -> str:
    """Return the name of the LLM that is asked about."""
    if question.sizes is not None:
        return GIVEN_NAME
    return llms.name_of(question.hf_config) if question.hf_config else question.llm_id or ""


def has_points(llm_id: str, known: Characterization) -> bool:
    """Return whether a characterization has points of an LLM."""
    return llm_id in set(known.points["llm_id"])


def answers_from_points(question: Question, llm_id: str, known: Characterization) -> bool:
    """Return whether measurements of an LLM answer by themselves, and nothing is predicted.

    Points of several request lengths or servers do not: the question is of one of them. Nor do
    they where the LLM is described, and asked for as it was not measured; nor of a request rate,
    which is simulated, unless what served has no CUDA graphs: then no step is known.
    """
    own = known.points[known.points["llm_id"] == llm_id]
    engines = own["engine"].dropna()
    has_steps = len(engines) > 0 and all(map(has_cuda_graphs, engines))
    if question.slo.request_rate_rps is not None and has_steps:
        return False
    is_one_workload = all(each.lengths != "fixed" for each in known.descriptions)
    is_assumed = bool(question.assumptions) or question.risk is not None
    is_changed = question.hf_config is not None and is_assumed
    # Requests or settings other than those that were measured.
    others = question.requests, question.engine, question.max_model_len, question.prefix_hit_rate
    others += tuple(getattr(question, name) for name in ("speculative", *PARALLEL))
    is_changed |= any(others)
    return len(own) > 0 and is_one_workload and not is_changed
