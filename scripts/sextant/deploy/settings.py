"""What an answer assumes of a server: the settings that its command has to state."""

import math
import re
from dataclasses import dataclass
from typing import NamedTuple

from sextant.ask.case import Case
from sextant.ask.question import Question
from sextant.ask.scheduling import Settings
from sextant.ask.start_up import StartUp
from sextant.facts.engine import memory_share, scheduler_sheet
from sextant.facts.gpu import GPUProfile
from sextant.facts.llm import (
    DTYPES,
    Speculating,
    config_file,
    kv_precision_of,
    load_llm,
    name_of,
    precision_in_name,
    precision_of,
    shipped_config,
)
from sextant.facts.llm_families import UNBOUNDED_TOKENS
from sextant.facts.startup import Startup, startup_of

MODEL_PLACE = "FILL-IN-THE-MODEL"
"""Stands where the model's name on Hugging Face, or its path, is not known."""
DRAFT_PLACE = "FILL-IN-THE-DRAFT-MODEL"
"""Stands where the name of what drafts is not known."""
_NAMED_FILE = re.compile(r"[\w.-]+?__[\w.-]+")
"""A name of Hugging Face as files have it, with `__` in place of `/`."""
_NAMED = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, kw_only=True)
class Speculation:
    """How tokens are drafted."""

    method: str
    """One of `sextant.facts.speculation.METHODS`."""
    draft_tokens: int
    draft_model: str | None
    """What drafts; None: the LLM itself, or its prompt."""


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """What a server may take, as its engine's options state it."""

    max_model_len: int | None
    """Tokens of the longest request; None: the LLM has no limit, and the engine takes its own."""
    max_num_seqs: int
    """Of one copy of attention, like the next."""
    max_num_batched_tokens: int
    memory_share: float
    """Share of each GPU's memory; of SGLang that of weights and KV cache."""


class ServedPrecisions(NamedTuple):
    """In which precisions an LLM is served."""

    dtype: str
    """Data type of what is not quantized, e.g. bfloat16."""
    weights: str
    """One of `sextant.facts.llm.PRECISIONS`."""
    checkpoint: str | None
    """Of the weights on disk; None: not known."""
    kv_cache: str

    @property
    def is_made_when_served(self) -> bool:
        """Whether an engine may make the weights from those on disk: of 16 bits, or FP8 of them."""
        return self.checkpoint in DTYPES and self.weights in (*DTYPES, "fp8")

    @property
    def is_checkpoint(self) -> bool:
        """Whether the weights on disk are those that are served."""
        return self.checkpoint in (None, self.weights)


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings:
    """The settings of one replica that an answer rests on."""

    llm_id: str
    model: str
    """Its name on Hugging Face, or `MODEL_PLACE`."""
    engine: str
    version: str
    """Of the engine; "": not stated."""
    gpu_profile: GPUProfile
    data_parallel: int
    """Copies of attention."""
    expert_parallel: int
    """GPUs that share the experts out; 1: each expert is split over all."""
    precisions: ServedPrecisions
    limits: ServerLimits
    has_prefix_caching: bool | None
    """None: as the engine does it by default, for LLMs that keep a state beside the KV cache."""
    is_eager: bool
    speculation: Speculation | None
    start_up: StartUp
    startup: Startup
    """How long a replica takes to start on a new node."""

    @property
    def tensor_parallel(self) -> int:
        """GPUs that share each copy of attention."""
        return self.gpu_profile.n_gpus // self.data_parallel

    @property
    def is_model_known(self) -> bool:
        """Whether the model's name is known."""
        return self.model != MODEL_PLACE


def settings_of(
    case: Case,
    gpu_profile: GPUProfile,
    settings: Settings | None = None,
    startup: Startup | None = None,
) -> ReplicaSettings:
    """Return what an answer to a case assumes of a replica on a GPU profile.

    Args:
        case: the LLM, and how it is served.
        gpu_profile: what the replica runs on.
        settings: of the scheduler; None: those of the question.
        startup: how long it takes to start; None: by the LLM's size.
    """
    question = case.question
    settings = settings or Settings.of(question)
    llm = case.llm
    version = case.serving.engine_version or ""
    devices = gpu_profile.devices
    start_up = case.start_up(gpu_profile)
    steps = settings.step_limits(scheduler_sheet(case.engine, version, devices))
    longest = start_up.max_model_len or case.longest_served_tokens
    share = case.memory_utilization
    data_parallel = int(case.serving.copies(gpu_profile))
    return ReplicaSettings(
        llm_id=case.llm_id,
        model=model_name_of(question),
        engine=case.engine,
        version=version,
        gpu_profile=gpu_profile,
        data_parallel=data_parallel,
        expert_parallel=_expert_parallel(question, gpu_profile, data_parallel),
        precisions=ServedPrecisions(
            dtype=llm.dtype,
            weights=precision_of(llm),
            checkpoint=_checkpoint_precision(case),
            kv_cache=case.serving.kv_precision or kv_precision_of(llm),
        ),
        limits=ServerLimits(
            max_model_len=longest if longest < UNBOUNDED_TOKENS else None,
            max_num_seqs=steps.max_num_seqs,
            max_num_batched_tokens=steps.max_num_batched_tokens,
            memory_share=memory_share(case.engine, version, devices) if share is None else share,
        ),
        has_prefix_caching=None if llm.state_bytes_per_request else settings.has_prefix_caching,
        is_eager=case.serving.enforce_eager,
        speculation=_speculation(case),
        start_up=start_up,
        startup=startup or startup_of(llm),
    )


def hub_name(name: str) -> str | None:
    """Return the name on Hugging Face, e.g. `org/name`; None where a name is none of there."""
    if _NAMED_FILE.fullmatch(name):
        return name.replace("__", "/", 1)
    return name if _NAMED.fullmatch(name) else None


def model_name_of(question: Question) -> str:
    """Return the LLM's name on Hugging Face, or `MODEL_PLACE`."""
    return hub_name(question.llm_name) or MODEL_PLACE


def _checkpoint_precision(case: Case) -> str | None:
    """Return the precision of the weights on disk; None: sizes alone are known."""
    question = case.question
    if question.sizes is not None:
        return None
    config = question.hf_config or shipped_config(question.llm_name)
    if config is None:
        return precision_of(case.measured_llms.get(case.llm_id, case.configured_llm))
    llm = load_llm(config_file(config))
    return precision_in_name(case.llm_id, llm) or precision_of(llm)


def _expert_parallel(question: Question, gpu_profile: GPUProfile, data_parallel: int) -> int:
    """Return the GPUs that share the experts out; with copies of attention these are all."""
    if data_parallel > 1 or question.expert_parallel == math.inf:
        return gpu_profile.n_gpus
    return min(int(question.expert_parallel or 1), gpu_profile.n_gpus)


def _speculation(case: Case) -> Speculation | None:
    """Return how tokens are drafted; None: they are not."""
    llm = case.llm
    if not isinstance(llm, Speculating):
        return None
    draft_model = None
    if llm.method == "eagle3":
        draft_model = DRAFT_PLACE
    elif case.question.draft_config is not None:
        draft_model = hub_name(name_of(case.question.draft_config)) or DRAFT_PLACE
    return Speculation(method=llm.method, draft_tokens=llm.draft_tokens, draft_model=draft_model)
