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
out charts, widgets and details; a page folds details. Cells may be numbers, None or bool. Numbers,
shares, durations and lists are worded here, for pages and the terminal alike.
"""

import json
import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Literal, Self

from sextant.base.files import jsonable

if TYPE_CHECKING:
    import pandas as pd

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
_INDENT = 2
_LEAST_WRAPPED = 24  # letters that the last column of a table needs to be wrapped


def number(value: float | None) -> str:
    """Write a number with 3 significant digits, all digits before the point, `–` for None."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if isinstance(value, int) or abs(value) >= 100 else f"{value:.3g}"


def percent(fraction: float | None) -> str:
    """Write a fraction in percent, `–` for None."""
    return "–" if fraction is None else f"{number(100.0 * fraction)} %"


def odds(probability: float) -> str:
    """Return a probability in words; `decide.decision` has the same bounds for options."""
    likely = {0.9: "very likely", 0.5: "more likely than not", 0.2: "less likely than not"}
    return next((words for least, words in likely.items() if probability >= least), "unlikely")


def shown_chance(probability: float) -> int:
    """Return a probability's hundredths: rounded down (0.899 is no 0.9), 100 above 0.99."""
    return 100 if probability >= 0.995 else math.floor(100 * probability + 1e-9)


def chance(probability: float) -> str:
    """Return a probability to two digits, as `shown_chance` has it."""
    hundredths = shown_chance(probability)
    if hundredths == 100:
        return "> 0.99"
    return f"{hundredths / 100:.2f}" if hundredths else "< 0.01"


def plural(count: int, noun: str) -> str:
    """Write a count with its noun, e.g. `1 user`, `2 users`, `3 batches`."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number(count)} {noun}{ending}"


def listed(words: Sequence[str]) -> str:
    """Join words as a sentence does."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def interval(low: float, high: float) -> str:
    """Write the ends of an interval, e.g. `0.95–1.10`, `–` where they are not known."""
    return f"{low:.2f}–{high:.2f}" if math.isfinite(low) and math.isfinite(high) else "–"


def duration_words(seconds: float) -> str:
    """Write a duration in its largest sensible unit, e.g. `58.4 minutes`."""
    if seconds == 7 * DAY_S:
        return "1 week"
    for unit_s, word in ((DAY_S, "days"), (HOUR_S, "hours"), (MINUTE_S, "minutes")):
        if seconds == unit_s:
            return f"1 {word[:-1]}"
        if seconds >= 2 * unit_s or (word == "minutes" and seconds > MINUTE_S):
            return f"{number(float(seconds / unit_s))} {word}"
    return "1 second" if seconds == 1 else f"{number(float(seconds))} seconds"


def rate_words(per_s: float) -> str:
    """Write a rate in the unit of time that leaves it above 1, hours at most."""
    for unit_s, word in ((1, "second"), (MINUTE_S, "minute")):
        if per_s * unit_s >= 1:
            return f"{number(float(per_s * unit_s))} per {word}"
    return f"{number(float(per_s * HOUR_S))} per hour"


def per_second(rate_rps: float) -> str:
    """Return e.g. `8 requests/s`."""
    shown = number(float(rate_rps))
    return f"{shown} request{'' if shown == '1' else 's'}/s"


def time_unit(duration_s: float, start_time: str | None) -> tuple[int, str]:
    """Return the unit (s) in which times are best read, and the label of their axis."""
    unit_s, word, shown = DAY_S, "Days", len("2023-11-01 00:00")
    if duration_s <= 4 * HOUR_S:
        unit_s, word, shown = MINUTE_S, "Minutes", len("2023-11-01 00:00:00")
    elif duration_s <= 4 * DAY_S:
        unit_s, word = HOUR_S, "Hours"
    start = start_time[:shown] if start_time else "the first request"
    return unit_s, f"{word} since {start}"


@dataclass(frozen=True)
class Headline:
    """One sentence to remember: in bold on a page. In a section it follows the title."""

    text: str


@dataclass(frozen=True)
class Note:
    """A paragraph. Warnings that follow each other are one box on a page."""

    text: str
    kind: Literal["plain", "soft", "warning"] = "plain"
    link: str = ""  # address that the whole text leads to on a page


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
        """What is not a pair."""
        return [row for row in self.rows if isinstance(row, str)]


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
        known = frame[[*labels]].astype(object).where(frame[[*labels]].notna(), None)
        words = {
            i for i, name in enumerate(labels) if known[name].map(type).isin((str, bool)).any()
        }
        return cls([*labels.values()], known.to_numpy().tolist(), words | {0})

    @property
    def cells(self) -> list[list[str]]:
        """The rows as text."""
        return [[_cell(value) for value in row] for row in self.rows]


def _cell(value: Any) -> str:
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
    key: str = ""  # name in links; made from the title where not given

    @property
    def anchor(self) -> str:
        """What links to the section name."""
        return self.key or re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


Block = Headline | Note | Facts | Table | Chart | Widget | Section


@dataclass(frozen=True)
class Document:
    """An answer: blocks for a person, data for a program."""

    title: str  # of the page
    blocks: Sequence[Block]
    data: Mapping[str, Any] = field(default_factory=dict)
    subtitle: str = ""  # what was asked; in text after the headline and its notes
    origin: Mapping[str, Any] | None = None  # of `provenance`, for a page's foot


def as_json(document: Document) -> str:
    """Return the data as JSON; NaN, infinity and what is missing are null."""
    return json.dumps(jsonable(document.data), indent=2, allow_nan=False)


def as_text(document: Document, width: int | None = None) -> str:
    """Return a document for a terminal; prose is wrapped at `width` letters, None: not at all."""
    groups = _groups(document.blocks, width)
    if document.subtitle:
        has_prose = bool(document.blocks) and isinstance(document.blocks[0], Headline | Note)
        if not has_prose:
            groups.insert(0, [])
        groups[0] += _wrapped(document.subtitle, width)
    return "\n\n".join("\n".join(lines) for lines in groups)


def _groups(blocks: Iterable[Block], width: int | None) -> list[list[str]]:
    """Return the lines of what an empty line separates: notes that follow each other are one."""
    groups: list[list[str]] = []
    was_prose = False
    for block in blocks:
        lines, is_prose = _lines(block, width), isinstance(block, Headline | Note)
        if lines and is_prose and was_prose:
            groups[-1] += lines
        elif lines:
            groups.append(lines)
        was_prose = is_prose if lines else was_prose
    return groups


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
            title, blocks = f"{block.title}:", [*block.blocks]
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
    place = sum(widths[:last]) + 2 * last
    is_wrapped = width is not None and last in table.words and width - place >= _LEAST_WRAPPED
    lines = []
    for row in zip(*columns, strict=True):
        cells = [
            cell.ljust(size) if position in table.words else cell.rjust(size)
            for position, (cell, size) in enumerate(zip(row, widths, strict=True))
        ]
        rest: list[str] = []
        if is_wrapped and width is not None:
            cells[last], *rest = _wrapped(row[last], width - place) or [""]
        lines += ["  ".join(cells).rstrip(), *(" " * place + line for line in rest)]
    return lines
