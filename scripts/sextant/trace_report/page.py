"""Sections as one page that refers to no other file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sextant.base.files import atomic_path
from sextant.pages.render import render
from sextant.pages.sections import Section

_TEMPLATE = Path(__file__).with_name("trace_report.html.j2")


def write_page(
    out: str | Path,
    title: str,
    subtitle: str,
    sections: Sequence[Section],
    origin: Mapping[str, Any],
) -> None:
    """Write sections as HTML; all text is escaped, only the figures' SVG is taken as it is."""
    facts = {"title": title, "subtitle": subtitle, "sections": sections, "origin": origin}
    page = render(_TEMPLATE, **facts)
    with atomic_path(out) as temporary:
        temporary.write_text(page, encoding="utf-8")
