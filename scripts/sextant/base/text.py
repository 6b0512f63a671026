"""Text from outside, made safe for a terminal."""


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
