"""Sources whose lines do not have block ids: their lines become requests that have them.

A line of kv-cache-tester is a session of a coding agent: a tree of `requests`, in which an agent
may have requests itself, with prompts as runs of blocks. Block ids count within one session. Each
request becomes a line of JSON.

A line of RAGPulse is a row of CSV: a prompt put together from parts, with the parts' ids by kind.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from math import ceil
from typing import Any

Split = Callable[[str], dict[str, Any] | str]
"""Returns the values of a line by name, or what is wrong with the line."""
_IDS_A_SESSION = 1 << 32
_PIECE_TOKENS = 512
_TOKENS = re.compile("[0-9]{1,7}")


def flat_sessions(blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the requests of lines of sessions as lines of JSON; other lines as they are."""
    n_sessions = 0
    for block in blocks:
        for line in block.splitlines():
            try:
                session = json.loads(line)
                rows = list(_requests(session["requests"], 0.0, n_sessions * _IDS_A_SESSION))
            except (ValueError, KeyError, TypeError):
                yield line + b"\n"  # rejected with its reason when it is read
                continue
            n_sessions += 1
            named = ({**row, "session": session.get("id")} for row in rows)
            yield b"".join(json.dumps(row).encode() + b"\n" for row in named)


def _requests(
    requests: list[dict[str, Any]], start_s: float, first_id: int
) -> Iterator[dict[str, Any]]:
    for row in requests:
        at_s = start_s + row["t"]
        if "requests" in row:  # an agent that this one called
            yield from _requests(row["requests"], at_s, first_id)
            continue
        runs = row.get("hash_runs") or []
        if sum(n for _, n in runs) > row["in"]:
            raise ValueError("more blocks than tokens")
        ids = [first_id + block for first, n in runs for block in range(first, first + n)]
        names = ("in", "out", "model", "api_time")
        yield {**{name: row.get(name) for name in names}, "t": at_s, "hash_ids": ids}


def with_blocks(split: Split, kinds: Sequence[str], block_tokens: int) -> Split:
    """Return a reader of lines that reads as `split` does and adds `hash_ids`.

    `kinds` of parts are in the order in which a prompt has them. The same parts in different lines
    get the same ids.
    """
    id_of_part: dict[tuple[int, str], int] = {}

    def read(line: str) -> dict[str, Any] | str:
        row = split(line)
        if isinstance(row, str):
            return row
        for kind in kinds:
            if not all(map(str.isalnum, row[f"{kind}_ids"].split())):
                return f"{kind}_ids: not letters and digits with spaces between"
            if not _TOKENS.fullmatch(row[f"{kind}_tokens"].strip()):
                return f"{kind}_tokens: not a whole number from 0 to 9999999"
        return row | {"hash_ids": _ids_of_parts(row, kinds, block_tokens, id_of_part)}

    return read


def _ids_of_parts(
    row: dict[str, str],
    kinds: Sequence[str],
    block_tokens: int,
    id_of_part: dict[tuple[int, str], int],
) -> list[int]:
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
            last = id_of_part.setdefault((last, part), len(id_of_part))
            ids.append(last)
        n_before += n_tokens

    starts = range(0, ends[-1] if ends else 0, block_tokens)

    return [ids[bisect_left(ends, min(at + block_tokens, ends[-1]))] for at in starts]
