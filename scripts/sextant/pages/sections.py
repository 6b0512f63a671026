"""What a page is made of: sections with their figures and tables."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import pandas as pd

from sextant.pages.wording import number

_NOT_IN_KEYS = re.compile(r"[^a-z0-9]+")


class Table(NamedTuple):
    """A table of text; the first column names its rows."""

    header: Sequence[str]
    """One label a column; all empty for a table without a head."""
    rows: Sequence[Sequence[str]]
    text_columns: Collection[int] = (0,)
    """Places of the columns of words; the others are numbers, aligned right."""

    @classmethod
    def of_frame(cls, frame: pd.DataFrame, labels: Mapping[str, str]) -> Self:
        """Return the columns of a frame that have a label, in the order of the labels.

        Numbers get 3 significant digits, what is missing is `–`.
        """
        columns = [[*frame[name]] for name in labels]
        texts = {
            place
            for place, values in enumerate(columns)
            if any(isinstance(value, str | bool) for value in values)
        }
        rows = [[_cell_text(value) for value in row] for row in zip(*columns, strict=True)]
        return cls([*labels.values()], rows, texts | {0})

    @classmethod
    def of_rows(cls, rows: Iterable[Any], columns: Mapping[str, Callable[[Any], str]]) -> Self:
        """Return a table with a column a label, whose function writes a row's cell."""
        return cls([*columns], [[write(row) for write in columns.values()] for row in rows])


def _cell_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if pd.isna(value):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    is_whole = float(value).is_integer() and abs(value) < 1e15
    return number(int(value) if is_whole else float(value))


@dataclass
class Section:
    """A part of a page."""

    title: str
    takeaway: str = ""
    """The one sentence to remember, shown first and in bold."""
    notes: list[str] = field(default_factory=list)
    """Paragraphs."""
    figures: list[tuple[str, str]] = field(default_factory=list)
    """SVG and caption."""
    tables: list[Table] = field(default_factory=list)
    key: str = ""
    """Name in links and files; made of the title where not given."""

    def __post_init__(self) -> None:
        self.key = self.key or _NOT_IN_KEYS.sub("-", self.title.lower()).strip("-")

    @classmethod
    def of_text(
        cls, title: str, text: str, figure: str | None = None, table: Table | None = None
    ) -> Self:
        """Return a section without a takeaway; an empty line in `text` begins a paragraph."""
        figures = [(figure, "")] if figure else []
        return cls(title, "", text.split("\n\n"), figures, [table] if table else [])
