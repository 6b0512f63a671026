"""The trace contract, and the formats in which publishers write traces."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, reading

MAX_INT32 = 2**31 - 1

TRACE_COLUMNS = {
    "request_id": pa.string(),
    "arrival_s": pa.float64(),
    "input_tokens": pa.int32(),
    "output_tokens": pa.int32(),
    "llm": pa.string(),
    "service": pa.string(),
    "session_id": pa.string(),
    "batch_size": pa.int32(),
    "is_greedy": pa.bool_(),
    "temperature": pa.float64(),
    "top_k": pa.int32(),
    "top_p": pa.float64(),
    "e2e_ms": pa.float64(),
    "status": pa.string(),
}
"""The trace contract: the type of each column, in the order of the file."""
CODED = pa.dictionary(pa.int32(), pa.string())
"""How the columns that hold few different texts are stored."""
CODED_COLUMNS = ("llm", "service", "status")
_NEVER_NULL = ("request_id", "arrival_s", "input_tokens", "output_tokens", "status")
SCHEMA = pa.schema(
    pa.field(name, CODED if name in CODED_COLUMNS else kind, nullable=name not in _NEVER_NULL)
    for name, kind in TRACE_COLUMNS.items()
)
"""The trace contract as it is written."""
HASH_IDS = "hash_ids"
"""One more column, where the format has it: ids of the blocks of an input. Inputs that begin with
the same ids begin with the same tokens; `block_tokens` of the provenance is how many an id has."""
COLUMN_TYPES = TRACE_COLUMNS | {HASH_IDS: pa.list_(pa.int64())}
NEEDED_COLUMNS = ("arrival_s", "input_tokens", "output_tokens")
# Lowest sensible value of a number; 0 for all others. Engines write top_k = -1 for "no limit".
MINIMUM = {"input_tokens": 1, "batch_size": 1, "top_k": -1}

BLANK = "blank line"
"""The reason of a line that holds nothing: it is not a row, neither accepted nor rejected."""


@dataclass(frozen=True)
class TraceFormat:
    """How a publisher writes a trace. Columns are found by name, in any order."""

    columns: Mapping[str, str | None]
    """Source column -> trace column; None: known, but nothing is taken from it."""
    optional: frozenset[str] = frozenset()
    units_per_s: float = 1.0
    """Units of the arrival column in a second; date-times are read as nanoseconds."""
    is_datetime: bool = False
    is_jsonl: bool = False
    factors: Mapping[str, float] = field(default_factory=dict)
    """Trace column -> factor that brings the source's unit to the trace's."""
    is_log: bool = False
    """Whether it is a log: a line of JSON may lack columns, and times may count from 1970."""
    ignores_unknown: bool = False
    """Whether other columns are left out, in place of being refused."""
    block_tokens: int | None = None
    """Input tokens that one of its `hash_ids` stands for; None: it has none."""

    @property
    def schema(self) -> pa.Schema:
        """The trace contract as it is written for this format."""
        if self.block_tokens is None:
            return SCHEMA
        return SCHEMA.append(pa.field(HASH_IDS, COLUMN_TYPES[HASH_IDS]))

    @property
    def required(self) -> list[str]:
        """Source columns that a file has to have."""
        return [name for name in self.columns if name not in self.optional]

    def sources(self, names: Sequence[str]) -> dict[str, str]:
        """Return trace column -> source column, of the columns `names` that a file has."""
        return {target: name for name, target in self.columns.items() if target and name in names}


FORMATS = {
    "azure": TraceFormat(
        {
            "TIMESTAMP": "arrival_s",
            "ContextTokens": "input_tokens",
            "GeneratedTokens": "output_tokens",
        },
        units_per_s=1e9,
        is_datetime=True,
    ),
    "burstgpt": TraceFormat(
        {
            "Timestamp": "arrival_s",
            "Model": "llm",
            "Request tokens": "input_tokens",
            "Response tokens": "output_tokens",
            "Total tokens": None,
            "Log Type": "service",
            "Session ID": "session_id",
            "Elapsed time": "e2e_ms",
        },
        optional=frozenset({"Session ID", "Elapsed time"}),
        factors={"e2e_ms": 1000.0},
    ),
    "mooncake": TraceFormat(
        {
            "timestamp": "arrival_s",
            "input_length": "input_tokens",
            "output_length": "output_tokens",
            "hash_ids": HASH_IDS,
        },
        optional=frozenset({"hash_ids"}),
        units_per_s=1e3,
        is_jsonl=True,
        block_tokens=512,
    ),
    "qwen-bailian": TraceFormat(
        {
            "timestamp": "arrival_s",
            "input_length": "input_tokens",
            "output_length": "output_tokens",
            "chat_id": "request_id",
            "type": "service",
            "parent_chat_id": None,
            "turn": None,
            "hash_ids": HASH_IDS,
        },
        optional=frozenset({"type", "parent_chat_id", "turn", "hash_ids"}),
        is_jsonl=True,
        block_tokens=16,
    ),
    "openai": TraceFormat(
        {
            "created": "arrival_s",
            "usage.prompt_tokens": "input_tokens",
            "usage.completion_tokens": "output_tokens",
            "model": "llm",
            "id": "request_id",
        },
        optional=frozenset({"model", "id"}),
        is_jsonl=True,
        is_log=True,
        ignores_unknown=True,
    ),
    "litellm": TraceFormat(
        {
            "startTime": "arrival_s",
            "prompt_tokens": "input_tokens",
            "completion_tokens": "output_tokens",
            "model": "llm",
            "id": "request_id",
            "status": "status",
        },
        optional=frozenset({"model", "id", "status"}),
        is_jsonl=True,
        is_log=True,
        ignores_unknown=True,
    ),
    "sextant": TraceFormat(
        {name: name for name in TRACE_COLUMNS},
        optional=frozenset(TRACE_COLUMNS) - set(NEEDED_COLUMNS),
    ),
}


def require_trace(path: str | Path) -> pq.ParquetFile:
    """Open a normalised trace.

    Raises InputError: no such file, no Parquet, a column of the contract is missing, or no row.
    """
    fix = "ingest the trace first (`sextant ingest`)"
    if not Path(path).is_file():
        raise InputError("there is no such file", file=path, fix=fix)
    with reading(path, fix=MAKE_TRACE_AGAIN):
        stored = pq.ParquetFile(path, page_checksum_verification=True)
    for name in TRACE_COLUMNS:
        if name not in stored.schema_arrow.names:
            raise InputError("column missing", file=path, field=name, fix=fix)
    if stored.metadata.num_rows == 0:
        raise InputError("the trace has no rows", file=path, fix="give a trace with rows")
    return stored


def sql_text(value: object) -> str:
    """Return `value` as an SQL string literal."""
    return "'" + str(value).replace("'", "''") + "'"


def parquet_rows(path: str | Path, *, has_row_number: bool = False) -> str:
    """Return the SQL relation of one Parquet file's rows, whatever its path looks like.

    DuckDB would take `*`, `?` and `[` for patterns, `~` for a home, and a folder `status=failed`
    for a column that stands before the file's own. `file_row_number` is added if asked for.
    """
    literal = re.sub(r"([*?\[])", r"[\1]", str(Path(path).absolute()))
    number = ", file_row_number = true" if has_row_number else ""
    return f"read_parquet({sql_text(literal)}, hive_partitioning = false{number})"
