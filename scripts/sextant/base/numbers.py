"""Numbers as people write them, and as Python alone does."""


def is_plain(text: str) -> bool:
    """Return whether a text has no number that only Python reads: `1_0`, or digits of other
    scripts such as `٣`."""
    return text.isascii() and "_" not in text


def number_of(text: str) -> float:
    """Return the number of a text. Raises ValueError: it has none, or none that is plain."""
    if not is_plain(text):
        raise ValueError(f"{text!r} is not a number")
    return float(text)
