"""A normalised trace that is passed as a frame."""

from pathlib import Path

import pandas as pd
import pyarrow as pa

from sextant.base.errors import InputError
from sextant.base.files import write_parquet
from sextant.trace.trace_format import COLUMN_TYPES, HASH_IDS, NEEDED_COLUMNS, TRACE_COLUMNS


def write_frame(frame: "pd.DataFrame", path: Path, keyword: str) -> None:
    """Write a frame with columns of a normalised trace; columns that it lacks are unknown.

    Parameters
    ----------
    frame
        One row per request: at least `arrival_s` (rising), `input_tokens`, `output_tokens`.
    path
        File to write.
    keyword
        The keyword that passes the frame, for the error.

    Raises
    ------
    InputError
        A column is missing, or its values are of another type.
    """
    problem = ""
    missing = [name for name in NEEDED_COLUMNS if name not in frame]
    unknown = [str(name) for name in frame if name not in COLUMN_TYPES]
    if missing or unknown:
        problem = f"the frame has no column {', '.join(missing)}"
        if unknown and not missing:
            problem = f"the frame has other columns than a trace: {', '.join(unknown)}"
    elif not len(frame):
        problem = "the frame has no rows"
    elif frame[[*NEEDED_COLUMNS]].isna().any().any():
        problem = f"values of {', '.join(NEEDED_COLUMNS)} are missing"
    elif not frame["arrival_s"].is_monotonic_increasing:
        problem = "arrival_s does not rise"
    if problem:
        names = ", ".join(TRACE_COLUMNS)
        fix = f"give the columns of a normalised trace (docs/workloads.md): {names}"
        raise InputError(problem, field=keyword, fix=fix)

    ids = frame["request_id"] if "request_id" in frame else pd.RangeIndex(len(frame))
    status = frame.get("status", "ok")
    # Ids of a file without types are numbers.
    whole = frame.assign(request_id=[str(request_id) for request_id in ids], status=status)
    types = {name: kind for name, kind in COLUMN_TYPES.items() if name != HASH_IDS or name in frame}
    whole = whole.reindex(columns=[*types])
    try:
        table = pa.Table.from_pandas(whole, pa.schema(types), preserve_index=False)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        fix = "give tokens as whole numbers, times in seconds as numbers, and texts as text"
        raise InputError(str(error.args[0]), field=keyword, fix=fix) from None
    write_parquet(path, table.replace_schema_metadata(None), {})
