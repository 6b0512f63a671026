"""What differs between two load runs, or two sets of recommendations."""

from pathlib import Path
from typing import Annotated

import typer

from sextant.api.keywords import with_keywords
from sextant.api.shown import ShownAnswer
from sextant.base.errors import InputError

_WHAT = "Folder of a load run, or a store (.duckdb), a report (recommendations.json) or its folder."


@with_keywords
def compare(
    *,
    a: Annotated[Path, typer.Argument(help=_WHAT)],
    b: Annotated[Path, typer.Argument(help="What to compare it with, of the same kind.")],
) -> ShownAnswer:
    """Find what differs: figures of two load runs beyond chance, or recommendations and why.

    Returns
    -------
    ShownAnswer
        The differences; its dictionary has them as figures.

    Raises
    ------
    InputError
        One is a load run and the other is not, or a file is damaged.

    Examples
    --------
    >>> import sextant
    >>> sextant.compare("before.duckdb")
    Traceback (most recent call last):
    sextant.base.errors.InputError: field 'b': compare needs it. Fix: give b=...
    """
    are_runs = [(path / "run.json").is_file() for path in (a, b)]
    if any(are_runs) and not all(are_runs):
        fix = "compare two load runs, two stores or two reports"
        raise InputError("only one of them is a load run", file=b, fix=fix)
    from sextant.report.compare import compare_answers, compare_runs

    document = compare_runs(a, b) if all(are_runs) else compare_answers(a, b)
    return ShownAnswer(result=document, document=lambda _: document, rows=[dict(document.data)])
