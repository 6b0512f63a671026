"""Output of the commands."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from sextant.base.errors import InputError
from sextant.base.text import printable


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may hold names or values of strangers."""
    typer.echo(printable(text, keep="\n\t"), err=err)


def check_page(printed: str, out: Path | None) -> None:
    """Refuse a page without a file, and a file for anything but a page."""
    if (out is None) == (printed == "html"):
        raise InputError("a page needs a file", field="--out", fix="give --format html --out FILE")


def say_answer(answer: Mapping[str, Any], printed: str, out: Path | None = None) -> None:
    """Print an answer as text or JSON, or, where it is a page, the file and the first line."""
    if out is not None:
        say(f"{out}: {answer['text'].splitlines()[0]}")
    else:
        as_json = printed == "json"
        say(json.dumps(answer, indent=2, allow_nan=False) if as_json else answer["text"])
