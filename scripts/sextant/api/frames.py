"""A normalised trace that is passed as a frame."""

from pathlib import Path

import pandas as pd
import pyarrow as pa
from pandas.api.types import (
    is_datetime64_any_dtype,
    is_numeric_dtype,
    is_timedelta64_dtype,
)

from sextant.base.errors import InputError
from sextant.base.files import write_parquet
from sextant.trace.trace_format import COLUMN_TYPES, HASH_IDS, NEEDED_COLUMNS, TRACE_COLUMNS


def write_frame(frame: "pd.DataFrame", path: Path, keyword: str) -> None:
    """Write a frame with columns of a normalised trace; columns that it lacks are unknown.

    Parameters
    ----------
    frame
        One row per request: at least `arrival_s` (rising, in seconds or as date-times),
        `input_tokens`, `output_tokens`. Times are counted from the first request, as ingest does.
    path
        File to write.
    keyword
        The keyword that passes the frame, for the error.

    Raises
    ------
    InputError
        A column is missing, or its values are of another type.
    """
    if problem := _problem_of(frame):
        names = ", ".join(TRACE_COLUMNS)
        fix = f"give the columns of a normalised trace (docs/workloads.md): {names}"
        raise InputError(problem, field=keyword, fix=fix)

    arrivals = frame["arrival_s"]
    since_first = arrivals - arrivals.iloc[0]
    if is_timedelta64_dtype(since_first):
        since_first = since_first.dt.total_seconds()
    ids = frame["request_id"] if "request_id" in frame else pd.RangeIndex(len(frame))
    status = frame.get("status", "ok")
    # Ids of a file without types are numbers.
    texts = [str(request_id) for request_id in ids]
    whole = frame.assign(arrival_s=since_first, request_id=texts, status=status)
    types = {name: kind for name, kind in COLUMN_TYPES.items() if name != HASH_IDS or name in frame}
    whole = whole.reindex(columns=[*types])
    try:
        table = pa.Table.from_pandas(whole, pa.schema(types), preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        fix = "give tokens as whole numbers, times in seconds as numbers, and texts as text"
        raise InputError(str(error.args[0]), field=keyword, fix=fix) from None
    write_parquet(path, table.replace_schema_metadata(None), {})


def _problem_of(frame: "pd.DataFrame") -> str | None:
    """Return what makes a frame no trace."""
    missing = [name for name in NEEDED_COLUMNS if name not in frame]
    if missing:
        return f"the frame has no column {', '.join(missing)}"
    unknown = [str(name) for name in frame if name not in COLUMN_TYPES]
    if unknown:
        return f"the frame has other columns than a trace: {', '.join(unknown)}"
    if not len(frame):
        return "the frame has no rows"
    if frame[[*NEEDED_COLUMNS]].isna().any().any():
        return f"values of {', '.join(NEEDED_COLUMNS)} are missing"
    arrivals = frame["arrival_s"]
    if not (is_numeric_dtype(arrivals) or is_datetime64_any_dtype(arrivals)):
        return "arrival_s has neither numbers nor date-times"
    if not arrivals.is_monotonic_increasing:
        return "arrival_s does not rise"
    return None
