"""Forms of date-times in logs: the year first or last, months by name, 12 or 24 hours."""

import re
from collections.abc import Iterable
from datetime import datetime, timedelta

from sextant.base.errors import InputError

NS_PER_S = 10**9
UNKNOWN = -1
UNZONED = 0
ZONED = 1
FORMS = (
    "YYYY-MM-DD HH:MM[:SS[.fraction]] with or without a zone, also with T or /; M/D/YYYY or "
    "D/M/YYYY with HH:MM:SS, or with AM or PM; 6 Aug 2026, Aug 6, 2026 or 06/Aug/2026 with a time"
)
_YEAR = r"(?P<year>(?:1[7-9]|2[01])\d\d)"
_NAME = r"(?P<name>[a-z]{3})[a-z]*\.?"
_DAY = r"(?P<day>\d\d?)"
_TIME = r"""
    (?: (?: ,?[ ]+(?:@[ ]+)? | T | : )
        (?P<hour>\d\d?) : (?P<minute>\d\d) (?: : (?P<second>\d\d) (?: [.,] (?P<fraction>\d*) )? )?
        (?: [ \u00a0\u202f]? (?P<half>[ap]) \.? m \.? )?
    )?
    [ ]? (?: (?P<utc>Z|UTC|GMT)
        | (?P<sign>[+-]) (?P<hours>[01]\d|2[0-3]) (?: :? (?P<minutes>[0-5]\d) )? )?
"""
_WEEKDAY = r"(?: (?:mon|tue|wed|thu|fri|sat|sun)[a-z]* ,?[ ]+ )?"
_YEAR_FIRST = rf"{_YEAR} (?P<mark>[-/]) (?P<month>\d\d?) (?P=mark) {_DAY}"
_YEAR_LAST = rf"(?P<first>\d\d?) (?P<mark>[-/.]) (?P<other>\d\d?) (?P=mark) {_YEAR}"
_MONTH_NAME = rf"{_WEEKDAY} {_NAME} [ ]+ {_DAY} ,?[ ]+ {_YEAR}"
_DAY_NAME = rf"{_WEEKDAY} {_DAY} (?P<mark>[ /-]) {_NAME} (?P=mark) {_YEAR}"
_FLAGS = re.ASCII | re.VERBOSE | re.IGNORECASE
_FORMS = [
    re.compile(form + _TIME, _FLAGS) for form in (_YEAR_FIRST, _YEAR_LAST, _MONTH_NAME, _DAY_NAME)
]
_LAST = _FORMS[1]
_MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]


def moment_of(text: str, day_first: bool | None = None) -> tuple[int | None, int]:
    """Return a date-time's nanoseconds since 1970 (UTC), None if it is not one, and its zone.

    `day_first` says how a date with the year last begins; None: such a date is not read.
    """
    stripped = text.strip("[]")
    match = next(filter(None, (form.fullmatch(stripped) for form in _FORMS)), None)
    if match is None:
        return None, UNKNOWN

    parts = match.groupdict()
    day = parts.get("day")
    month = parts.get("month")
    if (name := parts.get("name")) is not None:
        if name.lower() not in _MONTHS:
            return None, UNKNOWN
        month = 1 + _MONTHS.index(name.lower())
    elif (first := parts.get("first")) is not None:
        if day_first is None:
            return None, UNKNOWN
        day, month = (first, parts["other"]) if day_first else (parts["other"], first)

    hour = int(parts["hour"] or 0)
    minute = int(parts["minute"] or 0)
    second = int(parts["second"] or 0)
    if half := parts["half"]:
        if not 1 <= hour <= 12:
            return None, UNKNOWN
        hour = hour % 12 + 12 * (half.lower() == "p")
    is_midnight = hour == 24 and not minute and not second  # of the day that follows
    try:
        moment = datetime(
            int(parts["year"]),
            int(month or 0),
            int(day or 0),
            hour % 24 if is_midnight else hour,
            minute,
            second,
        )
        moment += timedelta(days=is_midnight)
    except ValueError:
        return None, UNKNOWN

    sign = parts["sign"]
    if sign:
        offset = timedelta(hours=int(parts["hours"]), minutes=int(parts["minutes"] or 0))
        moment += offset if sign == "-" else -offset

    seconds = (moment - datetime(1970, 1, 1)) // timedelta(seconds=1)
    ns = seconds * NS_PER_S + int((parts["fraction"] or "")[:9].ljust(9, "0"))

    return ns, ZONED if parts["utc"] or sign else UNZONED


def has_year_last(text: str) -> bool:
    """Return whether a text is a date of numbers whose year comes last."""
    return _LAST.fullmatch(text.strip().strip("[]")) is not None


def is_day_first(texts: Iterable[str]) -> bool:
    """Return whether dates of numbers with the year last begin with the day.

    One number above 12 tells it for all; dots stand between them where the day comes first, and AM
    or PM where the month does. Raises InputError: nothing tells it.
    """
    example = ""
    for text in texts:
        match = _LAST.fullmatch(text.strip().strip("[]"))
        if match is None:
            continue
        example = example or text
        if int(match["first"]) > 12 or match["mark"] == ".":
            return True
        if int(match["other"]) > 12:
            return False

    match = _LAST.fullmatch(example.strip().strip("[]"))
    if match is not None and match["half"]:
        return False
    problem = f"of {example!r} and all other dates it is unclear which number is the day"
    fix = (
        "give --time-unit dmy (the day first) or --time-unit mdy (the month first), `time_unit` in "
    )
    fix += "a sheet or a mapping file"
    raise InputError(problem, fix=fix)
