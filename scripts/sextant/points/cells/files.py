"""The one writer and the one reader of a cell's files."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from sextant.base.errors import InputError
from sextant.base.files import MAKE_AGAIN, read_json, read_parquet, write_json, write_parquet
from sextant.points.cells.integrity import CELL_FILES, FILES, SEAL, file_facts, sealed
from sextant.points.cells.run import CELL_KEY, CellRun
from sextant.points.cells.tables import TABLES
from sextant.points.cells.tuning import Tuning

if TYPE_CHECKING:  # a job that measures has no use for its memory
    import pandas as pd

FORMAT_VERSION = 2
"""Of `run.json` and `tuning.json`. Add 1 where a reader of the former version would misread."""
_VERSION = "format_version"
_T = TypeVar("_T")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_json(value: object) -> dict[str, Any]:
    """Return a dataclass of this room as JSON has it."""
    kind: Any = type(value)  # mypy takes classes for unhashable
    return _adapter(kind).dump_python(value, mode="json", warnings="error")


def from_json(kind: type[_T], value: object) -> _T:
    """Read what `to_json` returned; ValueError if a field is missing, unknown or malformed."""
    known: Any = kind
    return _adapter(known).validate_json(json.dumps(value))


def write_cell(
    folder: Path, run: CellRun, tuning: Tuning, tables: Mapping[str, pa.Table] | None = None
) -> None:
    """Write a cell's files; `run.json`, which declares the cell whole, comes last.

    `tables` have the names and columns of `TABLES`; one that is missing has no rows.
    """
    (folder / "run.json").unlink(missing_ok=True)
    for name, schema in TABLES.items():
        table = (tables or {}).get(name, schema.empty_table())
        write_parquet(folder / f"{name}.parquet", table, run.provenance)
    write_json(folder / "tuning.json", {_VERSION: FORMAT_VERSION} | to_json(tuning))
    write_run(folder, run)


def write_run(
    folder: Path, run: CellRun, files: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Write `run.json` with the size and SHA-256 of the other files, and its own SHA-256.

    `files` are these facts if they are known (`recorded_facts`), else those of the files there.
    """
    files = files or file_facts(folder / name for name in CELL_FILES)
    content = {_VERSION: FORMAT_VERSION} | to_json(run) | {FILES: files}
    write_json(folder / "run.json", sealed(content))


def read_run(folder: Path) -> CellRun:
    """Read a cell's `run.json`; whether its files are whole, `damaged_files` tells.

    Raises InputError, which names the field, if it is malformed or of another format version, and
    FileNotFoundError.
    """
    return _read(folder / "run.json", CellRun, (FILES, SEAL))


def read_tuning(folder: Path) -> Tuning:
    """Read a cell's `tuning.json`; errors as of `read_run`."""
    return _read(folder / "tuning.json", Tuning)


def _read(path: Path, kind: type[_T], envelope: Sequence[str] = ()) -> _T:
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError("is not a JSON object", file=path, fix=MAKE_AGAIN)
    version = content.pop(_VERSION, None)
    if version != FORMAT_VERSION:
        problem = f"format version {version}; this version of sextant reads {FORMAT_VERSION}"
        fix = "read it with the version that wrote it, or delete it to have the cell measured again"
        raise InputError(problem, file=path, field=_VERSION, fix=fix)
    for name in envelope:
        content.pop(name, None)
    try:
        return from_json(kind, content)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"])) or None
        raise InputError(first["msg"], file=path, field=field, fix=MAKE_AGAIN) from None


@dataclass(frozen=True)
class MeasuredCell:
    """A cell that was measured: its folder, and what was read of it."""

    folder: Path
    run: CellRun
    tuning: Tuning

    @property
    def key(self) -> tuple[str, ...]:
        """The cell's values of `CELL_KEY`."""
        return tuple(getattr(self.run, name) for name in CELL_KEY)

    def requests(self, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """Return the rows of `requests.parquet`, one a measured request, failed ones included."""
        return self._table("requests", columns)

    def server(self) -> "pd.DataFrame":
        """Return the rows of `server.parquet`, one a reading of a replica's metrics."""
        return self._table("server")

    def telemetry(self) -> "pd.DataFrame":
        """Return the rows of `telemetry.parquet`, one a reading of a device."""
        return self._table("telemetry")

    def _table(self, name: str, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        return read_parquet(self.folder / f"{name}.parquet", columns).to_pandas()


def read_cell(folder: Path) -> MeasuredCell:
    """Read a cell's `run.json` and `tuning.json`; see `read_run`."""
    return MeasuredCell(folder, read_run(folder), read_tuning(folder))
