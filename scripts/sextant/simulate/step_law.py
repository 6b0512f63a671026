"""The law of an engine step: how long it takes, given what it computes."""

import math
from dataclasses import astuple, dataclass, fields
from typing import Any, Self

import numpy as np

from sextant.base.errors import InputError


@dataclass(frozen=True)
class StepLaw:
    """Time of one engine step. With P prompt tokens, D decoding sequences and C tokens of context:

        t = floor_ms + prompt_step_ms [P > 0] + (weights(D + P) ∘ prefill)
            + sequence_ms D + kv_token_ms C
        weights(n) = dense_ms + expert_ms (1 − (1 − expert_share)^(n^touch))
        prefill = prefill_token_ms P + prefill_pair_ms pairs
        a ∘ b = (a^overlap + b^overlap)^(1/overlap)

    C counts the tokens that all decoding sequences read, the newest of each included; pairs are
    those of a prompt token and a token that it looks back on, itself included. Reading the weights
    and multiplying a prompt overlap: with `overlap` 1 they add up, with infinity the longer counts.
    """

    floor_ms: float
    dense_ms: float
    sequence_ms: float
    kv_token_ms: float
    prefill_token_ms: float
    prefill_pair_ms: float = 0.0
    prompt_step_ms: float = 0.0
    expert_ms: float = 0.0
    """Time to read all experts; 0 for a dense LLM."""
    expert_share: float = 0.0
    """Share of the experts that one token uses."""
    touch: float = 1.0
    overlap: float = 1.0
    request_ms: float = 0.0
    """What the deployment adds before a request reaches the scheduler; no engine is held by it."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if math.isnan(value) or value < 0 or (math.isinf(value) and field.name != "overlap"):
                fix = "give a finite number from 0"
                raise InputError(f"{value} is not a term of a step", field=field.name, fix=fix)
        if self.overlap < 1 or self.expert_share > 1:
            fix = "give an overlap from 1, and at most 1 as the share of experts"
            raise InputError("not a law", field="overlap, expert_share", fix=fix)
        if self.floor_ms + self.dense_ms + self.sequence_ms <= 0:
            fix = "give floor_ms, dense_ms or sequence_ms"
            raise InputError("a step takes no time", field="floor_ms", fix=fix)

    def array(self) -> np.ndarray:
        """Return the terms in `NAMES`' order, float64 of shape (12,)."""
        return np.array(astuple(self))

    @classmethod
    def of(cls, values: np.ndarray) -> Self:
        """Return the law of `array`'s values."""
        return cls(*map(float, values))

    def weights_ms(self, tokens: Any) -> Any:
        """Return the time to read the weights that so many tokens touch; takes arrays too."""
        touched = 1 - (1 - self.expert_share) ** (np.maximum(tokens, 1) ** self.touch)
        return self.dense_ms + self.expert_ms * touched

    def step_ms(self, prompt_tokens: int, sequences: int, context: int, pairs: float) -> float:
        """Return the time of a step."""
        prefill = self.prefill_token_ms * prompt_tokens + self.prefill_pair_ms * pairs
        body = self.weights_ms(prompt_tokens + sequences)
        if self.overlap == 1:
            body += prefill
        elif math.isinf(self.overlap):
            body = max(body, prefill)
        elif prompt_tokens:
            body = (body**self.overlap + prefill**self.overlap) ** (1 / self.overlap)
        floor = self.floor_ms + (self.prompt_step_ms if prompt_tokens else 0.0)
        return float(floor + body + self.sequence_ms * sequences + self.kv_token_ms * context)


NAMES = tuple(field.name for field in fields(StepLaw))
