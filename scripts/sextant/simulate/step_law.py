"""The law of an engine step: how long it takes, given what it computes."""

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

    Fields may be arrays, of many laws at once: fits take them so, the simulator one at a time.
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
            value = np.asarray(getattr(self, field.name), float)
            is_bad = np.isnan(value) | (value < 0) | (np.isinf(value) & (field.name != "overlap"))
            if is_bad.any():
                fix = "give a finite number from 0"
                problem = f"{value[is_bad].ravel()[0]} is not a term of a step"
                raise InputError(problem, field=field.name, fix=fix)
        if np.any(self.overlap < 1) or np.any(self.expert_share > 1):
            fix = "give an overlap from 1, and at most 1 as the share of experts"
            raise InputError("not a law", field="overlap, expert_share", fix=fix)
        if np.any(self.floor_ms + self.dense_ms + self.sequence_ms <= 0):
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

    def step_ms(self, prompt_tokens: Any, sequences: Any, context: Any, pairs: Any) -> Any:
        """Return the time of a step; takes arrays too."""
        prefill = self.prefill_token_ms * prompt_tokens + self.prefill_pair_ms * pairs
        weights = self.weights_ms(prompt_tokens + sequences)
        longer = np.maximum(np.maximum(weights, prefill), 1e-12)
        # As shares of the longer one, so that an infinite overlap is right too.
        shares = (weights / longer) ** self.overlap + (prefill / longer) ** self.overlap
        body = longer * shares ** (1 / np.asarray(self.overlap, float))
        floor = self.floor_ms + self.prompt_step_ms * np.greater(prompt_tokens, 0)
        return floor + body + self.sequence_ms * sequences + self.kv_token_ms * context


NAMES = tuple(field.name for field in fields(StepLaw))
