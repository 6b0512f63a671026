"""Output of the commands."""

import typer

from sextant.base.text import printable


def say(text: str, *, err: bool = False) -> None:
    """Print a text that may hold names or values of strangers."""
    typer.echo(printable(text, keep="\n\t"), err=err)
