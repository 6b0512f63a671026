"""A document as a page that refers to no other file, with its JSON and figures as files."""

import base64
import hashlib
import itertools
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from sextant.base.errors import InputError
from sextant.base.files import write_json, write_text
from sextant.base.sheets import file_name
from sextant.pages.blocks import (
    Beside,
    Block,
    Chart,
    Document,
    Headline,
    KeyFigures,
    Note,
    Section,
    Table,
    Widget,
    side_by_side,
)
from sextant.pages.words import number, percent, plural

_TEMPLATES = Path(__file__).parent
_SORT_SCRIPT = _TEMPLATES / "sort.js"
_LONGEST_NAME = 100
_CODE = re.compile(r"`((?:sextant|make|snakemake|python|pip|--)[\w ./=,:*<>-]*|[\w./-]+\.\w+|\w+)`")
"""What we put between backticks; a stranger's name with backticks in it stays text."""


def render(template: Path, facts: Mapping[str, Any]) -> str:
    """Return a template filled with `facts`; text is escaped, but for our own HTML (`drawn`)."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Callable[..., Any]] = {
        "drawn": Markup,
        "grouped": _grouped,
        "prose": _prose,
        "number": number,
        "percent": percent,
        "plural": plural,
    }
    environment.filters |= filters
    return environment.get_template(template.name).render(facts)


def _prose(text: str) -> Markup:
    """Return escaped text; commands, options and names of files between backticks are code."""
    return Markup(_CODE.sub(r"<code>\1</code>", str(escape(text))))


def _grouped(blocks: Sequence[Block]) -> Iterator[tuple[str, list[Block]]]:
    """Yield successive blocks of one kind together: a box of warnings, a row of figures."""

    def kind(block: Block) -> str:
        is_warning = isinstance(block, Note) and block.kind == "warning"
        return "warning" if is_warning else type(block).__name__

    for name, group in itertools.groupby(blocks, kind):
        yield name, [*group]


def as_page(document: Document) -> str:
    """Return a document as HTML: headline, question, figures, warnings, links, the rest."""
    is_top = (Headline, Note, KeyFigures)
    top = [*itertools.takewhile(lambda it: isinstance(it, is_top), document.blocks)]
    rest = document.blocks[len(top) :]
    heading = document.title
    if top and isinstance(top[0], Headline):
        heading = top.pop(0).text  # type: ignore[union-attr]
    blocks = [*_walk(document.blocks)]
    widgets = [block for block in blocks if isinstance(block, Widget)]
    scripts = [widget.script for widget in widgets if widget.script]
    if any(isinstance(block, Table) and block.is_sortable for block in blocks):
        scripts.append(_SORT_SCRIPT.read_text())
    facts = {
        "document": document,
        "heading": heading,
        "kind": document.kind if heading == document.title else document.kind or document.title,
        "top": top,
        "rest": rest,
        "sections": [block for block in side_by_side(rest) if isinstance(block, Section)],
        "styles": list(dict.fromkeys(widget.style for widget in widgets)),
        "scripts": {policy_hash(script): script for script in scripts},
    }
    return render(_TEMPLATES / "page.html.j2", facts)


def policy_hash(script: str) -> str:
    """Return the name of a script in the page's content security policy."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest())
    return f"sha256-{digest.decode()}"


def _walk(blocks: Iterable[Block]) -> Iterator[Block]:
    for block in blocks:
        yield block
        if isinstance(block, Section | Beside):
            yield from _walk(block.blocks)


def write_page(
    document: Document,
    html_out: str | Path,
    json_out: str | Path | None = None,
    figures_out: Path | None = None,
) -> None:
    """Write a document as a page, and its data and figures as files if their paths are stated."""
    write_text(html_out, as_page(document))
    if json_out is not None:
        write_json(json_out, document.data)
    if figures_out is not None:
        shutil.rmtree(figures_out, ignore_errors=True)
        figures_out.mkdir(parents=True)
        taken: set[str] = set()
        for chart in _walk(document.blocks):
            if isinstance(chart, Chart) and chart.name:
                # Names of LLMs and SLOs are free text: what a path cannot hold is replaced, which
                # may make two of them alike, as may a file system that ignores case.
                words = re.sub(r"[^\w.+-]+", "_", chart.name).strip("._")
                unique = stem = file_name(words)[:_LONGEST_NAME] or "figure"
                numbers = itertools.count(2)
                while unique.casefold() in taken:
                    unique = f"{stem}_{next(numbers)}"
                taken.add(unique.casefold())
                write_text(figures_out / f"{unique}.svg", chart.svg)


def json_path(html_out: str | Path) -> Path:
    """Return where a page's JSON goes; InputError if it is a folder or not `.html`."""
    page = Path(html_out)
    if page.suffix != ".html" or page.is_dir():
        problem = "is a folder" if page.is_dir() else "does not end in .html"
        raise InputError(problem, file=page, fix="name the page, e.g. report.html")
    return page.with_suffix(".json")


def check_outputs(html_out: str | Path, json_out: str | Path, inputs: Iterable[str | Path]) -> None:
    """Raise InputError if outputs would replace each other or an input, or as `json_path`."""
    json_path(html_out)
    taken = {Path(path).resolve(): "an input" for path in inputs}
    for out in map(Path, (html_out, json_out)):
        if out.resolve() in taken:
            problem = f"the output would replace {taken[out.resolve()]}"
            fix = "give the page another name; its JSON file is written next to it"
            raise InputError(problem, file=out, fix=fix)
        taken[out.resolve()] = "the page"
