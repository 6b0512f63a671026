"""The one error that a user's mistake raises, in text that is safe to print."""

from __future__ import annotations

import sys
from pathlib import Path


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


class InputError(ValueError):
    """Bad input: names the file, the row, the field and the fix, in one line.

    Row numbers count as an editor does: the header of a sheet is line 1.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        row: int | None = None,
        field: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.problem, self.file, self.row, self.field, self.fix = problem, file, row, field, fix
        where = [
            printable(str(file)) if file is not None else None,
            f"line {row}" if row is not None else None,
            f"field '{field}'" if field is not None else None,
        ]
        place = ", ".join(part for part in where if part)
        message = f"{place}: {problem}" if place else problem
        message = f"{message}. Fix: {fix}" if fix else message
        super().__init__(printable(message, keep="\n\t"))

    def at(
        self, *, file: str | Path | None = None, row: int | None = None, field: str | None = None
    ) -> InputError:
        """Return the same error with a place that only the caller knows."""
        return InputError(
            self.problem,
            file=file or self.file,
            row=row or self.row,
            field=field or self.field,
            fix=self.fix,
        )


def require_docstrings() -> None:
    """Raise InputError with `PYTHONOPTIMIZE=2`: libraries such as xgboost need their docstrings."""
    if sys.flags.optimize > 1:
        problem = "Python runs with -OO or PYTHONOPTIMIZE=2, but libraries need their docstrings"
        raise InputError(problem, fix="unset PYTHONOPTIMIZE, or set it to 1 at most")
