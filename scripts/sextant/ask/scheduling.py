"""How a replica of an asked LLM schedules: what is stated, else what the engine ships."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from sextant.ask.case import Case
from sextant.ask.question import Question
from sextant.base.errors import InputError
from sextant.facts.engine import DEFAULT_ENGINE, EngineScheduler, scheduler_sheet
from sextant.facts.gpu import Devices, GPUProfile
from sextant.simulate.server import Scheduler

_ANY_TOKENS = 1_000_000
"""Of a KV cache and a request, where only the other settings are checked."""
MOST_STEP_TOKENS = 2**24
"""Most tokens of a step that can be asked for, more than any GPU computes at once."""


class StepLimits(NamedTuple):
    """The most that a step of one copy of attention takes."""

    max_num_seqs: int
    max_num_batched_tokens: int


@dataclass(frozen=True)
class Settings:
    """Settings of the scheduler, under vLLM's names, and how long a client waits."""

    max_num_seqs: int | None = None
    """The engine's default if None."""
    max_num_batched_tokens: int | None = None
    """The engine's default if None."""
    timeout_s: float = float("inf")
    has_prefix_caching: bool = True

    @classmethod
    def of(
        cls, question: Question, timeout_s: float = float("inf"), *, has_prefix_caching: bool = True
    ) -> Self:
        """Return the settings of the servers that a question is about."""
        sizes = question.max_num_seqs, question.max_num_batched_tokens
        return cls(*sizes, timeout_s, has_prefix_caching)

    def check(self) -> None:
        """Raise InputError where vLLM would not start with these settings."""
        # The defaults of a replica's own GPU are at most those of the largest.
        self.scheduler(_ANY_TOKENS, _ANY_TOKENS, Devices("gpu", 1, math.inf))

    def step_limits(self, sheet: EngineScheduler) -> StepLimits:
        """Return the limits of a step: those that are stated, else the engine's."""
        tokens = self.max_num_batched_tokens
        # A step has room for its sequences: vLLM lowers its own default to the stated tokens.
        most = sheet.max_num_seqs if tokens is None else min(sheet.max_num_seqs, tokens)
        return StepLimits(
            most if self.max_num_seqs is None else self.max_num_seqs,
            sheet.max_num_batched_tokens if tokens is None else tokens,
        )

    def scheduler(
        self,
        kv_tokens: int,
        longest_tokens: int,
        devices: Devices,
        engine: str = DEFAULT_ENGINE,
        engine_version: str | None = None,
        copies: float = 1,
    ) -> Scheduler:
        """Return the scheduler of a replica. Raises InputError as `Scheduler` does.

        Args:
            kv_tokens: size of the KV cache, of all copies of attention together.
            longest_tokens: tokens of the longest request.
            devices: of the replica; defaults of the engine depend on them.
            engine: its defaults hold where a setting is None.
            engine_version: None for the newest.
            copies: of attention; each plans steps of its own, with its own sequences and tokens.
        """
        sheet = scheduler_sheet(engine, engine_version or "", devices)
        tokens = self.max_num_batched_tokens
        if tokens is not None and tokens < 1:
            problem = f"{tokens} is not above 0"
            fix = "give a number above 0"
            raise InputError(problem, field="--max-num-batched-tokens", fix=fix)
        if tokens is not None and tokens > MOST_STEP_TOKENS:
            fix = f"give {MOST_STEP_TOKENS:,} or fewer"
            problem = f"no step has {tokens:,} tokens"
            raise InputError(problem, field="--max-num-batched-tokens", fix=fix)
        if tokens is not None and kv_tokens < 1:
            problem = f"steps of {tokens:,} tokens leave no memory for the KV cache"
            raise InputError(problem, field="--max-num-batched-tokens", fix="lower it")
        limits = self.step_limits(sheet)
        scheduler = Scheduler(
            kv_tokens,
            limits.max_num_seqs * int(copies),
            limits.max_num_batched_tokens * int(copies),
            has_prefix_caching=self.has_prefix_caching,
            is_asynchronous=sheet.is_asynchronous,
            reserved_share=sheet.reserved_share,
            prompts_first=sheet.prompts_first,
            timeout_s=self.timeout_s,
        )
        return replace(scheduler, max_model_len=min(longest_tokens, scheduler.longest))


def scheduler_of(case: Case, settings: Settings, profile: GPUProfile) -> Scheduler:
    """Return how a replica of the LLM on a GPU profile schedules."""
    memory = case.memory_on(profile)
    return settings.scheduler(
        memory.kv_tokens(sum(case.mean_lengths.values())),
        case.longest_served_tokens,
        profile.devices,
        case.engine,
        case.serving.engine_version,
        case.serving.copies(profile),
    )
