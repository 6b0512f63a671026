"""Where a page and its JSON go, checked before anything is written."""

from collections.abc import Iterable
from pathlib import Path

from sextant.base.errors import InputError


def json_beside(html_out: str | Path) -> Path:
    """Return where the JSON of a page goes. Raises InputError if the page's path is a folder or
    does not end in `.html`.
    """
    page = Path(html_out)
    if page.suffix != ".html" or page.is_dir():
        problem = "is a folder" if page.is_dir() else "does not end in .html"
        raise InputError(problem, file=page, fix="name the page, e.g. report.html")
    return page.with_suffix(".json")


def check_outputs(html_out: str | Path, json_out: str | Path, inputs: Iterable[str | Path]) -> None:
    """Raise InputError if outputs would replace each other or an input, or as `json_beside`."""
    json_beside(html_out)
    taken = {Path(path).resolve(): "an input" for path in inputs}
    for out in map(Path, (html_out, json_out)):
        if out.resolve() in taken:
            problem = f"the output would replace {taken[out.resolve()]}"
            fix = "give the page another name; its JSON goes beside it"
            raise InputError(problem, file=out, fix=fix)
        taken[out.resolve()] = "the page"
