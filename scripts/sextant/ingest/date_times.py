"""Date-times of a source as nanoseconds, with or without a time zone."""

import re
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.ingest.start import FIRST_NS, LAST_NS, NS_PER_S

UNKNOWN, UNZONED, ZONED = -1, 0, 1
_DATETIME = re.compile(
    r"((?:1[7-9]|2[01])\d\d)(?P<mark>[-/])(\d\d?)(?P=mark)(\d\d?)"
    r"(?:(?: +|T)(\d\d?):(\d\d)(?::(\d\d)(?:\.(\d*))?)?)?"
    r" ?(?:(Z|UTC)|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?",
    re.ASCII,
)
_SHORTEST_DATETIME = {UNZONED: len("2023-11-16 18:15"), ZONED: len("2023-11-16 18:15:46Z")}


def is_null(column: pa.Array) -> np.ndarray:
    """Return (n,) whether a value is missing."""
    if not column.null_count:
        return np.zeros(len(column), bool)
    return column.is_null().to_numpy(zero_copy_only=False)


def read_date_times(texts: pa.Array) -> tuple[pa.Array, np.ndarray]:
    """Return nanoseconds since 1970 (UTC) and zones of date-times; null where unreadable."""
    for zone, kind in ((UNZONED, pa.timestamp("ns")), (ZONED, pa.timestamp("ns", "UTC"))):
        try:
            moments = texts.cast(kind).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
        # Arrow also takes hours without minutes, and years that nanoseconds do not hold.
        shortest, ends = pc.min(pc.binary_length(texts)).as_py(), pc.min_max(moments).as_py()
        if shortest is None or shortest < _SHORTEST_DATETIME[zone]:
            continue
        if ends["min"] >= FIRST_NS and ends["max"] <= LAST_NS:
            return moments, np.where(is_null(moments), UNKNOWN, zone)
    read = [(None, UNKNOWN) if text is None else _moment(text) for text in texts.to_pylist()]
    moments, zones = zip(*read, strict=True) if read else ((), ())
    return pa.array(moments, pa.int64()), np.array(zones, int)


def _moment(text: str) -> tuple[int | None, int]:
    """Return a date-time's nanoseconds since 1970 (UTC), None if it is not one, and its zone."""
    match = _DATETIME.fullmatch(text)
    if match is None:
        return None, UNKNOWN
    year, _, month, day, hour, *parts, fraction, utc, sign, hours, minutes = match.groups()
    minute, second = (int(part or 0) for part in parts)
    is_midnight = hour == "24" and not minute and not second  # of the day that follows
    try:
        date = datetime(int(year), int(month), int(day)) + timedelta(days=is_midnight)
        moment = date.replace(
            hour=0 if is_midnight else int(hour or 0), minute=minute, second=second
        )
    except ValueError:
        return None, UNKNOWN
    if sign:
        offset = timedelta(hours=int(hours), minutes=int(minutes or 0))
        moment += offset if sign == "-" else -offset
    seconds = (moment - datetime(1970, 1, 1)) // timedelta(seconds=1)
    ns = seconds * NS_PER_S + int((fraction or "")[:9].ljust(9, "0"))
    return ns, ZONED if utc or sign else UNZONED
