"""Date-times of a source as nanoseconds, with or without a zone; the moment a trace begins."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sextant.base.errors import InputError
from sextant.trace.date_forms import NS_PER_S, UNKNOWN, UNZONED, ZONED, moment_of
from sextant.trace.trace_format import NUMBER_UNITS, TraceFormat

# The whole centuries that 64-bit nanoseconds can express: the years 1700 to 2199.
FIRST_NS = -8_520_336_000 * NS_PER_S
LAST_NS = 7_258_118_400 * NS_PER_S - 1
_EPOCH_S = (1e9, 4e9)  # numbers that count from 1970: of the years 2001 to 2096
YEAR_S = 365.25 * 86_400
WRONG_UNIT = "correct the unit of the arrivals (`--columns` with `--time-unit`)"
_SHORTEST_DATETIME = {UNZONED: len("2023-11-16 18:15"), ZONED: len("2023-11-16 18:15:46Z")}


def is_null(column: pa.Array) -> np.ndarray:
    """Return (n,) whether a value is missing."""
    if not column.null_count:
        return np.zeros(len(column), bool)
    return column.is_null().to_numpy(zero_copy_only=False)


def read_date_times(texts: pa.Array, day_first: bool | None = None) -> tuple[pa.Array, np.ndarray]:
    """Return nanoseconds since 1970 (UTC) and zones of date-times; null where unreadable.

    `day_first` says how dates with the year last begin; None: they are unreadable.
    """
    for zone, kind in ((UNZONED, pa.timestamp("ns")), (ZONED, pa.timestamp("ns", "UTC"))):
        try:
            moments = texts.cast(kind).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
        # Arrow also takes hours without minutes, and years that nanoseconds do not hold.
        shortest = pc.min(pc.binary_length(texts)).as_py()
        ends = pc.min_max(moments).as_py()
        if shortest is None or shortest < _SHORTEST_DATETIME[zone]:
            continue
        if ends["min"] >= FIRST_NS and ends["max"] <= LAST_NS:
            return moments, np.where(is_null(moments), UNKNOWN, zone)

    read = [
        (None, UNKNOWN) if text is None else moment_of(text, day_first)
        for text in texts.to_pylist()
    ]
    moments, zones = zip(*read, strict=True) if read else ((), ())
    return pa.array(moments, pa.int64()), np.array(zones, int)


def parse_time(text: str) -> tuple[int, bool]:
    """Return nanoseconds since 1970 of an ISO 8601 date-time, and whether it has a zone."""
    moment = datetime.fromisoformat(text)
    epoch = datetime(1970, 1, 1, tzinfo=UTC if moment.tzinfo else None)
    return (moment - epoch) // timedelta(microseconds=1) * 1000, moment.tzinfo is not None


def check_start_time(
    start_time: str, form: TraceFormat, *, file: str | Path | None = None, row: int | None = None
) -> None:
    """Refuse a `start_time` that is not an ISO 8601 date-time of the years 1700 to 2199.

    Refuse any for a format that has date-times itself. `file` and `row` are those of a sheet.
    """
    problem = None
    fix = "give an ISO 8601 date-time, e.g. 2023-11-16T00:00:00+08:00"
    if form.is_datetime:
        problem = "the format has date-times of its own"
        fix = "leave it out"
    else:
        try:
            if not FIRST_NS <= parse_time(start_time)[0] <= LAST_NS:
                problem = f"{start_time!r} is not in the years 1700 to 2199"
        except (TypeError, ValueError):
            problem = f"{start_time!r} is not a date-time"
    if problem is not None:
        raise InputError(problem, file=file, row=row, field="start_time", fix=fix)


def check_first_tick(
    source: str | Path, first_tick: float, form: TraceFormat, start_time: str | None
) -> None:
    """Refuse a first arrival that is not a plausible time in the unit of its source.

    Numbers of a log that would be a date from 2001 to 2096 in another unit have that unit.
    """
    if form.is_datetime or start_time is not None:
        return

    first_s = first_tick / form.units_per_s
    likely = likely_unit(first_tick)
    is_other = form.is_log and likely not in (None, form.time_unit)
    if first_s < _EPOCH_S[1] and not is_other:
        return

    year = 1970 + int(first_s / YEAR_S)
    problem = f"the first arrival, {first_tick:.17g}, read in {form.time_unit}, is of the year "
    problem += f"{year}" if year < 10_000 else f"{year:,}" if year < 1e12 else f"{year:.3g}"
    fix = WRONG_UNIT
    if likely is not None:
        date = datetime.fromtimestamp(first_tick / NUMBER_UNITS[likely], UTC)
        fix = f"give --columns with --time-unit {likely} (`time_unit: {likely}` in a mapping "
        fix += f"file): in {likely} it is of {date:%Y-%m-%d}; or --start-time, the date-time at "
        fix += "which the clock shows 0"

    raise InputError(problem, file=source, field="arrival_s", fix=fix)


def likely_unit(tick: float) -> str | None:
    """Return the unit in which a number is a date from 2001 to 2096; None: there is none."""
    units = NUMBER_UNITS.items()
    return next((name for name, per_s in units if _is_date(tick / per_s)), None)


def _is_date(since_1970_s: float) -> bool:
    return _EPOCH_S[0] <= since_1970_s < _EPOCH_S[1]


def start_facts(
    first_tick: float, form: TraceFormat, start_time: str | None, is_zoned: bool | None
) -> dict[str, Any]:
    """Return `start_time` and `first_tick_s` (see `job.ingest_trace`).

    `first_tick` is the first row's arrival in the source's unit. `start_time` is the date-time at
    which the source's clock shows zero.
    """
    if form.is_datetime:
        begin_ns = int(first_tick)
        first_tick_s = None
    else:
        first_tick_s = first_tick / form.units_per_s
        if start_time is None and form.is_log and _is_date(first_tick_s):
            start_time = "1970-01-01T00:00:00+00:00"
        if start_time is None:
            return {"start_time": None, "first_tick_s": first_tick_s}
        zero_ns, is_zoned = parse_time(start_time)
        # A float since 1970 has no more digits than microseconds.
        begin_ns = zero_ns + round(first_tick_s * 1e6) * 1000
        if begin_ns > LAST_NS:
            problem = f"the first row is {first_tick_s:g} s later, after the year 2199"
            fix = "give the date-time at which the source's clock shows zero, or correct the "
            raise InputError(problem, field="start_time", fix=fix + "first row")

    moment = str(np.datetime64(begin_ns, "ns")).rstrip("0").rstrip(".")
    return {"start_time": moment + "+00:00" * bool(is_zoned), "first_tick_s": first_tick_s}
