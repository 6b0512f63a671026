"""What of a source makes a column of the trace, and which of its rows are requests.

A formula is written as `a|b+c*1000`: alternatives (`|`: the first that has a value), each a sum of
columns (`+`), each with a factor (`*1000`). A condition is written as `column=value|value` or
`column!=value`. In names `*` stands for any letters, in values too.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Self

from sextant.base.errors import InputError

_FACTOR = re.compile(r"(.+?)\*(\d+(?:\.\d+)?(?:e-?\d+)?)", re.IGNORECASE)
_CONDITION = re.compile(r"(.+?)\s*(!?=)\s*(.*)")
_ERROR_NAME = re.compile(
    r"(?:.*[._])?(?:error|exception)(?:[._](?:.*[._])?(?:code|type|class|name|message|msg|str|reason))?"
    r"|(?:.*\.)?error(?:Code|Type|Message|Name)",
)
_CACHE_NAME = re.compile(
    r".*cache.*(?:tok|input|read|creation|write).*|.*(?:tok|input).*cache.*", re.IGNORECASE
)
_NEGATIVE_NAME = re.compile(
    r"(?:.*[._])?(?:is|was|has)?_?(?:cancell?ed|failed|failure|errored|aborted|timed_?out|timeout)",
    re.IGNORECASE,
)
NO_ERROR = frozenset(("", "0", "200", "false", "null", "none", "[]", "{}"))
"""What a column of errors says of a request without one, in small letters."""


@dataclass(frozen=True)
class Term:
    """A column of a source, with what brings its unit to the trace's."""

    name: str  #: `*` stands for any letters: the sum, or the first value, of all that match.
    factor: float = 1.0

    @property
    def is_pattern(self) -> bool:
        """Whether the name stands for several columns."""
        return "*" in self.name


@dataclass(frozen=True)
class Formula:
    """What of a source makes a column of the trace."""

    text: str  #: as it was written; errors name it
    alternatives: tuple[tuple[Term, ...], ...]
    """The first that has a value counts; each is a sum, in which what is missing counts as 0."""

    @classmethod
    def parse(cls, text: str, below: Sequence[str] = ()) -> Self:
        """Read a formula. A column may also stand below one of the objects `below`."""
        alternatives = []
        for alternative in text.split("|"):
            terms = [_term(part) for part in alternative.split("+")]
            for above in ("", *(f"{name}." for name in below)):
                alternatives.append(tuple(Term(above + one.name, one.factor) for one in terms))
        return cls(text, tuple(alternatives))

    @cached_property
    def names(self) -> list[str]:
        """All columns of a source that it names; patterns among them."""
        return list(dict.fromkeys(term.name for terms in self.alternatives for term in terms))

    @property
    def column(self) -> str | None:
        """The one column that it takes as it is; None: it computes."""
        (first, *others) = self.alternatives
        is_one = not others and len(first) == 1 and first[0].factor == 1
        return first[0].name if is_one and not first[0].is_pattern else None

    def matching(self, names: Collection[str]) -> list[str]:
        """Return which of a source's columns it takes."""
        exact = [name for name in names if name in self.names]
        patterns = [name for name in self.names if "*" in name]
        return exact + [
            name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)
        ]

    def in_source(self, names: Collection[str]) -> Self:
        """Return the formula for a source: a column that is called like the whole text is meant."""
        return type(self)(self.text, ((Term(self.text),),)) if self.text in names else self

    def among(self, names: Collection[str]) -> Self:
        """Return the formula with the columns that a source has, patterns resolved."""
        alternatives = []
        for terms in self.alternatives:
            there = [
                Term(name, term.factor)
                for term in terms
                for name in (
                    [one for one in names if fnmatchcase(one, term.name)]
                    if term.is_pattern
                    else [term.name] * (term.name in names)
                )
            ]
            if there:
                alternatives.append(tuple(there))
        return type(self)(self.text, tuple(alternatives))


def _term(text: str) -> Term:
    name = text.strip()
    factor = 1.0
    if match := _FACTOR.fullmatch(name):
        name = match[1].strip()
        factor = float(match[2])
    return Term(name, factor)


@dataclass(frozen=True)
class Condition:
    """Which rows of a source are requests: those where a column has, or has not, certain values."""

    formula: Formula
    values: tuple[str, ...]  #: in small letters; `*` stands for any letters
    is_excluding: bool  #: Whether rows with these values are left out; else all others are.
    is_asked: bool = False  #: Whether a user states it: then a source has to have the column.

    @classmethod
    def parse(cls, text: str, below: Sequence[str] = (), *, is_asked: bool = False) -> Self:
        """Read `column=value|value` or `column!=value`. Raises InputError: it is neither."""
        match = _CONDITION.fullmatch(text.strip())
        if match is None or not match[3]:
            problem = f"{text!r} is no condition"
            fix = "give COLUMN=VALUE or COLUMN!=VALUE, several values with | between, e.g. "
            raise InputError(problem, field="where", fix=f"{fix}call_type=completion|acompletion")
        values = tuple(value.strip().lower() for value in match[3].split("|"))
        return cls(Formula.parse(match[1], below), values, match[2] == "!=", is_asked)

    def leaves_out(self, value: str | None) -> bool:
        """Return whether rows in which the column has this value are no requests."""
        small = "" if value is None else value.lower()
        is_meant = value is not None and any(fnmatchcase(small, one) for one in self.values)
        return is_meant if self.is_excluding else not is_meant


def conditions(text: str) -> list[Condition]:
    """Return the conditions of a text, all of which have to hold: commas stand between them."""
    return [Condition.parse(part, is_asked=True) for part in text.split(",")]


def is_error_name(name: str) -> bool:
    """Return whether a column's name says that it holds what went wrong with a request."""
    return _ERROR_NAME.fullmatch(name) is not None


def is_cache_name(name: str) -> bool:
    """Return whether a column's name says that it counts input tokens from or for a cache."""
    return _CACHE_NAME.fullmatch(name) is not None


def is_negative_name(name: str) -> bool:
    """Return whether a column is a truth value that is true where a request failed."""
    return _NEGATIVE_NAME.fullmatch(name) is not None
