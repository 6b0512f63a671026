"""The requests of a simulation: when they arrive, how long they are, what they share."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from sextant.base.errors import InputError

NO_PREFIX = -1


@dataclass(frozen=True, eq=False)
class Requests:
    """Requests in the order of their arrival; each array of shape (n,). Checked when made."""

    arrival_s: np.ndarray
    input_tokens: np.ndarray
    output_tokens: np.ndarray
    prefix_id: np.ndarray
    """Requests of the same id have the same tokens as far as `prefix_tokens` goes; -1: none."""
    prefix_tokens: np.ndarray
    """Leading tokens, of input and then output, that belong to the prefix; 0 without one."""

    def __post_init__(self) -> None:
        if not len(self.arrival_s):
            raise InputError("there are no requests", fix="give one or more")
        if any(values.shape != self.arrival_s.shape for values in vars(self).values()):
            raise InputError("arrays of different lengths", fix="give one value a request")
        arrivals = self.arrival_s
        if not np.isfinite(arrivals).all() or arrivals[0] < 0 or (np.diff(arrivals) < 0).any():
            fix = "give finite seconds from 0, ascending"
            raise InputError("arrivals are not in order", field="arrival_s", fix=fix)
        for name in ("input_tokens", "output_tokens"):
            _check_least(getattr(self, name), 1, name)
        _check_least(self.prefix_tokens, 0, "prefix_tokens")

    @classmethod
    def of(
        cls,
        arrival_s: np.ndarray,
        input_tokens: np.ndarray,
        output_tokens: np.ndarray,
        prefix_id: np.ndarray | None = None,
        prefix_tokens: np.ndarray | None = None,
    ) -> Self:
        """Return requests of any numeric arrays; without prefixes where none are given.

        Raises:
            InputError: there are none, an arrival is out of order, or a length is below 1.
        """
        if prefix_id is None or prefix_tokens is None:
            prefix_id, prefix_tokens = np.full(len(arrival_s), NO_PREFIX), np.zeros(len(arrival_s))
        tokens = (input_tokens, output_tokens, prefix_id, prefix_tokens)
        integers = (np.asarray(values).astype(np.int64) for values in tokens)
        return cls(np.asarray(arrival_s, dtype=np.float64), *integers)

    def __len__(self) -> int:
        return len(self.arrival_s)

    def repeating(self, n_prompts: int, seed: int = 0) -> Self:
        """Return the same requests, each with one of `n_prompts` whole prompts at random.

        A prompt has the input length of the first request that was given it.
        """
        if n_prompts < 1:
            raise InputError(f"{n_prompts} prompts", field="unique_prompts", fix="give 1 or more")
        ids = np.random.default_rng(seed).integers(n_prompts, size=len(self))
        chosen, first = np.unique(ids, return_index=True)
        inputs = self.input_tokens[first[np.searchsorted(chosen, ids)]]
        return type(self).of(self.arrival_s, inputs, self.output_tokens, ids, inputs)


def _check_least(values: np.ndarray, least: int, name: str) -> None:
    if (values < least).any():
        row = int(np.argmax(values < least))
        problem, fix = f"request {row} has {values[row]} tokens", f"give at least {least}"
        raise InputError(problem, field=name, fix=fix)
