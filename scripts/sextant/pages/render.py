"""Pages: HTML that refers to no other file, in which all text is escaped."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

_STYLES = Path(__file__).parent
"""Where the style that all pages share lies."""


def render(template: Path, filters: Mapping[str, Callable] | None = None, **facts: Any) -> str:
    """Return the page that a template makes of `facts`; the same facts give the same text.

    A template may use `filters`, and `drawn` for SVG of our own, which is taken as it is.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, _STYLES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"drawn": Markup, **(filters or {})}
    return environment.get_template(template.name).render(**facts)
