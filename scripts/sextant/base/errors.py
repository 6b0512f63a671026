"""The one error that a user's mistake raises, in text that is safe to print."""

from __future__ import annotations

import sys
from pathlib import Path


def printable(text: str, keep: str = "") -> str:
    """Return a text with escapes for invisible characters, which may control a terminal."""
    return "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode()
        for character in text
    )


class InputError(ValueError):
    """Bad input: names file, row (a sheet's header is line 1), field and fix, in one line."""

    def __init__(
        self,
        problem: str,
        *,
        file: str | Path | None = None,
        row: int | None = None,
        field: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.problem = problem
        self.file = file
        self.row = row
        self.field = field
        self.fix = fix

        where = [printable(str(file))] if file else []
        where += [] if row is None else [f"line {row}"]
        where += [] if field is None else [f"field '{field}'"]
        message = f"{', '.join(where)}: {problem}" if where else problem
        message = f"{message}. Fix: {fix}" if fix else message
        super().__init__(printable(message, keep="\n\t"))

    def at(
        self,
        *,
        file: str | Path | None = None,
        row: int | None = None,
        field: str | None = None,
    ) -> InputError:
        """Return the same error with a file, row or field that only the caller knows."""
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
