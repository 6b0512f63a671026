"""One model of what Sextant tells a person: a document of blocks, as text, as a page, as JSON.

Build a `Document` once, then print it (`as_text`), write it as HTML (`pages.page.write_page`) or
hand out its values (`as_json`):

    Document(
        title="llama: recommendation",
        subtitle="for 8 requests/s, TTFT ≤ 1000 ms",       # what was asked
        blocks=[
            Headline("llama: 1 replica × 1xH100 = 6.88 USD/h"),    # the answer, first
            Note("The rate is taken as a steady load.", "warning"),
            Facts(["A replica gets 8 requests/s.", ("USD a month", "5,022")]),
            Section("Price against probability", [Table(["Price", "Option"], rows, {1})]),
            Section("Timeline", [Chart(partial(draw_timeline, answer), "Caption.")]),
        ],
        data=answer,                                       # the JSON value
    )

A `Chart` is drawn only for a page: import matplotlib inside the function that draws. Text leaves
out key figures, charts, widgets and details; a page folds details. Cells may be numbers, None,
bool or a `Cell`.
"""

import json
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from sextant.base.files import jsonable
from sextant.pages.words import number

if TYPE_CHECKING:
    import pandas as pd

_INDENT = 2
_LEAST_WRAPPED = 24  # letters that the last column of a table needs to be wrapped
_LEAST_SORTED = 3  # rows of a table that a page offers to sort


Tone = Literal["", "good", "doubt", "bad"]
"""What a figure means for the reader: a page gives it a colour beside its words."""


@dataclass(frozen=True)
class Headline:
    """One sentence to remember: a page opens with it. In a section it follows the title."""

    text: str


@dataclass(frozen=True)
class Note:
    """A paragraph. Warnings that follow each other are one box on a page."""

    text: str
    kind: Literal["plain", "soft", "warning"] = "plain"
    link: str = ""  # address that the whole text leads to on a page


class KeyFigure(NamedTuple):
    """A figure with its unit, what it is, and its interval or limit."""

    label: str
    value: str
    detail: str = ""
    tone: Tone = ""


@dataclass(frozen=True)
class KeyFigures:
    """The few figures that an answer comes down to, for pages alone: text has them in lines."""

    figures: Sequence[KeyFigure]


@dataclass(frozen=True)
class Facts:
    """One line each: sentences (a list on a page), or pairs of a label and a value."""

    rows: Sequence[str | tuple[str, str]]

    @property
    def pairs(self) -> "Table":
        """The pairs as a table without a head."""
        return Table((), [row for row in self.rows if not isinstance(row, str)], {0, 1})

    @property
    def sentences(self) -> list[str]:
        """The rows that are sentences."""
        return [row for row in self.rows if isinstance(row, str)]


class Cell(NamedTuple):
    """A cell of a table: two lines on a page, in text one."""

    text: str
    detail: str = ""
    """Said after the text: on a page below it, in text after a comma."""
    tone: Tone = ""
    hint: str = ""
    """A third line, for pages alone."""


@dataclass(frozen=True)
class Table:
    """Rows of cells; the first column names the row. Without rows it is left out."""

    header: Sequence[str]  # one label per column, with the unit; empty for a table without a head
    rows: Sequence[Sequence[Any]]  # text, numbers (3 significant digits), None (`–`), bool
    words: Collection[int] = (0,)  # columns of words, aligned left; others are numbers
    note: str = ""  # A sentence below the table
    has_header_in_text: bool = True
    n_rows_in_text: int | None = None  # how many rows the text shows; a page shows all

    @classmethod
    def of_frame(cls, frame: "pd.DataFrame", labels: Mapping[str, str]) -> Self:
        """Return the columns of a frame that have a label, in the order of the labels."""
        values = frame[[*labels]].astype(object).where(frame[[*labels]].notna(), None)
        words = {
            i for i, name in enumerate(labels) if values[name].map(type).isin((str, bool)).any()
        }
        return cls([*labels.values()], values.to_numpy().tolist(), words | {0})

    @property
    def cells(self) -> list[list[str]]:
        """The rows as text."""
        return [[_cell(value) for value in row] for row in self.rows]

    @property
    def page_cells(self) -> list[list[Cell]]:
        """The rows for a page."""
        return [
            [value if isinstance(value, Cell) else Cell(_cell(value)) for value in row]
            for row in self.rows
        ]

    @property
    def is_sortable(self) -> bool:
        """Whether a page offers to sort the rows: they have labels, and there are a few of them."""
        return any(self.header) and len(self.rows) >= _LEAST_SORTED


def _cell(value: Any) -> str:
    if isinstance(value, Cell):
        return ", ".join(filter(None, [value.text, value.detail]))
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value != value:
        return "–"
    is_whole = float(value).is_integer() and abs(value) < 1e15
    return number(int(value) if is_whole else float(value))


@dataclass(frozen=True)
class Chart:
    """A figure: SVG that names itself for screen readers, or the function that draws it."""

    drawing: str | Callable[[], str]
    caption: str = ""
    title: str = ""  # in bold before the caption
    name: str = ""  # of its file in the folder of figures, where there is one

    @cached_property
    def svg(self) -> str:
        """The figure, drawn once."""
        return self.drawing if isinstance(self.drawing, str) else self.drawing()


@dataclass(frozen=True)
class Widget:
    """HTML of our own with a style and a script, for pages alone."""

    html: str
    style: str = ""
    script: str = ""


@dataclass(frozen=True)
class Section:
    """A part with a title, which may have parts in turn."""

    title: str
    blocks: Sequence["Block"]
    is_detail: bool = False  # whether a page folds it and text leaves it out
    is_open: bool = False  # whether a page shows a detail unfolded at first
    key: str = ""  # name in links; made from the title where not given

    @property
    def anchor(self) -> str:
        """The name by which links find the section."""
        return self.key or re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


@dataclass(frozen=True)
class Beside:
    """Blocks side by side where a page is wide enough; in text one after the other."""

    blocks: Sequence["Block"]


Block = Headline | KeyFigures | Note | Facts | Table | Chart | Widget | Section | Beside


@dataclass(frozen=True)
class Document:
    """An answer: blocks for a person, data for a program."""

    title: str  # of the page
    blocks: Sequence[Block]
    data: Mapping[str, Any] = field(default_factory=dict)
    subtitle: str = ""  # what was asked; in text after the headline and its notes
    origin: Mapping[str, Any] | None = None  # of `provenance`, for a page's foot
    kind: str = ""  # of answer: above a page's headline, in place of the title


def as_json(document: Document) -> str:
    """Return the data as JSON; NaN, infinity and what is missing are null."""
    return json.dumps(jsonable(document.data), indent=2, allow_nan=False)


def as_text(document: Document, width: int | None = None) -> str:
    """Return a document for a terminal; prose is wrapped at `width` letters, None: not at all."""
    groups = _groups(document.blocks, width)
    if document.subtitle:
        first = next(side_by_side(document.blocks), None)
        has_prose = isinstance(first, Headline | Note)
        if not has_prose:
            groups.insert(0, [])
        groups[0] += _wrapped(document.subtitle, width)
    return "\n\n".join("\n".join(lines) for lines in groups)


def _groups(blocks: Iterable[Block], width: int | None) -> list[list[str]]:
    """Return groups of lines, which an empty line separates.

    Headlines and notes that follow each other are one group.
    """
    groups: list[list[str]] = []
    was_prose = False
    for block in side_by_side(blocks):
        lines = _lines(block, width)
        is_prose = isinstance(block, Headline | Note)
        if lines and is_prose and was_prose:
            groups[-1] += lines
        elif lines:
            groups.append(lines)
        was_prose = is_prose if lines else was_prose
    return groups


def side_by_side(blocks: Iterable[Block]) -> Iterator[Block]:
    """Yield blocks, those of `Beside` one after the other."""
    for block in blocks:
        if isinstance(block, Beside):
            yield from side_by_side(block.blocks)
        else:
            yield block


def _lines(block: Block, width: int | None) -> list[str]:
    match block:
        case Headline() | Note():
            return _wrapped(block.text, width)
        case Facts():
            lines = [line for row in block.sentences for line in _wrapped(row, width, _INDENT)]
            return lines + _table_lines(block.pairs, width)
        case Table():
            note = _wrapped(block.note, width) if block.note and block.rows else []
            return _table_lines(block, width) + note
        case Section(is_detail=False):
            title = f"{block.title}:"
            blocks = [*block.blocks]
            if is_headed := bool(blocks) and isinstance(blocks[0], Headline):
                title += f" {blocks.pop(0).text}"  # type: ignore[union-attr]
            groups = _groups(blocks, width and width - _INDENT)
            lines = _wrapped(title, width) if groups or is_headed else []
            for position, group in enumerate(groups):
                lines += [""] if position else []
                lines += [" " * _INDENT + line if line else "" for line in group]
            return lines
    return []


def _wrapped(text: str, width: int | None, indent: int = 0) -> list[str]:
    if width is None:
        return text.splitlines()
    whole: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.wrap(text, width, subsequent_indent=" " * indent, **whole)


def _table_lines(table: Table, width: int | None) -> list[str]:
    """Return the lines of a table; a last column of words is wrapped at `width` letters."""
    rows = table.cells[: table.n_rows_in_text]
    if not rows:
        return []
    if table.has_header_in_text and any(table.header):
        rows.insert(0, [*table.header])
    columns = [*zip_longest(*rows, fillvalue="")]
    widths = [max(map(len, column)) for column in columns]
    last = len(widths) - 1
    last_start = sum(widths[:last]) + 2 * last
    is_wrapped = width is not None and last in table.words and width - last_start >= _LEAST_WRAPPED
    lines = []
    for row in zip(*columns, strict=True):
        cells = [
            cell.ljust(size) if position in table.words else cell.rjust(size)
            for position, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        rest: list[str] = []
        if is_wrapped and width is not None:
            cells[last], *rest = _wrapped(row[last], width - last_start) or [""]
        lines += ["  ".join(cells).rstrip(), *(" " * last_start + line for line in rest)]
    return lines
