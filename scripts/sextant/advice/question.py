"""What is asked: the SLO, the LLM, the GPU profiles on offer; checked before anything runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.characterizations.characterization import Characterization
from sextant.decide.names import configurable
from sextant.experiment.slo import SLO
from sextant.hardware.gpu import GPUProfile
from sextant.llm import LLM, load_llm
from sextant.llm.config_files import config_file, name_of
from sextant.llm.facts import DTYPE_BYTES
from sextant.predict.protocols import JointPredictor, PointPredictor
from sextant.predict.registry import PREDICTORS, predictor_class

PREDICTOR = "roofline"
"""The default: it draws, so it states how certain it is."""
DECISIONS = ("utility", "paper")
KV_DTYPES = (*DTYPE_BYTES, "fp8")


@dataclass(frozen=True)
class Question:
    """The options of `sextant recommend`, as they were given."""

    slo: SLO
    llm_id: str | None = None
    hf_config: Path | None = None
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
    gpu_profile_ids: tuple[str, ...] = ()
    """The profiles on offer; all of the characterization if empty."""
    prices: Path | None = None
    probe: Path | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    seed: int = 42


def check(question: Question) -> None:
    """Raise InputError unless the options make sense, each and together."""
    if (question.llm_id is None) == (question.hf_config is None):
        fix = "give the one or the other"
        raise InputError("one LLM is needed", field="--llm, --hf-config", fix=fix)
    _one_of(question.predictor, configurable(), "--predictor")
    _one_of(question.decision, DECISIONS, "--decision")
    _one_of(question.dtype, [None, *DTYPE_BYTES], "--dtype")
    _one_of(question.kv_dtype, [None, *KV_DTYPES], "--kv-dtype")
    if question.risk is None:
        return
    if not 0 < question.risk < 1:
        fix = "give a probability between 0 and 1, e.g. 0.1"
        raise InputError(f"{question.risk} is not a risk", field="--risk", fix=fix)
    if question.decision != "utility":
        problem = "a risk needs probabilities, which --decision paper does not use"
        raise InputError(problem, field="--risk", fix="use it with --decision utility")
    if not isinstance(make_predictor(question, {}), JointPredictor):
        problem = f"a risk needs probabilities: {question.predictor} does not draw samples"
        fix = f"use a predictor that draws, e.g. --predictor {PREDICTOR}"
        raise InputError(problem, field="--risk", fix=fix)


def make_predictor(
    question: Question, profiles: Mapping[str, GPUProfile]
) -> PointPredictor | JointPredictor | None:
    """Return the predictor that is asked for, not fitted yet; None for the static policy.

    Raises:
        InputError: a library that it needs is not installed.
    """
    if question.predictor not in PREDICTORS:
        return None
    make = predictor_class(question.predictor)
    return make(question.slo, profiles, question.seed)


def _one_of(value: Any, known: Any, field: str) -> None:
    if value not in known:
        fix = f"use one of {', '.join(name for name in known if name)}"
        kind = field.removeprefix("--").replace("-", " ")
        raise InputError(f"unknown {kind} {value!r}", field=field, fix=fix)


def named_llm(question: Question, known: Characterization) -> tuple[str, LLM]:
    """Return the name and the facts of the LLM that is asked about.

    It would be served in the data type of the measured ones, unless another is asked for.

    Raises:
        InputError: it is unknown, its name is taken, or a measured LLM is given other facts.
    """
    if question.hf_config is not None:
        llm_id = name_of(question.hf_config)
        if llm_id in known.llms:
            fix = f"ask with --llm {llm_id}, or rename the file"
            problem = f"the characterization has an LLM {llm_id!r}"
            raise InputError(problem, file=question.hf_config, fix=fix)
        served = question.dtype or next(iter(known.llms.values())).dtype
        return llm_id, _served(load_llm(config_file(question.hf_config), served), question)
    llm_id = question.llm_id or ""
    if llm_id not in known.llms:
        fix = f"use one of {', '.join(known.llms)}, or --hf-config"
        raise InputError(f"unknown LLM {llm_id!r}", field="--llm", fix=fix)
    if is_measured(llm_id, known):
        for option in ("dtype", "kv_dtype", "probe", "risk"):
            if getattr(question, option) is not None:
                problem = f"{llm_id} was measured as it is: nothing is predicted of it"
                fix = "leave it out, or describe the LLM with --hf-config"
                raise InputError(problem, field=f"--{option.replace('_', '-')}", fix=fix)
        return llm_id, known.llms[llm_id]
    return llm_id, _served(known.llms[llm_id], question)


def is_measured(llm_id: str, known: Characterization) -> bool:
    """Return whether a characterization has points of an LLM."""
    return llm_id in set(known.points["llm_id"])


def _served(llm: LLM, question: Question) -> LLM:
    dtype = question.dtype or llm.dtype
    return replace(llm, dtype=dtype, kv_dtype=question.kv_dtype or llm.kv_dtype)
