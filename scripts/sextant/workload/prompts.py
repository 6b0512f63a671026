"""Prompts as token ids, of exact length and each one different: random, or cut from text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from tokenizers import Tokenizer

from sextant.base.errors import InputError
from sextant.workload.conversations import load_tokenizer, read_turns
from sextant.workload.seeds import Seed

FIRST_TOKEN_ID = 16
"""Ids below are left alone: tokenizers keep padding, start and end markers there."""
_MAX_ROUNDS = 100
_BLOCK_TOKENS = 16
"""Tokens that a prefix cache shares at least (vLLM's smallest block)."""
_TEXTS_AT_ONCE = 10_000
_MAX_REPAIRS = 20
_FILLER = " a"


class PromptSource(Protocol):
    """What makes the prompts of a workload."""

    def prompts(self, lengths: Sequence[int] | np.ndarray, seed: Seed) -> list[np.ndarray]:
        """Return an int32 array of token ids per length, in their order, each one different."""
        ...


class RandomTokens:
    """Prompts of ids drawn uniformly from [16, vocab_size), for a server without a tokenizer.

    No two prompts of a call are equal, so that a server's prefix cache cannot answer one with
    another's work. Prompts of different calls differ if their seeds do, except by chance.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def prompts(self, lengths: Sequence[int] | np.ndarray, seed: Seed) -> list[np.ndarray]:
        """Return a prompt per length; same seed, same prompts.

        Raises InputError: a length below 1, a vocabulary of 16 or fewer, or more prompts of one
        length than the vocabulary can tell apart.
        """
        n_ids = self._vocab_size - FIRST_TOKEN_ID
        if n_ids <= 0:
            fix = f"give the LLM's vocabulary, above {FIRST_TOKEN_ID}"
            raise InputError(f"a vocabulary of {self._vocab_size}", field="vocab_size", fix=fix)
        lengths = _checked(lengths)
        _check_room(lengths, n_ids)
        rng = np.random.default_rng(seed)
        prompts = self._draw(rng, lengths)
        for _ in range(_MAX_ROUNDS):
            repeated = _repeated(prompts)
            if not repeated:
                return prompts
            for place, prompt in zip(repeated, self._draw(rng, lengths[repeated]), strict=True):
                prompts[place] = prompt
        fix = "use longer prompts or a larger vocabulary"
        raise InputError(f"{len(repeated)} prompts repeat others", field="input_tokens", fix=fix)

    def _draw(self, rng: np.random.Generator, lengths: np.ndarray) -> list[np.ndarray]:
        tokens = rng.integers(FIRST_TOKEN_ID, self._vocab_size, int(lengths.sum()), dtype=np.int32)
        return np.split(tokens, np.cumsum(lengths)[:-1]) if len(lengths) else []


class CorpusTokens:
    """Prompts that are runs of a text's tokens, from seeded places.

    No two prompts that a source makes in its life begin with the same 16 tokens, so that no block
    of a prefix cache serves two of them. Shorter ones, which fill no block, differ within a call.
    Where a run is taken already, the next one that is not is used; the text is a ring.
    """

    def __init__(self, token_ids: Sequence[int] | np.ndarray) -> None:
        """Take a text's tokens, in its order; raise InputError if there are none."""
        ids = np.asarray(token_ids, dtype=np.int32)
        if not len(ids):
            fix = "give a file with some text"
            raise InputError("the text has no tokens", field="prompts", fix=fix)
        self.n_tokens = len(ids)
        self._ring = np.concatenate([ids, ids])
        self._used: set[bytes] = set()

    def prompts(self, lengths: Sequence[int] | np.ndarray, seed: Seed) -> list[np.ndarray]:
        """Return a prompt per length. The same calls of a new source give the same prompts.

        Raises InputError: a length below 1 or above the text's, or no unused run is left.
        """
        lengths = _checked(lengths)
        if len(lengths) and lengths.max() > self.n_tokens:
            problem = f"a prompt of {lengths.max()} tokens from a text of {self.n_tokens}"
            fix = "give a longer text, or cap the workload's inputs"
            raise InputError(problem, field="input_tokens", fix=fix)
        starts = np.random.default_rng(seed).integers(self.n_tokens, size=len(lengths))
        short: set[bytes] = set()
        return [
            self._unused(length, start, short if length < _BLOCK_TOKENS else self._used)
            for length, start in zip(lengths.tolist(), starts.tolist(), strict=True)
        ]

    def _unused(self, length: int, start: int, used: set[bytes]) -> np.ndarray:
        for place in range(start, start + self.n_tokens):
            first = place % self.n_tokens
            key = self._ring[first : first + min(length, _BLOCK_TOKENS)].tobytes()
            if key not in used:
                used.add(key)
                return self._ring[first : first + length].copy()
        problem = f"no unused prompt of {length} tokens is left in a text of {self.n_tokens}"
        fix = "give a longer text, or random token ids as prompts"
        raise InputError(problem, field="input_tokens", fix=fix)


def load_prompt_source(
    path: str | Path, tokenizer: Tokenizer | str | Path, *, vocab_size: int | None = None
) -> CorpusTokens:
    """Read the text that prompts are cut from, and tokenize it without special tokens.

    Args:
        path: plain text (UTF-8), or a prompt/response file (`.json`, `.jsonl`; see
            `read_conversations`), of which the prompts are taken, one after the other.
        tokenizer: the LLM's own, or the path of its `tokenizer.json`.
        vocab_size: of the LLM, which then must have every token of the text.

    Raises:
        InputError: a file that is missing, malformed or without text, or a tokenizer of
            another LLM.
    """
    path = Path(path)
    if path.suffix in (".json", ".jsonl"):
        texts = [turn.text for turns in read_turns(path) for turn in turns if turn.role == "user"]
    else:
        try:
            texts = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
        except (OSError, UnicodeDecodeError) as error:
            fix = "give a file of UTF-8 text"
            raise InputError(f"no text to read: {error}", file=path, fix=fix) from error
    tokens = _token_ids(texts, load_tokenizer(tokenizer))
    if not len(tokens):
        raise InputError("there is no text", file=path, fix="give a file with some text")
    if vocab_size is not None and tokens.max() >= vocab_size:
        problem = f"the text has token id {tokens.max()}, the LLM a vocabulary of {vocab_size}"
        raise InputError(problem, file=path, field="vocab_size", fix="use the LLM's own tokenizer")
    return CorpusTokens(tokens)


def _token_ids(texts: list[str], tokenizer: Tokenizer) -> np.ndarray:
    ids = [np.empty(0, np.int32)]
    for first in range(0, len(texts), _TEXTS_AT_ONCE):
        batch = texts[first : first + _TEXTS_AT_ONCE]
        encoded = tokenizer.encode_batch_fast(batch, add_special_tokens=False)
        ids += [np.array(encoding.ids, np.int32) for encoding in encoded]
    return np.concatenate(ids)


def as_text(tokenizer: Tokenizer, token_ids: np.ndarray) -> str:
    """Return a text that the LLM's own tokenizer turns into as many tokens as `token_ids`.

    A run cut out of a text need not encode to the same tokens by itself, nor do random ids: where
    their number differs, the end is cut off or continued with " a" until it agrees. Special tokens
    that a server adds come on top.

    Raises:
        InputError: the number could not be brought to agree.
    """
    wanted = len(token_ids)
    text = tokenizer.decode(list(map(int, token_ids)), skip_special_tokens=False)
    for n_spare in range(_MAX_REPAIRS):
        encoding = tokenizer.encode(text, add_special_tokens=False)
        if len(encoding) == wanted:
            return text
        if len(encoding) < wanted:
            text += _FILLER * (wanted - len(encoding))
        else:
            # The end of a token may lie within a character, and the cut text so have more
            # tokens than hoped for: cut a little more each time.
            text = text[: encoding.offsets[max(wanted - 1 - n_spare, 0)][1]]
    problem = f"no text of exactly {wanted} tokens was found, but one of {len(encoding)}"
    raise InputError(problem, field="prompts", fix="send token ids, or cut prompts from a text")


def _checked(lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    lengths = np.asarray(lengths, dtype=np.int64)
    if len(lengths) and lengths.min() < 1:
        fix = "give 1 or more tokens"
        raise InputError(f"a prompt of {lengths.min()} tokens", field="input_tokens", fix=fix)
    return lengths


def _check_room(lengths: np.ndarray, n_ids: int) -> None:
    for length, n_prompts in zip(*np.unique(lengths, return_counts=True), strict=True):
        if length < 64 and n_prompts > n_ids ** int(length):
            problem = f"{n_prompts} different prompts of {length} tokens from {n_ids} token ids"
            fix = "use longer prompts or a larger vocabulary"
            raise InputError(problem, field="input_tokens", fix=fix)


def _repeated(prompts: list[np.ndarray]) -> list[int]:
    seen: set[bytes] = set()
    places = []
    for place, prompt in enumerate(prompts):
        key = prompt.tobytes()
        if key in seen:
            places.append(place)
        seen.add(key)
    return places
