"""Prompts as token ids: random, of exact length, each one different."""

from collections.abc import Sequence

import numpy as np

from sextant.errors import InputError

FIRST_TOKEN_ID = 16
"""Ids below are left alone: tokenizers keep padding, start and end markers there."""
_MAX_ROUNDS = 100


def random_token_ids(
    lengths: Sequence[int] | np.ndarray, vocab_size: int, seed: int | np.random.SeedSequence
) -> list[np.ndarray]:
    """Draw one prompt per length, uniformly over the vocabulary.

    No two prompts are equal, so that a server's prefix cache cannot answer one with
    another's work. Use `.tolist()` on a prompt that goes into a JSON body.

    Args:
        lengths: tokens of each prompt, 1 or more.
        vocab_size: size of the LLM's vocabulary; ids are in [16, vocab_size).
        seed: same seed, same prompts.

    Returns:
        An int32 array per prompt, in the order of `lengths`.

    Raises:
        InputError: a length below 1, a vocabulary of 16 or fewer, or more prompts of one
            length than the vocabulary can tell apart.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    if vocab_size <= FIRST_TOKEN_ID:
        fix = f"give the LLM's vocabulary, above {FIRST_TOKEN_ID}"
        raise InputError(f"a vocabulary of {vocab_size}", field="vocab_size", fix=fix)
    if len(lengths) and lengths.min() < 1:
        fix = "give 1 or more tokens"
        raise InputError(f"a prompt of {lengths.min()} tokens", field="input_tokens", fix=fix)
    _check_room(lengths, vocab_size - FIRST_TOKEN_ID)
    rng = np.random.default_rng(seed)
    prompts = _draw(rng, lengths, vocab_size)
    for _ in range(_MAX_ROUNDS):
        repeated = _repeated(prompts)
        if not repeated:
            return prompts
        for place, prompt in zip(repeated, _draw(rng, lengths[repeated], vocab_size), strict=True):
            prompts[place] = prompt
    fix = "use longer prompts or a larger vocabulary"
    raise InputError(f"{len(repeated)} prompts repeat others", field="input_tokens", fix=fix)


def _check_room(lengths: np.ndarray, n_ids: int) -> None:
    for length, n_prompts in zip(*np.unique(lengths, return_counts=True), strict=True):
        if length < 64 and n_prompts > n_ids ** int(length):
            problem = f"{n_prompts} different prompts of {length} tokens from {n_ids} token ids"
            fix = "use longer prompts or a larger vocabulary"
            raise InputError(problem, field="input_tokens", fix=fix)


def _draw(rng: np.random.Generator, lengths: np.ndarray, vocab_size: int) -> list[np.ndarray]:
    tokens = rng.integers(FIRST_TOKEN_ID, vocab_size, int(lengths.sum()), dtype=np.int32)
    return np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else []


def _repeated(prompts: list[np.ndarray]) -> list[int]:
    """Return the places of prompts that stand earlier in the list already."""
    seen: set[bytes] = set()
    places = []
    for place, prompt in enumerate(prompts):
        key = prompt.tobytes()
        if key in seen:
            places.append(place)
        seen.add(key)
    return places
