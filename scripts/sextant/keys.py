"""API keys stay out of what is said: servers repeat them in errors and logs."""

from collections.abc import Collection
from pathlib import Path

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


def remove_key(path: Path, key: str) -> None:
    """Take a key out of a file that nobody writes to any more."""
    content = path.read_bytes()
    if key.encode() in content:
        path.write_bytes(content.replace(key.encode(), _INSTEAD.encode()))
