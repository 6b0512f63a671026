"""Sources whose lines do not have block ids: their lines become requests that have them.

A session of kv-cache-tester (Weka's traces, too) is one of a coding agent: a tree of `requests`, in
which an agent may have requests itself, with prompts as blocks or runs of blocks. Block ids count
within one session. Each request becomes a line of JSON.

A line of RAGPulse is a row of CSV: a prompt put together from parts, with the parts' ids by kind.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from math import ceil
from pathlib import Path
from typing import Any

from sextant.base.errors import InputError
from sextant.trace.documents import json_value, json_values, read_text_blocks

Split = Callable[[str], dict[str, Any] | str]
"""Returns the values of a line by name, or what is wrong with the line."""
_IDS_A_SESSION = 1 << 32
_MOST_TOKENS = 10_000_000
_MOST_BLOCKS = 4_000_000
"""Blocks of all prompts of a session: a thousand requests of 256,000 tokens in blocks of 64."""
_MOST_OF_PARTS = 1_000_000
"""Tokens of a prompt that is put together from parts."""
_LEAST_BLOCK_TOKENS = 16
_PIECE_TOKENS = 512
_TOKENS = re.compile("[0-9]{1,7}")


def flat_sessions(source: Path, block_tokens: int) -> Iterator[bytes]:
    """Yield the requests of sessions as lines of JSON; lines that are no session as they are.

    A session is a line, or a JSON document of its own. Raises InputError: blocks of another size.
    """
    n_sessions = 0
    for line, session in _sessions(source):
        try:
            if session.get("block_size", block_tokens) != block_tokens:
                problem = f"blocks of {session['block_size']} tokens"
                fix = f"give a trace with blocks of {block_tokens} tokens"
                raise InputError(problem, file=source, field="block_size", fix=fix)
            rows = []
            n_blocks = 0
            for row in _requests(session["requests"], 0.0, n_sessions * _IDS_A_SESSION):
                rows.append(row)
                n_blocks += len(row["hash_ids"])
                if n_blocks > _MOST_BLOCKS:
                    raise ValueError("more blocks than a session has")
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield line + b"\n"  # rejected with its reason when it is read
            continue
        n_sessions += 1
        named = ({**row, "session": session.get("id", session.get("trace_id"))} for row in rows)
        yield b"".join(json.dumps(row).encode() + b"\n" for row in named)


def _sessions(source: Path) -> Iterator[tuple[bytes, Any]]:
    """Yield the lines of a source with what they hold; of a document its values."""
    is_by_line = None
    for block in read_text_blocks(source):
        for line in block.splitlines():
            value = json_value(line.decode(errors="replace"))
            if is_by_line is None and line.strip():
                is_by_line = value is not None or line.strip() not in (b"{", b"[")
            if is_by_line is False:
                break
            yield line, value
        if is_by_line is False:
            break
    if is_by_line is False:
        yield from ((b"no session", value) for value in json_values(source))


def _requests(
    requests: list[dict[str, Any]], start_s: float, first_id: int
) -> Iterator[dict[str, Any]]:
    for row in requests:
        at_s = start_s + row["t"]
        if "requests" in row:  # an agent that this one called
            inner = row["requests"]
            # Times of its requests count from its start; in some files, from the session's.
            is_absolute = bool(inner) and inner[0]["t"] >= row["t"] > 0
            yield from _requests(inner, start_s if is_absolute else at_s, first_id)
            continue
        if row["in"] > _MOST_TOKENS:
            raise ValueError("more tokens than any LLM reads")
        runs = row.get("hash_runs") or [[block, 1] for block in row.get("hash_ids") or []]
        if sum(abs(n) for _, n in runs) > 1 + row["in"] / _LEAST_BLOCK_TOKENS:
            raise ValueError("more blocks than tokens")
        ids = [first_id + block for first, n in runs for block in range(first, first + n)]
        names = ("in", "out", "model", "api_time")
        yield {**{name: row.get(name) for name in names}, "t": at_s, "hash_ids": ids}


def with_blocks(split: Split, kinds: Sequence[str], block_tokens: int) -> Split:
    """Return a reader of lines that reads as `split` does and adds `hash_ids`.

    `kinds` of parts are in the order in which a prompt has them. The same parts in different lines
    get the same ids.
    """

    def read(line: str) -> dict[str, Any] | str:
        row = split(line)
        if isinstance(row, str):
            return row
        for kind in kinds:
            if not all(map(str.isalnum, row[f"{kind}_ids"].split())):
                return f"{kind}_ids: not letters and digits with spaces between"
            if not _TOKENS.fullmatch(row[f"{kind}_tokens"].strip()):
                return f"{kind}_tokens: not a whole number from 0 to 9999999"
        if sum(int(row[f"{kind}_tokens"]) for kind in kinds) > _MOST_OF_PARTS:
            return f"more than {_MOST_OF_PARTS:,} tokens in all parts"
        return row | {"hash_ids": _ids_of_parts(row, kinds, block_tokens)}

    return read


def _ids_of_parts(row: dict[str, str], kinds: Sequence[str], block_tokens: int) -> list[int]:
    """Return an id for each block: it stands for all parts up to the block's last token.

    The file has the tokens of each kind, not of each part. If a kind has as many parts as its text
    has pieces of 512 tokens, the parts are these pieces (the publisher cuts all but retrieved
    passages in this way). Else the parts have equal shares of the tokens. The few tokens of an
    input beyond all parts, its template, come last.
    """
    ends = []
    ids = list[int]()
    n_before = 0
    last = -1
    for kind in kinds:
        parts = row[f"{kind}_ids"].split()
        n_tokens = int(row[f"{kind}_tokens"])
        is_cut = len(parts) == ceil(n_tokens / _PIECE_TOKENS)
        for number, part in enumerate(parts, 1):
            end_of_piece = min(number * _PIECE_TOKENS, n_tokens)
            ends.append(
                n_before + (end_of_piece if is_cut else round(number * n_tokens / len(parts)))
            )
            last = _id_after(last, part)
            ids.append(last)
        n_before += n_tokens

    starts = range(0, ends[-1] if ends else 0, block_tokens)

    return [ids[bisect_left(ends, min(at + block_tokens, ends[-1]))] for at in starts]


def _id_after(before: int, part: str) -> int:
    """Return the id of a part after the parts that an id stands for; -1: it is the first.

    A hash of 63 bits: a table of all parts would take more memory than the trace.
    """
    digest = blake2b(f"{before} {part}".encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1
