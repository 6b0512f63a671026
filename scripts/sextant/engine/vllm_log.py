"""Reads a server's log: whether memory ran out, how much was lacking, what was profiled.

The texts to look for are in `resources/engines/vllm.yaml`.
"""

import re
from dataclasses import dataclass

from sextant.engine.vllm_command import DATA_SHEET

_TEXTS = DATA_SHEET["log"]
_OUT_OF_MEMORY = re.compile("|".join(f"(?:{form})" for form in _TEXTS["out_of_memory"]))
_KILLED, _DIED, _LAST_WORDS, _DISK_FULL, _QUOTES, _TRIED, _FREE, _NEEDED, _PROFILED = (
    re.compile(_TEXTS[name])
    for name in (
        *("killed", "died", "last_words", "disk_full", "quotes"),
        *("tried", "free", "needed_gib", "profiled_blocks"),
    )
)
_BYTES = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@dataclass(frozen=True)
class Allocation:
    """An allocation that failed."""

    tried_bytes: int
    free_bytes: int | None
    """What the message says was free; None if it does not."""


def out_of_memory_sign(text: str) -> str | None:
    """Return the first line that says that memory ran out, None if none does."""
    return next((line for line in _own_lines(text) if _OUT_OF_MEMORY.search(line)), None)


def killed_sign(text: str) -> str | None:
    """Return the line that says that a process was killed, None if none does."""
    lines = _own_lines(text)
    return next((line for line in lines if _KILLED.search(line)), None) or _silent_death(lines)


def is_disk_full(text: str) -> bool:
    """Return whether a file system had no room for the server."""
    return any(_DISK_FULL.search(line) for line in _own_lines(text))


def _own_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if not _QUOTES.search(line)]


def _silent_death(lines: list[str]) -> str | None:
    """Return the line that says that a process died, if nothing before it says why."""
    for number, line in enumerate(lines):
        if _DIED.search(line):
            before = [each for each in lines[:number] if "WARNING" not in each]
            return None if any(map(_LAST_WORDS.search, before)) else line
    return None


def failed_allocation(text: str) -> Allocation | None:
    """Return the first allocation that failed, with what was asked for and what was free."""
    needed = _NEEDED.search(text)
    if needed:
        return Allocation(*(round(float(part) * 2**30) for part in needed.groups()))
    tried = _TRIED.search(text)
    if not tried:
        return None
    free = _FREE.search(text[tried.start() :].split("\n", 1)[0])
    return Allocation(_bytes(tried), _bytes(free) if free else None)


def profiled_blocks(text: str) -> int | None:
    """Return the KV blocks that vLLM's profiling would have made, of the worker with the least.

    None where vLLM did not profile: on a CPU it only repeats the number it was given.
    """
    found = [(int(own), int(given)) for own, given in _PROFILED.findall(text)]
    blocks = [own for own, given in found if own != given]
    return min(blocks, default=None)


def _bytes(match: re.Match) -> int:
    amount, unit = (part for part in match.groups() if part is not None)
    return round(float(amount) * _BYTES[unit])
