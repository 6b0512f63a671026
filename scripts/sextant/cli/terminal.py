"""Output of the commands."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import typer

from sextant.base.errors import InputError, printable
from sextant.pages.blocks import Document, as_json, as_text

_WIDTH = 100
"""Letters in a line of prose, where the terminal has room for them."""


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may hold names or values of strangers."""
    typer.echo(printable(text, keep="\n\t"), err=err)


def check_page(printed: str, out: Path | None) -> None:
    """Refuse a page without a file, and a file for anything but a page."""
    if (out is None) == (printed == "html"):
        raise InputError("a page needs a file", field="--out", fix="give --format html --out FILE")


def print_document(document: Document, printed: str = "text", out: Path | None = None) -> None:
    """Print a document as text or JSON (with `text`); or write the page `out`, and say where.

    Prose is wrapped in a terminal alone: in a file or a pipe a sentence stays one line.
    """
    text = as_text(document)
    if out is not None:
        from sextant.pages.page import write_page

        write_page(document, out)
        say(f"{out}: {text.splitlines()[0]}")
    elif printed == "json":
        say(as_json(replace(document, data={**document.data, "text": text})))
    else:
        columns = min(_WIDTH, shutil.get_terminal_size().columns)
        say(as_text(document, columns) if sys.stdout.isatty() else text)
