"""API keys stay out of what is said: servers repeat them in errors and logs."""

from collections.abc import Collection
from typing import BinaryIO

_INSTEAD = "[API key]"
_SHORTEST_CUT_KEY = 4


def without_keys(text: str, keys: Collection[str]) -> str:
    """Return what a server said without API keys, one that is cut off at the end included."""
    for key in keys:
        text = text.replace(key, _INSTEAD)
        for n_characters in range(len(key) - 1, _SHORTEST_CUT_KEY - 1, -1):
            if text.endswith(key[:n_characters]):
                text = text[:-n_characters] + _INSTEAD
                break
    return text


def remove_key(file: BinaryIO, key: str) -> None:
    """Take a key out of a file, open for reading and writing, that nobody else writes to."""
    file.seek(0)
    content = file.read()
    if key.encode() in content:
        file.seek(0)
        file.write(content.replace(key.encode(), _INSTEAD.encode()))
        file.truncate()
