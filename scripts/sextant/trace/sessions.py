"""Sessions that a source has as trees, an object a line, become rows: a request a line.

So are sessions of coding agents in kv-cache-tester's format: `requests`, some of which are agents
with requests of their own, and prompts as runs of blocks, whose ids are those of one session.
"""

import json
from collections.abc import Iterator
from typing import Any

_IDS_A_SESSION = 1 << 32


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
        ids = [first_id + place for first, n in runs for place in range(first, first + n)]
        names = ("in", "out", "model", "api_time")
        yield {**{name: row.get(name) for name in names}, "t": at_s, "hash_ids": ids}
