"""The LLM of a question: its name, its facts as it would be served, and what is known of it."""

from sextant.ask.question import PARALLEL, PIPELINE_STORE, Question
from sextant.base.errors import InputError
from sextant.facts import llm as llms
from sextant.facts.engine import has_cuda_graphs
from sextant.facts.llm import LLM, served
from sextant.points.characterization import Characterization

GIVEN_NAME = "given-sizes"
"""Name of an LLM that is described by sizes alone."""


def asked_llm_id(question: Question) -> str:
    """Return the name of the LLM that is asked about."""
    if question.sizes is not None:
        return GIVEN_NAME
    return llms.name_of(question.hf_config) if question.hf_config else question.llm_id or ""


def has_points(llm_id: str, characterization: Characterization) -> bool:
    """Return whether a characterization has points of an LLM."""
    return llm_id in set(characterization.points["llm_id"])


def answers_from_points(
    question: Question, llm_id: str, characterization: Characterization
) -> bool:
    """Return whether measurements of the LLM answer by themselves, and nothing is predicted.

    A prediction is needed in four cases:

    - the points have several request lengths, or several servers: the question is of one of them;
    - the LLM is described by its configuration and asked about as it was not measured;
    - requests or settings differ from the measured ones;
    - the load is a request rate, which is simulated. Where the measured engines have no CUDA
      graphs, no law of a step is known, and the points answer.
    """
    points = characterization.points
    measured_points = points[points["llm_id"] == llm_id]
    engines = measured_points["engine"].dropna()
    has_steps = len(engines) > 0 and all(map(has_cuda_graphs, engines))
    if question.slo.request_rate_rps is not None and has_steps:
        return False

    is_one_workload = all(
        description.lengths != "fixed" for description in characterization.descriptions
    )
    is_assumed = bool(question.assumptions) or question.risk is not None
    is_changed = question.hf_config is not None and is_assumed
    # Requests or settings other than the measured ones.
    others = question.requests, question.engine, question.max_model_len, question.prefix_hit_rate
    others += tuple(getattr(question, name) for name in ("speculative", *PARALLEL))
    is_changed |= any(others)
    return len(measured_points) > 0 and is_one_workload and not is_changed


def find_llm(question: Question, characterization: Characterization) -> LLM:
    """Return the facts of the LLM that is asked about, in the precisions of the question.

    A measured LLM has the facts of the characterization. An LLM that was not measured is taken to
    be served in the data type of the measured ones, unless the question says which.

    Raises:
        InputError: the LLM is unknown, or another LLM of this name was measured.
    """
    llm_id = asked_llm_id(question)
    precisions = question.precision, question.kv_precision
    if question.sizes is not None:
        return served(question.sizes.llm(), *precisions)
    if llm_id not in characterization.llms:
        return served(_load_unmeasured(question, llm_id, characterization), *precisions)

    llm = characterization.llms[llm_id]
    config = question.hf_config
    if config is not None and llms.load_llm(llms.config_file(config), llm.dtype) != llm:
        fix = f"ask with --llm {llm_id}, or rename the file"
        problem = f"{characterization.source} has another LLM that is called {llm_id!r}"
        raise InputError(problem, file=config, fix=fix)
    if not answers_from_points(question, llm_id, characterization):
        return served(llm, *precisions)
    if assumptions := question.assumptions:
        problem = f"{llm_id} was measured as it is: nothing is predicted of it"
        fix = "leave it out, or describe the LLM with --hf-config"
        raise InputError(problem, field=f"--{assumptions[0].replace('_', '-')}", fix=fix)
    return llm


def _load_unmeasured(question: Question, llm_id: str, characterization: Characterization) -> LLM:
    """Return the facts of the question's configuration. Raises InputError: there is none."""
    config = question.hf_config
    if config is None:
        shipped = llms.shipped_config(llm_id.replace("/", "__"))
        fix = f"give {shipped or 'its config.json'} (--hf-config) for a prediction, or "
        fix += f"one that was measured: {', '.join(characterization.llms)}"
        if not PIPELINE_STORE.is_file():
            fix += "; those of the demo are known after `make demo`"
        problem = f"{characterization.source} has no LLM {llm_id!r}"
        raise InputError(problem, field="--llm", fix=fix)

    usual_dtype: str | None = next(iter(characterization.llms.values())).dtype
    if any(description.dtype is None for description in characterization.descriptions):
        usual_dtype = None  # each LLM of the source has its own
    dtype = llms.DTYPES.get(question.precision or "", usual_dtype)
    return llms.load_llm(llms.config_file(config), dtype)


def with_speculation(question: Question, llm_id: str, llm: LLM) -> LLM:
    """Return an LLM as the question has it speculate. Raises InputError as `speculating` does."""
    if question.speculative is None:
        return llm
    from sextant.facts.speculation import speculating  # few questions need it

    draft_config = question.draft_config
    draft = llms.load_llm(llms.config_file(draft_config)) if draft_config else None
    n_draft_tokens = question.draft_tokens or 1
    return speculating(
        llm, llm_id, question.speculative, n_draft_tokens, question.acceptance, draft
    )
