"""Pages as files: HTML that refers to no other file, JSON and figures beside it."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

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
