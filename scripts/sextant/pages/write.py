"""Pages as files: HTML that refers to no other file, JSON and figures beside it."""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sextant.base.errors import InputError
from sextant.base.files import atomic_path, write_json
from sextant.pages.sections import Section
from sextant.pages.wording import number, percent, plural

_TEMPLATES = Path(__file__).parent
_SECTIONS = _TEMPLATES / "sections.html.j2"
Filters = Mapping[str, Callable[..., Any]]
"""Functions that a template calls on values, by name."""
_FILTERS: Filters = {
    "number": number,
    "percent": percent,
    "plural": plural,
    "drawn": Markup,
}


def render(template: Path, facts: Mapping[str, Any], filters: Filters | None = None) -> str:
    """Return the page that a template makes of `facts`; the same facts give the same text.

    All text is escaped. A template may extend `base.html.j2`, and use `filters`, the words of
    `sextant.pages.wording` and `drawn`, which takes SVG of our own as it is.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, _TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {**_FILTERS, **(filters or {})}
    return environment.get_template(template.name).render(facts)


def render_sections(
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    origin: Mapping[str, Any],
    *,
    lead: str = "",
    cautions: Sequence[str] = (),
) -> str:
    """Return a page of sections, with links to them if there are several.

    `origin` is as `sextant.base.files.provenance` returns it; before the sections come `lead`,
    what was found, in bold, and `cautions`, what makes the numbers doubtful, in a box.
    """
    facts = {"title": title, "subtitle": subtitle, "sections": sections, "origin": origin}
    return render(_SECTIONS, facts | {"lead": lead, "cautions": cautions})


def write_page(
    html_out: str | Path,
    html: str,
    json_out: str | Path | None = None,
    facts: Mapping[str, Any] | None = None,
    figures_out: Path | None = None,
    figures: Mapping[str, str] | None = None,
) -> None:
    """Write a page that `render` made; where they are asked for, its facts as JSON and a folder of
    its figures, SVG by the name of the file without the ending; what was in the folder goes.
    """
    _write_text(Path(html_out), html)
    if json_out is not None:
        write_json(json_out, facts)
    if figures_out is not None:
        shutil.rmtree(figures_out, ignore_errors=True)
        figures_out.mkdir(parents=True)
        for name, svg in (figures or {}).items():
            _write_text(figures_out / f"{name}.svg", svg)


def _write_text(path: Path, text: str) -> None:
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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
