"""Removes API keys from texts and files: servers repeat them in errors and logs."""

from collections.abc import Collection
from typing import BinaryIO

_INSTEAD = "[API key]"
_SHORTEST_CUT_KEY = 4


def without_keys(text: str, keys: Collection[str]) -> str:
    """Return a server's text without API keys, also without one that is cut off at its end."""
    for key in keys:
        text = text.replace(key, _INSTEAD)
        for n_characters in range(len(key) - 1, _SHORTEST_CUT_KEY - 1, -1):
            if text.endswith(key[:n_characters]):
                text = text[:-n_characters] + _INSTEAD
                break
    return text


def remove_key(file: BinaryIO, key: str) -> None:
    """Remove a key from a file that is open for reading and writing and has no other writer."""
    file.seek(0)
    content = file.read()
    if key.encode() in content:
        file.seek(0)
        file.write(content.replace(key.encode(), _INSTEAD.encode()))
        file.truncate()
