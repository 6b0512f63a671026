"""Prompts as token ids, of exact length and each one different; users' prompt and response files.

Prompts are random, or cut from text. The files (UTF-8) are a JSON list or JSON Lines;
docs/workloads.md has the forms of an item.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sextant.base.errors import InputError
from sextant.workload.generators import Seed

if TYPE_CHECKING:  # the load client, which needs none of them, imports this module
    import pandas as pd
    from tokenizers import Tokenizer

FIRST_TOKEN_ID = 16  # below it tokenizers keep padding, start and end markers
_MAX_ROUNDS = 100
_BLOCK_TOKENS = 16  # that a prefix cache shares at least (vLLM's smallest block)
_AT_ONCE = 10_000  # texts that are tokenized at a time
_EMPTY = ("responses_without_text", "responses_without_prompt", "prompts_without_response",
          "requests_without_tokens")  # fmt: skip
_MAX_REPAIRS = 20
_FILLER = " a"
_TURNS = {"conversations": ("from", "value"), "messages": ("role", "content")}
"""Key of a list of turns -> keys of a turn's speaker and text."""
_PAIRS = (("instruction", "output"), ("prompt", "response"), ("prompt", "completion"))
_SPEAKERS = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "bing", "bard"), "assistant"),
    "system": "system",
}
_EXPECTED = "conversations, messages, instruction and output, or prompt and response"


class RandomTokens:
    """Prompts of ids drawn uniformly from [16, vocab_size).

    No two prompts of a call are equal, so that no prefix cache answers one with another's work.
    Prompts of different seeds are equal by chance only.
    """

    def __init__(self, vocab_size: int) -> None:
        self.n_ids = vocab_size - FIRST_TOKEN_ID
        if self.n_ids <= 0:
            fix = f"give the LLM's vocabulary, above {FIRST_TOKEN_ID}"
            raise InputError(f"a vocabulary of {vocab_size}", field="vocab_size", fix=fix)

    def prompts(self, lengths: Sequence[int] | np.ndarray, seed: Seed) -> list[np.ndarray]:
        """Return an int32 array of ids per length; the same seed gives the same prompts.

        Raises InputError: a length below 1, or a vocabulary too small for that many different
        prompts.
        """
        n_ids = self.n_ids
        lengths = _checked(lengths)
        fix = "use longer prompts or a larger vocabulary"
        for length, n_prompts in zip(*np.unique(lengths, return_counts=True), strict=True):
            if length < 64 and n_prompts > n_ids ** int(length):
                problem = f"{n_prompts} different prompts of {length} tokens from {n_ids} token ids"
                raise InputError(problem, field="input_tokens", fix=fix)

        rng = np.random.default_rng(seed)
        prompts = [np.empty(0, np.int32)] * len(lengths)
        drawn = np.arange(len(lengths))
        for _ in range(_MAX_ROUNDS):
            ends = np.cumsum(lengths[drawn])
            n = int(lengths[drawn].sum())
            tokens = rng.integers(n_ids, size=n, dtype=np.int32) + FIRST_TOKEN_ID
            for index, prompt in zip(drawn, np.split(tokens, ends[:-1]), strict=False):
                prompts[index] = prompt
            seen: dict[tuple[int, bytes], int] = {}
            # Prompts that begin with the same 64 tokens count as equal: the keys stay small.
            keys = enumerate((len(prompt), prompt[:64].tobytes()) for prompt in prompts)
            repeated = [index for index, key in keys if seen.setdefault(key, index) != index]
            if not repeated:
                return prompts
            drawn = np.array(repeated)

        raise InputError(f"{len(drawn)} prompts repeat others", field="input_tokens", fix=fix)


class CorpusTokens:
    """Prompts that are runs of a text's tokens from random places; the text is a ring.

    No two prompts of a source begin with the same 16 tokens, so that no block of a prefix cache
    serves two. Shorter prompts fill no block; they differ within a call.
    """

    def __init__(self, token_ids: Sequence[int] | np.ndarray) -> None:
        ids = np.asarray(token_ids, dtype=np.int32)
        self.n_tokens = len(ids)
        self._ring = np.concatenate([ids, ids])
        self._used: set[bytes] = set()

    def prompts(self, lengths: Sequence[int] | np.ndarray, seed: Seed) -> list[np.ndarray]:
        """Return a prompt per length. The same calls of a new source give the same prompts.

        Raises InputError: a length below 1 or above the text's, or no unused run is left.
        """
        lengths = _checked(lengths)
        short = set[bytes]()
        prompts = list[np.ndarray]()
        if len(lengths) and lengths.max() > self.n_tokens:
            problem = f"a prompt of {lengths.max()} tokens from a text of {self.n_tokens}"
            fix = "give a longer text, or cap the workload's inputs"
            raise InputError(problem, field="input_tokens", fix=fix)

        starts = np.random.default_rng(seed).integers(self.n_tokens, size=len(lengths))
        for length, start in zip(lengths.tolist(), starts.tolist(), strict=True):
            used = short if length < _BLOCK_TOKENS else self._used
            for candidate in range(start, start + self.n_tokens):
                first = candidate % self.n_tokens
                key = self._ring[first : first + min(length, _BLOCK_TOKENS)].tobytes()
                if key not in used:  # where a run is taken, the next one serves
                    used.add(key)
                    prompts.append(self._ring[first : first + length].copy())
                    break
            else:
                problem = f"no unused prompt of {length} tokens is left in a text of "
                fix = "give a longer text, or random token ids as prompts"
                raise InputError(f"{problem}{self.n_tokens}", field="input_tokens", fix=fix)

        return prompts


def load_prompt_source(
    path: str | Path, tokenizer: "Tokenizer | str | Path", *, vocab_size: int | None = None
) -> CorpusTokens:
    """Read the text that prompts are cut from, and tokenize it without special tokens.

    The file is plain text (UTF-8), or has prompts and responses (`.json`, `.jsonl`), of which the
    prompts are taken. Raises InputError: a file that is missing, malformed or without text, or has
    a token beyond `vocab_size`.
    """
    path = Path(path)
    if path.suffix in (".json", ".jsonl"):
        texts = [text for turns in _read_turns(path) for role, text in turns if role == "user"]
    else:
        try:
            texts = path.read_text(encoding="utf-8-sig").splitlines(keepends=True)
        except (OSError, UnicodeDecodeError) as error:
            fix = "give a file of UTF-8 text"
            raise InputError(f"no text to read: {error}", file=path, fix=fix) from error

    ids = [np.array(text_ids, np.int32) for text_ids in _encoded(load_tokenizer(tokenizer), texts)]
    tokens = np.concatenate([np.empty(0, np.int32), *ids])
    if not len(tokens):
        raise InputError("there is no text", file=path, fix="give a file with some text")
    if vocab_size is not None and tokens.max() >= vocab_size:
        problem = f"the text has token id {tokens.max()}, the LLM a vocabulary of {vocab_size}"
        raise InputError(problem, file=path, field="vocab_size", fix="use the LLM's own tokenizer")

    return CorpusTokens(tokens)


def _encoded(tokenizer: "Tokenizer", texts: list[str]) -> Iterator[list[int]]:
    for first in range(0, len(texts), _AT_ONCE):
        batch = texts[first : first + _AT_ONCE]
        for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
            yield encoding.ids


def prompt_text(tokenizer: "Tokenizer", token_ids: np.ndarray) -> str:
    """Return a text that the LLM's own tokenizer turns into as many tokens as `token_ids`.

    The text of a run cut out of another text, or of random ids, may have more or fewer tokens. Then
    its end is cut off or continued with " a". Raises InputError: no text of that length was found.
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


def load_tokenizer(tokenizer: "Tokenizer | str | Path") -> "Tokenizer":
    """Return the tokenizer of a `tokenizer.json`; InputError: it cannot be read."""
    if not isinstance(tokenizer, str | Path):
        return tokenizer

    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    fix = "give the tokenizer.json of the LLM's repository"
    if not path.is_file():
        raise InputError("there is no tokenizer", file=path, fix=fix)

    from tokenizers import Tokenizer

    try:
        loaded = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise InputError(f"not a tokenizer: {error}", file=path, fix=fix) from error

    # Some repositories ship it with a limit of 512 tokens, which would shorten every count.
    loaded.no_truncation()
    loaded.no_padding()

    return loaded


def read_conversations(
    path: str | Path, tokenizer: "Tokenizer | str | Path"
) -> tuple["pd.DataFrame", int, dict[str, int]]:
    """Return the lengths of a file's requests, its number of items, and what made no request.

    Each response is a request. Its input is all of the conversation before it, without chat
    template and special tokens. Turns of one side in a row are one. What made no request is counted
    by the names of `_EMPTY`. Raises InputError: no such file, an item in none of the forms, or no
    request.
    """
    import pandas as pd

    items = list(_read_turns(Path(path)))
    texts = [text for turns in items for _, text in turns]
    counts = map(len, _encoded(load_tokenizer(tokenizer), texts))
    rows = []
    n_empty = dict.fromkeys(_EMPTY, 0)
    for turns in items:
        n_before = 0
        is_asked = False
        for role, side in groupby(turns, key=lambda turn: turn[0]):
            messages = [text for _, text in side]
            has_text = any(text != "" for text in messages)
            n_tokens = sum(next(counts) for _ in messages)
            if role == "assistant":
                if not has_text:
                    n_empty["responses_without_text"] += 1
                elif not is_asked:
                    n_empty["responses_without_prompt"] += 1
                elif not (n_before and n_tokens):
                    n_empty["requests_without_tokens"] += 1
                else:
                    rows.append((n_before, n_tokens))
                is_asked = False
            elif role == "user" and has_text:
                is_asked = True
            n_before += n_tokens
        n_empty["prompts_without_response"] += is_asked

    if not rows:
        problem = f"no prompt with a response in {len(items)} items"
        raise InputError(problem, file=path, fix="give items with both")

    frame = pd.DataFrame(rows, columns=["input_tokens", "output_tokens"], dtype="int32")

    return frame, len(items), n_empty


def _read_turns(path: Path) -> Iterator[list[tuple[str, str]]]:
    """Yield role and text of the turns of each item of a file, empty texts included."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise InputError("there is no such file", file=path, fix="check the path") from error
    except UnicodeDecodeError as error:
        raise InputError(f"not UTF-8: {error}", file=path, fix="convert it to UTF-8") from error

    # Not splitlines: JSON text may hold line separators that do not end a line of JSON Lines.
    is_list = text.lstrip().startswith("[")
    lines = enumerate(text.split("\n"), start=1)
    pieces: Iterable[tuple[int | None, str]]
    pieces = [(None, text)] if is_list else ((n, line) for n, line in lines if line.strip())
    for line, piece in pieces:
        try:
            parsed = json.loads(piece)
        except (json.JSONDecodeError, RecursionError) as error:
            problem = f"not JSON: {getattr(error, 'msg', 'nested too deeply')}"
            line = line or getattr(error, "lineno", None)
            fix = "give a JSON list, or one JSON "
            raise InputError(problem, file=path, row=line, fix=fix + "object a line") from error
        for number, item in enumerate(parsed if is_list else [parsed], start=1):
            try:
                yield _turns(item)
            except InputError as error:
                error.problem = f"item {number}: {error.problem}" if is_list else error.problem
                raise error.at(file=path, row=line) from None


def _turns(item: Any) -> list[tuple[str, str]]:
    if not isinstance(item, dict):
        raise InputError("not an object", fix=f"give {_EXPECTED}")

    for key, (speaker, text) in _TURNS.items():
        if key not in item:
            continue
        if not isinstance(item[key], list) or not all(isinstance(turn, dict) for turn in item[key]):
            fix = f"give objects with {_TURNS[key]}"
            raise InputError("not a list of turns", field=key, fix=fix)
        turns = []
        for turn in item[key]:
            role = _SPEAKERS.get(str(turn.get(speaker)).lower())
            if role is None:
                fix = f"use one of {', '.join(_SPEAKERS)}"
                raise InputError(f"a turn of '{turn.get(speaker)}'", field=speaker, fix=fix)
            turns.append((role, _text(turn, text)))
        return turns

    pairs = [pair for pair in _PAIRS if pair[0] in item]
    if not pairs:
        raise InputError("neither turns nor a prompt", fix=f"give {_EXPECTED}")

    pair = next((pair for pair in pairs if pair[1] in item), None)
    if pair is None:
        fix = f"give it in addition to '{pairs[0][0]}'"
        raise InputError("missing", field=pairs[0][1], fix=fix)

    prompt, response = (_text(item, name) for name in pair)
    extra = _text(item, "input") if pair[0] == "instruction" else ""
    # Alpaca's own template separates them in this way, too.
    prompt = f"{prompt}\n\n{extra}" if prompt and extra else prompt or extra

    return [("user", prompt), ("assistant", response)]


def _text(item: dict[str, Any], key: str) -> str:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(f"{type(value).__name__} instead of text", field=key, fix="give a string")
    # White space alone is not text, though a tokenizer would find tokens in it.
    if not value or not value.strip():
        return ""
    # JSON can hold half of a surrogate pair, which no tokenizer takes.
    return value.encode("utf-8", "replace").decode("utf-8")
