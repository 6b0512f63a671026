"""The command `compare`: two load runs, two stores or two reports."""

from pathlib import Path
from typing import Annotated

import typer

from sextant.base.errors import InputError
from sextant.cli.options import PageFile, Printed
from sextant.cli.terminal import check_page, print_document

_WHAT = "Folder of a load run, or a store (.duckdb), a report (recommendations.json) or its folder."


def compare(
    a: Annotated[Path, typer.Argument(help=_WHAT)],
    b: Annotated[Path, typer.Argument(help="What to compare it with, of the same kind.")],
    printed: Printed = "text",
    out: PageFile = None,
) -> None:
    """Say what differs: figures of two load runs beyond chance, or recommendations and why."""
    check_page(printed, out)
    are_runs = [(path / "run.json").is_file() for path in (a, b)]
    if any(are_runs) and not all(are_runs):
        fix = "compare two load runs, two stores or two reports"
        raise InputError("only one of them is a load run", file=b, fix=fix)
    if all(are_runs):
        from sextant.studies.compare_runs import compare_runs

        print_document(compare_runs(a, b), printed, out)
    else:
        from sextant.report.compare import compare_answers

        print_document(compare_answers(a, b), printed, out)
