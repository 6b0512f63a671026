"""The trace contract, and the formats of publishers."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, absence, reading
from sextant.base.resources import resource
from sextant.base.sheets import read_yaml
from sextant.trace.documents import RequestTest, flat_object, with_objects
from sextant.trace.formula import Condition, Formula

MAX_INT32 = 2**31 - 1
MAX_SPAN_S = 1e8
"""A trace of more than three years has a wrong time in it."""
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
FORMATS_FILE = resource("traces/formats.yaml")
MAPPED = "columns"
"""The format of a source whose columns the user names."""
NUMBER_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
"""Units of arrivals that are numbers, in a second, by their name."""
DATE_UNITS = ("iso", "mdy", "dmy")
"""Arrivals that are date-times: the year first; of those with the year last the month or the day
first."""
TIME_UNITS = NUMBER_UNITS | dict.fromkeys(DATE_UNITS, 1e9)
"""Units of the arrivals in a second, by their name; date-times are read as nanoseconds."""
JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
END = "end_s"
"""When a request's last token came: E2E is the time since its arrival, or its arrival the time
before by E2E."""
N_ANSWERS = "n_answers"
"""How many answers a request asks for: its output tokens are theirs together."""
ALIASES = {"arrival": "arrival_s", "end": END}
"""What a mapping calls columns that have a unit of the source's own."""
SOURCE_TYPES = {
    **{name: pa.float64() if kind == pa.int32() else kind for name, kind in COLUMN_TYPES.items()},
    "arrival_s": pa.int64(),
    END: pa.int64(),
    N_ANSWERS: pa.float64(),
}
"""As what a source's column is read: "5.0" is a whole number too; int64 are date-times, which may
be numbers."""


@dataclass(frozen=True)
class TraceFormat:
    """How a publisher writes a trace. Columns are found by name, in any order."""

    columns: Mapping[str, Formula]
    """Column of the trace (`SOURCE_TYPES`) -> what of the source makes it."""
    optional: Collection[str] = ()  #: Columns of the trace that a file may lack.
    unused: Collection[str] = ()  #: Columns of the source that are known and not taken.
    where: Sequence[Condition] = ()  #: Which rows are requests: all conditions hold.
    status_words: Mapping[str, str | None] = field(default_factory=dict)
    """A word of the status, in small letters -> ok, failed or None: it says neither."""
    time_unit: str = "s"  #: Unit of the arrival column, a name in `TIME_UNITS`.
    is_jsonl: bool = False
    delimiter: str = ","  #: What stands between the cells of CSV.
    is_log: bool = False
    """Whether it is a log: a line of JSON may lack columns, and times may count from 1970."""
    ignores_unknown: bool = False  #: Whether other columns are left out, in place of being refused.
    is_nested: bool = False  #: Whether a line is a session, with its requests (`sessions`).
    parts: Sequence[str] = ()
    """Kinds of parts that prompts are put together from; columns `<kind>_ids`, `<kind>_tokens`."""
    block_tokens: int | None = None
    """Input tokens that one of its `hash_ids` stands for; None: it has none."""

    @classmethod
    def of_facts(cls, facts: Mapping[str, Any]) -> Self:
        """Return the format of an entry of formats.yaml."""
        below = facts.get("below", ())
        columns = {
            ALIASES.get(name, name): Formula.parse(text, below)
            for name, text in facts["columns"].items()
        }
        optional = [ALIASES.get(name, name) for name in facts.get("optional", ())]
        words = {str(word).lower(): says for word, says in facts.get("status_words", {}).items()}
        where = [Condition.parse(text, below) for text in facts.get("where", ())]
        others = {
            name: value
            for name, value in facts.items()
            if name not in ("below", "columns", "optional", "status_words", "where")
        }
        return cls(columns, optional, where=where, status_words=words, **others)

    @property
    def is_datetime(self) -> bool:
        """Whether arrivals are date-times, which are read as nanoseconds."""
        return self.time_unit in DATE_UNITS

    @property
    def day_first(self) -> bool | None:
        """Whether date-times with the year last begin with the day; None: there are none."""
        return None if self.time_unit == "iso" else self.time_unit == "dmy"

    @property
    def units_per_s(self) -> float:
        """Units of the arrival column in a second."""
        return TIME_UNITS[self.time_unit]

    @property
    def schema(self) -> pa.Schema:
        """The trace contract as it is written for this format."""
        if self.block_tokens is None:
            return SCHEMA
        return SCHEMA.append(pa.field(HASH_IDS, COLUMN_TYPES[HASH_IDS]))

    @property
    def formulas(self) -> list[Formula]:
        """What the format takes of a source: columns of the trace, and conditions."""
        return [*self.columns.values(), *(condition.formula for condition in self.where)]

    @cached_property
    def names(self) -> list[str]:
        """All columns of the source that the format knows; patterns among them."""
        taken = [name for formula in self.formulas for name in formula.names]
        return [*taken, *self._parts_columns, *self.unused]

    @cached_property
    def parents(self) -> frozenset[str]:
        """Objects in which these columns lie."""
        parts = [name.partition("*")[0].partition("[]")[0].split(".") for name in self.names]
        within = (".".join(part[:n]) for part in parts for n in range(1, len(part)))
        lists = (name.partition("[]")[0] for name in self.names if "[]" in name)
        return frozenset((*within, *lists))

    @property
    def outer_names(self) -> list[str]:
        """Fields that may lie around a request, in the objects that hold it."""
        return sorted({name.partition(".")[0] for name in self.names if "." in name})

    @cached_property
    def test(self) -> RequestTest:
        """How an object of JSON shows that it is a request of this format."""
        tokens = [self.columns[name] for name in NEEDED_COLUMNS[1:]]
        times = [self.columns[name] for name in ("arrival_s", END) if name in self.columns]

        def has(formulas: Sequence[Formula], value: dict[str, Any]) -> bool:
            row = with_objects(flat_object(value), self.parents)
            there = {name for name, cell in row.items() if cell is not None}
            return any(formula.matching(there) for formula in formulas)

        return RequestTest(partial(has, tokens), partial(has, times))

    def in_source(self, names: Collection[str]) -> Self:
        """Return the format for a source with these columns: formulas may be names of them."""
        columns = {target: formula.in_source(names) for target, formula in self.columns.items()}
        return replace(self, columns=columns)

    def sources(self, names: Collection[str]) -> dict[str, str]:
        """Return column of the trace -> what errors call it, of those that a file has."""
        return {
            target: formula.text
            for target, formula in self.columns.items()
            if formula.matching(names)
        }

    def missing(self, names: Collection[str]) -> str | None:
        """Return what a file with these columns lacks, as its formula says; None: nothing."""
        there = self.sources(names)
        for target, formula in self.columns.items():
            is_made = target == "arrival_s" and END in there and "e2e_ms" in there
            if target not in there and target not in self.optional and not is_made:
                return formula.text
        return next((name for name in self._parts_columns if name not in names), None)

    @property
    def _parts_columns(self) -> list[str]:
        return [f"{kind}_{what}" for kind in self.parts for what in ("ids", "tokens")]


@cache
def published_formats() -> dict[str, TraceFormat]:
    """Return the formats of publishers by their names."""
    return {name: TraceFormat.of_facts(facts) for name, facts in read_yaml(FORMATS_FILE).items()}


def require_trace(path: str | Path) -> pq.ParquetFile:
    """Open a normalised trace; raise InputError if it is none, or has no row."""
    fix = "ingest the trace first (`sextant ingest`); `make demo` makes those of the README"
    if not Path(path).is_file():
        raise InputError(absence(path), file=path, fix=fix)

    with reading(path, fix=MAKE_TRACE_AGAIN):
        with Path(path).open("rb") as file:
            if not b"PAR1".startswith(file.read(4)):
                fix = "make one of a log with `sextant ingest`"
                raise InputError("this is no normalised trace", file=path, fix=fix)
        stored = pq.ParquetFile(path, page_checksum_verification=True)

    for name in TRACE_COLUMNS:
        if name not in stored.schema_arrow.names:
            raise InputError("column missing", file=path, field=name, fix=fix)

    if stored.metadata.num_rows == 0:
        raise InputError("the trace has no rows", file=path, fix="give a trace with rows")

    first_s, last_s = _span_s(stored.metadata)
    if first_s < 0 or last_s > MAX_SPAN_S:
        fix = "ingest the log: `sextant ingest` counts times from the first request"
        problem = f"times do not ascend from 0 to at most {MAX_SPAN_S:g} s"
        raise InputError(problem, file=path, field="arrival_s", fix=fix)

    return stored


def _span_s(metadata: pq.FileMetaData) -> tuple[float, float]:
    """Return the first and the last arrival as far as a file's statistics tell; else 0."""
    ends = [0.0]
    starts = []
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(metadata.num_columns)):
            statistics = column.statistics
            if column.path_in_schema == "arrival_s" and statistics and statistics.has_min_max:
                starts.append(float(statistics.min))
                ends.append(float(statistics.max))
    return min(starts, default=0.0), max(ends)


def sql_text(value: object) -> str:
    """Return `value` as an SQL string literal."""
    return "'" + str(value).replace("'", "''") + "'"


def parquet_rows(path: str | Path, *, has_row_number: bool = False) -> str:
    """Return the SQL relation of one Parquet file's rows, with `file_row_number` if asked for."""
    # DuckDB would take `*`, `?`, `[` for patterns, `~` for a home, `status=failed/` for a column.
    literal = re.sub(r"([*?\[])", r"[\1]", str(Path(path).absolute()))
    number = ", file_row_number = true" if has_row_number else ""
    return f"read_parquet({sql_text(literal)}, hive_partitioning = false{number})"
