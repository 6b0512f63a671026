"""One CSV of LLM-Pilot's archive: its rows, checked, become requests of the benchmark contract.

As the authors define `latency_ms_per_token` (Lazuka et al., LLM-Pilot, SC 2024, and its
repository), the first entry is the time until the stream was acknowledged, the second is TTFT,
and the entries after it are ITL. A request is therefore `scheduled` here when it started and
`sent` when its stream was acknowledged. A level's clock starts with its first request.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from sextant.base.errors import InputError
from sextant.points.cells.tables import REQUEST_SCHEMA

# Found by name: some files have one more column in front of them.
_COLUMNS = {
    "model": pa.string(),
    "n_gpus": pa.int32(),
    "gpu_type": pa.string(),
    "num_users": pa.int32(),
    "status": pa.int32(),
    "errors": pa.string(),
    "start_timestamp": pa.int64(),
    "experiment_duration_s": pa.float64(),
    "n_input_tokens": pa.float64(),
    "n_output_tokens": pa.float64(),
    "latency_ms_per_token": pa.string(),
}
_SUCCESS = 200
_MILLISECONDS = r"^\[\d{1,9}(, \d{1,9})*\]$"
# As much of an error as the load client keeps.
_ERROR_CHARACTERS = 300
_FIX = "give the file as its publisher wrote it"


_FILE_NAME = re.compile(r"results_(.+)_gpu(\d+)_([a-z0-9]+)_u(\d+)\.csv")


class FileName(NamedTuple):
    """What the name of a file says of the columns of these names, spelt as in the name."""

    model: str
    n_gpus: int
    gpu_type: str
    num_users: int

    @classmethod
    def of(cls, path: str) -> "FileName":
        """Read `results_<llm>_gpu<n>_<type>_u<users>.csv`, which the path ends in."""
        match = _FILE_NAME.fullmatch(Path(path).name)
        assert match is not None  # by the manifest's schema
        model, n_gpus, gpu_type, users = match.groups()
        return cls(model, int(n_gpus), gpu_type, int(users))


class Results(NamedTuple):
    """What one file holds."""

    requests: pa.Table
    """Rows of the contract's `requests.parquet`, in the order of the file."""
    started_ms: int
    """Start of the first request, since the epoch."""
    duration_s: float
    """`experiment_duration_s`, which throughput refers to."""


def read_results(content: bytes, file: str, expected: FileName) -> Results:
    """Read a file of results; `file` is its path, for messages, `expected` what its name says.

    Raises InputError: a column is missing, a row is malformed or is not what the name says.
    """
    options = csv.ConvertOptions(column_types=_COLUMNS, include_columns=list(_COLUMNS))
    try:
        rows = csv.read_csv(pa.BufferReader(content), convert_options=options).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        problem = f"cannot be read ({' '.join(str(error).split())})"
        raise InputError(problem, file=file, fix=_FIX) from None
    if not len(rows):
        raise InputError("the file has no rows", file=file, fix=_FIX)
    columns = {name: rows[name].combine_chunks() for name in _COLUMNS}
    for field, (is_sound, problem) in _checks(columns, expected).items():
        is_fault = pc.invert(pc.fill_null(is_sound, False))
        if pc.any(is_fault).as_py():
            line = pc.index(is_fault, True).as_py() + 2  # below the header
            raise InputError(problem, file=file, row=line, field=field, fix=_FIX)
    started_ms = pc.min(columns["start_timestamp"]).as_py()
    requests = _requests(columns, expected.num_users, started_ms)
    return Results(requests, started_ms, columns["experiment_duration_s"][0].as_py())


def _checks(columns: Mapping[str, pa.Array], expected: FileName) -> dict:
    """Return by field which rows are sound, and what is wrong with the others."""
    spelt = {
        **columns,
        "model": pc.replace_substring(columns["model"], "/", "__"),
        "gpu_type": pc.utf8_lower(columns["gpu_type"]),
    }
    checks = {
        field: (pc.equal(spelt[field], value), f"not {value}, as the file's name says")
        for field, value in expected._asdict().items()
    }
    for field in ("status", "start_timestamp"):
        checks[field] = pc.is_valid(columns[field]), "not a number"
    durations_s, texts = columns["experiment_duration_s"], columns["latency_ms_per_token"]
    is_duration = pc.and_(pc.greater(durations_s, 0), pc.equal(durations_s, durations_s[0]))
    checks["experiment_duration_s"] = is_duration, "not positive, or not the same in all rows"
    is_failed = pc.not_equal(columns["status"], _SUCCESS)
    for field in ("n_input_tokens", "n_output_tokens"):
        count = columns[field]
        is_count = pc.and_(pc.greater(count, 0), pc.equal(count, pc.trunc(count)))
        is_unknown = pc.and_(is_failed, pc.is_null(count))
        checks[field] = pc.or_kleene(is_unknown, is_count), "not a count"
    is_list = pc.match_substring_regex(texts, _MILLISECONDS)
    has_token = pc.or_(is_failed, pc.match_substring(texts, ","))
    checks["latency_ms_per_token"] = (
        pc.and_(is_list, has_token),
        "not a list of ms, or without a token's",
    )
    return checks


def _requests(columns: Mapping[str, pa.Array], users: int, started_ms: int) -> pa.Table:
    """Return the rows of `requests.parquet`; null is what the archive does not say."""
    texts = pc.utf8_slice_codeunits(columns["latency_ms_per_token"], 1, -1)
    entries = pc.split_pattern(texts, ", ").cast(pa.list_(pa.int32()))
    lengths, ms = entries.value_lengths().to_numpy(), entries.flatten().to_numpy()
    last = np.cumsum(lengths) - 1
    first = last - lengths + 1
    sums_ms = np.cumsum(ms, dtype=np.int64)
    since_sent_ms = sums_ms - np.repeat(sums_ms[first], lengths)
    sent_ms = columns["start_timestamp"].to_numpy() - started_ms + ms[first]
    token_ends = np.concatenate([[0], np.cumsum(lengths - 1)])
    has_no_token = lengths == 1

    def token_s(entry: np.ndarray) -> pa.Array:
        return pa.array((sent_ms + since_sent_ms[entry]) / 1000, mask=has_no_token)

    known = {
        "level": np.full(len(lengths), users, float),
        "scheduled_s": (sent_ms - ms[first]) / 1000,
        "sent_s": sent_ms / 1000,
        "first_token_s": token_s(np.minimum(first + 1, last)),
        "last_token_s": token_s(last),
        "token_offsets_ms": pa.ListArray.from_arrays(
            pa.array(token_ends, pa.int32()),
            pa.array(np.delete(since_sent_ms, first), pa.float32()),
        ),
        "input_tokens": columns["n_input_tokens"].cast(pa.int32()),
        "output_tokens": columns["n_output_tokens"].cast(pa.int32()),
        **_outcomes(columns["status"], columns["errors"]),
    }
    unknown = {field.name: pa.nulls(len(lengths), field.type) for field in REQUEST_SCHEMA}
    return pa.table({**unknown, **known}, schema=REQUEST_SCHEMA)


def _outcomes(status: pa.Array, errors: pa.Array) -> dict[str, pa.Array]:
    """Return `status` and `error`. A stream that broke off is incomplete, whatever broke it."""
    is_ok, is_late = pc.equal(status, _SUCCESS), pc.match_substring(errors, "deadline exceeded")
    said = pc.binary_join_element_wise("status", status.cast(pa.string()), errors, " ")
    return {
        "status": pc.if_else(is_ok, "ok", pc.if_else(is_late, "timeout", "incomplete")),
        "error": pc.if_else(is_ok, None, pc.utf8_slice_codeunits(said, 0, _ERROR_CHARACTERS)),
    }
