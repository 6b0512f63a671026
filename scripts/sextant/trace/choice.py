"""The requests of one LLM or one service of a trace, and what a trace mixes."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import MAKE_TRACE_AGAIN, PROVENANCE_KEY, read_provenance, reading
from sextant.trace.trace_format import parquet_rows, require_trace

_BATCH_ROWS = 100_000
_MOST_SHOWN = 6
_NAMES = {"llm": "LLM", "service": "service"}
OPTIONS = {"llm": "--llm-in-trace", "service": "--service-in-trace"}
"""The options that choose, by the trace's column."""


@dataclass(frozen=True)
class TraceChoice:
    """Which requests of a trace count: those of one LLM, or of one service; None: of all."""

    llm: str | None = None
    service: str | None = None

    @property
    def values(self) -> dict[str, str]:
        """The trace's columns by which it chooses, each with its value."""
        chosen = {"llm": self.llm, "service": self.service}
        return {name: value for name, value in chosen.items() if value is not None}

    @property
    def facts(self) -> dict[str, str]:
        """What a file says of the choice that it was made by; nothing if all requests count."""
        return {f"{name}_in_trace": value for name, value in self.values.items()}


ALL_REQUESTS = TraceChoice()
CHOICE_FACTS = tuple(f"{name}_in_trace" for name in _NAMES)
"""Keys of `TraceChoice.facts`."""


class Share(NamedTuple):
    """One LLM or service of a trace."""

    name: str
    share: float  #: of the requests


@contextmanager
def chosen_requests(trace: str | Path, choice: TraceChoice) -> Iterator[Path]:
    """Yield a normalised trace with the chosen requests alone: the file itself if all count.

    Else it is a temporary file of the same name, with the trace's own clock and provenance. Raises
    InputError: the file is no trace, or has no such request.
    """
    if not choice.values:
        yield Path(trace)
        return

    stored = require_trace(trace)
    with TemporaryDirectory() as folder:
        part = Path(folder) / Path(trace).name
        schema = stored.schema_arrow
        n_chosen = 0
        with pq.ParquetWriter(part, schema, compression="zstd", store_schema=False) as writer:
            with reading(trace, fix=MAKE_TRACE_AGAIN):
                for batch in stored.iter_batches(_BATCH_ROWS):
                    chosen = batch.filter(_is_chosen(batch, choice))
                    n_chosen += len(chosen)
                    writer.write_batch(chosen)
            origin = read_provenance(trace) | choice.facts
            writer.add_key_value_metadata({PROVENANCE_KEY: json.dumps(origin).encode()})
        if not n_chosen:
            raise _none_of(trace, choice)
        try:
            yield part
        except InputError as error:
            if error.file is not None and Path(error.file) == part:
                raise error.at(file=trace) from None
            raise


def _is_chosen(batch: pa.RecordBatch, choice: TraceChoice) -> pa.Array:
    masks = [
        pc.fill_null(pc.equal(batch[name].cast(pa.string()), value), fill_value=False)
        for name, value in choice.values.items()
    ]
    return pa.array(np.logical_and.reduce([mask.to_numpy(zero_copy_only=False) for mask in masks]))


def _none_of(trace: str | Path, choice: TraceChoice) -> InputError:
    """Return the error for a choice that no request of a trace meets."""
    asked_for = " and ".join(f"the {_NAMES[name]} {it!r}" for name, it in choice.values.items())
    fixes = []
    for name in choice.values:
        names = [repr(share.name) for share in shares_of(trace, name)]
        there = ", ".join(names[:_MOST_SHOWN]) or "none"
        more = ", …" * (len(names) > _MOST_SHOWN)
        fixes.append(f"give {OPTIONS[name]} one of those it has ({there}{more})")
    options = ", ".join(OPTIONS[name] for name in choice.values)
    return InputError(f"no request of {asked_for}", file=trace, field=options, fix="; ".join(fixes))


def shares_of(trace: str | Path, column: str, choice: TraceChoice = ALL_REQUESTS) -> list[Share]:
    """Return the LLMs or the services of a trace's chosen requests, the largest first."""
    where = " AND ".join(f"{name} = ?" for name in choice.values) or "true"
    query = f"""SELECT {column}, count(*) AS n FROM {parquet_rows(trace)}
        WHERE {column} IS NOT NULL AND {where} GROUP BY {column} ORDER BY n DESC, {column}"""
    with reading(trace, duckdb.Error, fix=MAKE_TRACE_AGAIN), duckdb.connect() as database:
        database.execute("SET enable_progress_bar = false")
        rows = database.execute(query, [*choice.values.values()]).fetchall()
    total = sum(n for _, n in rows)
    return [Share(str(name), n / total) for name, n in rows]


def mixture_notes(trace: str | Path, choice: TraceChoice = ALL_REQUESTS) -> list[str]:
    """Return what a trace mixes among the chosen requests, in a line each; none: it is alike."""
    notes = []
    for column, name in _NAMES.items():
        if column in choice.values:
            continue
        shares = shares_of(trace, column, choice)
        if len(shares) < 2:
            continue
        listed = ", ".join(f"{it.name} {100 * it.share:.0f}%" for it in shares[:_MOST_SHOWN])
        more = ", …" * (len(shares) > _MOST_SHOWN)
        notes.append(
            f"{Path(trace).name}: the trace holds {len(shares)} {name}s: {listed}{more}; all count "
            f"together. {OPTIONS[column]} takes one of them."
        )
    return notes
