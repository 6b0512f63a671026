"""Text from outside, made safe: no control characters, no API keys, which servers repeat."""

from collections.abc import Collection
from typing import BinaryIO

_INSTEAD = "[API key]"
_SHORTEST_CUT_KEY = 4


def printable(text: str, keep: str = "") -> str:
    """Return a text with escapes for the characters that are not visible, except those of `keep`.

    Names of folders, files of strangers and the output of servers may hold characters that move
    a terminal's cursor, change its colours, start a new line or reverse the direction of text.
    """
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )


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
