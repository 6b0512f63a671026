"""Sections as one page that refers to no other file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from sextant.files import atomic_path
from sextant.trace_report.section import Section

_FOLDERS = (Path(__file__).parent, Path(__file__).parents[1] / "report")


def write_page(
    out: str | Path,
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    origin: Mapping[str, Any],
) -> None:
    """Write sections as HTML; all text is escaped, only the figures' SVG is taken as it is."""
    environment = Environment(
        loader=FileSystemLoader(_FOLDERS),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["drawn"] = Markup
    template = environment.get_template("trace_report.html.j2")
    page = template.render(title=title, subtitle=subtitle, sections=sections, origin=origin)
    with atomic_path(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
