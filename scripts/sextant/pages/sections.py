"""What a part of a page is made of, and words for durations and shares."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sextant.pages.words import number

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86400
_TO_MINUTES, _TO_SECONDS = len("2023-11-01 00:00"), len("2023-11-01 00:00:00")


class Table(NamedTuple):
    """A table of text; the first column names its rows, the others are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass
class Section:
    """A part of a page: one sentence to take away, and what it rests on."""

    key: str
    title: str
    takeaway: str
    notes: list[str] = field(default_factory=list)
    figures: list[tuple[str, str]] = field(default_factory=list)
    """SVG and caption."""
    tables: list[Table] = field(default_factory=list)


class Clock(NamedTuple):
    """The unit in which a trace's times are best read."""

    unit_s: int
    word: str
    start_time: str | None

    @property
    def label(self) -> str:
        """Return the label of a time axis."""
        if self.start_time is None:
            return f"{self.word.capitalize()}s since the first request"
        shown = _TO_SECONDS if self.unit_s == MINUTE_S else _TO_MINUTES
        return f"{self.word.capitalize()}s since {self.start_time[:shown]}"


def clock(duration_s: float, start_time: str | None) -> Clock:
    """Return minutes for traces of a few hours, hours for a few days, else days."""
    if duration_s <= 4 * HOUR_S:
        return Clock(MINUTE_S, "minute", start_time)
    if duration_s <= 4 * DAY_S:
        return Clock(HOUR_S, "hour", start_time)
    return Clock(DAY_S, "day", start_time)


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


def listed(words: Sequence[str]) -> str:
    """Join words as a sentence does."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def counted_words(what: str, n_shown: int, n_groups: int) -> str:
    """Return the sentence that says of which groups `what` is counted, none if of all."""
    if n_shown == n_groups:
        return ""
    return f" Counted are {what} of the {n_shown} most frequent of {n_groups} LLMs and services."


def plural(count: int, word: str) -> str:
    """Write a count with its noun."""
    return f"{number(count)} {word}" if count == 1 else f"{number(count)} {word}s"
