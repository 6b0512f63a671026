"""The files of a measured cell: their columns, the one writer, the one reader, and checksums.

Disks fill, copies break off, file systems lose blocks. So a cell is read only if its files are as
they were written: `run.json` has the SHA-256 of each.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from pydantic import TypeAdapter, ValidationError

from sextant.base import files
from sextant.base.errors import InputError
from sextant.base.whole_files import atomic_folder
from sextant.points.run import GROUPS, CellRun, LevelRun
from sextant.points.verdict import Tuning

if TYPE_CHECKING:  # pandas would take memory from a job that measures
    import pandas as pd

FORMAT_VERSION = 2  # of both JSON files; add 1 if an older reader would misread new files
_VERSION = "format_version"
FILES = "files"  # the key of a `run.json` that has size and SHA-256 of each other file
SEAL = "content_sha256"  # the key of a `run.json` that has the checksum of all others

CELL_FILES = ("requests.parquet", "server.parquet", "telemetry.parquet", "tuning.json")
"""The files of a cell besides `run.json`."""
_TAKE = "@@"
"""What the number of a receipt begins with: no id or variant has it in its file name."""
_RECEIPT_PATTERN = re.compile(rf"measured(?:{_TAKE}([1-9][0-9]*))?\.json")
"""Of the file by which Snakemake knows that a cell is measured, `measured.json`.

Snakemake deletes the outputs of a rule before its job starts, and again when the job fails. So the
rule's only output is this receipt, and the results beside it stay until others replace them. A cell
that was measured again has `measured@@2.json`, then `measured@@3.json`: a receipt that does not
exist is what makes Snakemake run the job, whatever its records say."""
CHECKPOINT = "partial"  # folder in the cell's own for the levels that are finished
DAMAGED = "damaged-"  # prefix of the folders that hold damaged files, inside the cell's folder

_FLOAT = pa.float64()
_COUNT = pa.int32()
_TEXT = pa.string()
REQUEST_SCHEMA = pa.schema(
    {
        "level": _FLOAT,
        "request_id": _TEXT,
        **dict.fromkeys(("replica", "user"), _COUNT),
        **dict.fromkeys(("scheduled_s", "sent_s", "first_token_s", "last_token_s"), _FLOAT),
        "token_offsets_ms": pa.list_(pa.float32()),
        **dict.fromkeys(("input_tokens", "output_tokens"), _COUNT),
        **dict.fromkeys(("requested_input_tokens", "requested_output_tokens"), _COUNT),
        **dict.fromkeys(("status", "error"), _TEXT),
    }
)
"""`requests.parquet`: one row per measured request. Times are seconds since the run's start."""
SERVER_SCHEMA = pa.schema(
    {
        "level": _FLOAT,
        "replica": _COUNT,
        **dict.fromkeys(("time_s", "n_running", "n_waiting"), _FLOAT),
        **dict.fromkeys(("kv_cache_usage", "n_preemptions"), _FLOAT),
    }
)
"""`server.parquet`: one row per reading of a replica's metrics."""
TELEMETRY_SCHEMA = pa.schema(
    {
        **dict.fromkeys(("level", "time_s"), _FLOAT),
        "device": _TEXT,
        **dict.fromkeys(("power_w", "energy_j", "utilization", "memory_utilization"), _FLOAT),
        **dict.fromkeys(("memory_used_gib", "sm_clock_mhz", "temperature_c"), _FLOAT),
        "throttle_reasons": _TEXT,
        **dict.fromkeys(("sm_active", "sm_occupancy"), _FLOAT),
    }
)
"""`telemetry.parquet`: one row per reading of a device."""
TABLES = {"requests": REQUEST_SCHEMA, "server": SERVER_SCHEMA, "telemetry": TELEMETRY_SCHEMA}
"""By the name of the file, without its ending."""

_T = TypeVar("_T")
_adapter: Any = cache(TypeAdapter)


def concatenated(name: str, parts: list[pa.Table]) -> pa.Table:
    """Return the rows of all parts of one of the `TABLES`; there may be no part."""
    schema = TABLES[name]
    return pa.concat_tables([schema.empty_table(), *(part.cast(schema) for part in parts)])


def to_json(value: Any) -> dict[str, Any]:
    """Return a dataclass as plain data for JSON, the fields of `GROUPS` one by one."""
    kind = type(value)
    return _flat(kind, _adapter(kind).dump_python(value, mode="json", warnings="error"))


def from_json(kind: type[_T], value: object) -> _T:
    """Read what `to_json` returned; ValueError if a field is missing, unknown or malformed."""
    return _adapter(kind).validate_json(json.dumps(_grouped(kind, value)))


def _flat(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data with the fields of each group in the group's place."""
    flat: dict[str, Any] = {}
    for name, value in content.items():
        if name in GROUPS.get(kind, {}):
            flat |= value
        elif kind is CellRun and name == "levels":
            flat[name] = [_flat(LevelRun, level) for level in value]
        else:
            flat[name] = value
    return flat


def _grouped(kind: type, content: object) -> object:
    """Return plain data with the fields of each group under the group's name, unless malformed."""
    if not isinstance(content, dict) or kind not in GROUPS:
        return content
    rest = dict(content)

    groups: dict[str, dict[str, Any]] = {}
    for group, of_group in GROUPS[kind].items():
        names = [field.name for field in fields(of_group) if field.name in rest]
        groups[group] = {name: rest.pop(name) for name in names}
        if group in rest:  # unknown in a file: refused by the name that it has there
            groups[group][group] = rest.pop(group)

    if kind is CellRun and isinstance(rest.get("levels"), list):
        rest["levels"] = [_grouped(LevelRun, level) for level in rest["levels"]]
    return rest | groups


def write_cell(
    folder: Path,
    run: CellRun,
    tuning: Tuning,
    tables: Mapping[str, pa.Table | pa.RecordBatchReader] | None = None,
    write_more: Callable[[Path], None] = lambda _: None,
) -> None:
    """Write a cell's files; `run.json`, which declares it whole, comes last.

    Earlier results stay until then. A table of `TABLES` that is missing has no rows; `write_more`
    writes other files.
    """
    with atomic_folder(folder, "run.json") as new:
        for name, schema in TABLES.items():
            # Not `schema.empty_table()`, which imports pandas.
            table = (tables or {}).get(name) or pa.Table.from_batches([], schema)
            files.write_parquet(new / f"{name}.parquet", table, run.origin.provenance)
        files.write_json(new / "tuning.json", {_VERSION: FORMAT_VERSION} | to_json(tuning))
        write_more(new)
        write_run(new, run)


def write_run(folder: Path, run: CellRun) -> None:
    """Write `run.json` with the size and SHA-256 of the other files, and its own SHA-256."""
    content = {_VERSION: FORMAT_VERSION} | to_json(run)
    content[FILES] = file_facts(folder / name for name in CELL_FILES)
    files.write_json(folder / "run.json", sealed(content))


def read_run(folder: Path) -> CellRun:
    """Read a cell's `run.json`; FileNotFoundError, or InputError, which names the field."""
    return _read(folder / "run.json", CellRun)


def read_tuning(folder: Path) -> Tuning:
    """Read a cell's `tuning.json`; errors as of `read_run`."""
    return _read(folder / "tuning.json", Tuning)


def _read(path: Path, kind: type[_T]) -> _T:
    content = files.read_object(path)
    version = content.pop(_VERSION, None)
    if version != FORMAT_VERSION:
        problem = f"format version {version}; this version of sextant reads {FORMAT_VERSION}"
        fix = "read it with the version that wrote it, or delete it to have the cell measured again"
        raise InputError(problem, file=path, field=_VERSION, fix=fix)
    # `imported` is a key that earlier versions wrote and nothing reads.
    content = {k: v for k, v in content.items() if k not in (FILES, SEAL, "imported")}
    try:
        return from_json(kind, content)
    except ValidationError as error:
        first = error.errors()[0]
        # A file has no groups: the group's name is not among the keys that lead to the value.
        keys = first["loc"]
        owner, depth = (LevelRun, 2) if keys[:1] == ("levels",) else (CellRun, 0)
        if keys[depth : depth + 1] and keys[depth] in GROUPS[owner]:
            keys = keys[:depth] + keys[depth + 1 :]
        field = ".".join(map(str, keys)) or None
        raise InputError(first["msg"], file=path, field=field, fix=files.MAKE_AGAIN) from None


@dataclass(frozen=True)
class MeasuredCell:
    """A measured cell: its folder, and its files as far as they were read."""

    folder: Path
    run: CellRun
    tuning: Tuning

    def requests(self, columns: Sequence[str] | None = None) -> "pd.DataFrame":
        """Return the rows of `requests.parquet`: one per measured request, failed ones included."""
        return files.read_parquet(self.folder / "requests.parquet", columns).to_pandas()

    def server(self) -> "pd.DataFrame":
        """Return the rows of `server.parquet`: one per reading of a replica's metrics."""
        return files.read_parquet(self.folder / "server.parquet").to_pandas()


def read_cell(folder: Path) -> MeasuredCell:
    """Read a cell's `run.json` and `tuning.json`; see `read_run`."""
    return MeasuredCell(folder, read_run(folder), read_tuning(folder))


def file_facts(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files by name."""
    return {
        path.name: {"n_bytes": path.stat().st_size, "sha256": files.sha256_file(path)}
        for path in paths
    }


def sealed(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `run.json` with its own checksum, `content_sha256`."""
    content = {name: value for name, value in run.items() if name != SEAL}
    return content | {SEAL: hashlib.sha256(json.dumps(content).encode()).hexdigest()}


def take_of(folder: Path, *, is_current: bool) -> str:
    """Return what the name of a cell's receipt has besides `measured`: nothing, `@@2` ….

    It is the newest receipt's where the results are current, else that of the next one.
    """
    takes = [int(name[1] or 1) for _, name in _receipts(folder)]
    newest = max(takes, default=0)
    take = max(newest, 1) if is_current else newest + 1
    return f"{_TAKE}{take}" if take > 1 else ""


def _receipts(folder: Path) -> list[tuple[Path, re.Match[str]]]:
    """Return the receipts in a cell's folder, and how their names were read."""
    names = [(path, _RECEIPT_PATTERN.fullmatch(path.name)) for path in folder.glob("measured*")]
    return [(path, name) for path, name in names if name]


def write_receipt(path: Path, definition_sha256: str) -> None:
    """Write the receipt of a cell whose results are whole, last of all, and remove earlier ones."""
    files.write_json(path, {"definition_sha256": definition_sha256})
    for earlier, _ in _receipts(path.parent):
        if earlier != path:
            earlier.unlink(missing_ok=True)


def changed_cells(receipts: Iterable[Path]) -> list[str]:
    """Return the sorted folders of cells with a file that is missing or newer than the receipt.

    A parameter of the rules that read cells, so that Snakemake runs them when somebody changed a
    file. While a receipt is missing, its cell is about to be measured and does not count.
    """
    changed = []
    for receipt in filter(Path.exists, receipts):
        written_ns = receipt.stat().st_mtime_ns
        files_of_cell = (receipt.with_name(name) for name in (*CELL_FILES, "run.json"))
        try:
            is_changed = any(file.stat().st_mtime_ns > written_ns for file in files_of_cell)
        except OSError:
            is_changed = True
        if is_changed:
            changed.append(str(receipt.parent))
    return sorted(changed)


def require_whole(cells: Sequence[Path]) -> None:
    """Check all cells; move damaged files aside. The InputError names them: they are made again."""
    try:
        damage = {folder: problems for folder in cells if (problems := damaged_files(folder))}
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
        fix = "check the file system and the file's rights, and run again: nothing was set aside"
        raise InputError(problem, file=error.filename, fix=fix) from None
    lines = []
    for folder, problems in damage.items():
        for number in itertools.count(1):
            aside = folder / f"{DAMAGED}{number}"
            with contextlib.suppress(FileExistsError):
                aside.mkdir(parents=True)
                break
        for name in (*CELL_FILES, "run.json"):
            # Another rule that reads the cell may have moved it in the same moment.
            with contextlib.suppress(FileNotFoundError):
                (folder / name).rename(aside / name)
        for receipt, _ in _receipts(folder):
            receipt.unlink(missing_ok=True)
        words = ", ".join(f"{name} {problem}" for name, problem in problems.items())
        lines.append(f"\n  {folder}: {words}; set aside in {aside.name}")
    if damage:
        fix = "run the same command again: it makes just these cells again"
        problem = f"{len(damage)} of {len(cells)} cells are damaged:{''.join(lines)}"
        raise InputError(problem, fix=fix)


def drop_checkpoints(cells: Iterable[Path]) -> None:
    """Delete the finished levels of cells, once their results have been read.

    Not earlier: a job that outlives a killed Snakemake may still finish its cell. The next
    Snakemake submits the same cell again, and the new job continues from the finished levels.
    """
    for folder in cells:
        shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)


def damaged_files(folder: Path) -> dict[str, str]:
    """Return a cell's missing or damaged files and why; OSError if one cannot be read."""
    try:
        run = files.read_json(folder / "run.json")
    except OSError as error:
        return {"run.json": _path_problem(error)}
    except InputError as error:
        return {"run.json": f"cannot be read ({error.problem})"}
    if not isinstance(run, dict) or not isinstance(run.get(FILES), dict) or SEAL not in run:
        return {"run.json": "does not say what was written"}
    if run[SEAL] != sealed(run)[SEAL]:
        return {"run.json": "is not what was written (SHA-256)"}
    problems = {}
    for name in CELL_FILES:
        path = folder / name
        facts = run[FILES].get(name)
        try:
            n_bytes = path.stat().st_size
            if not isinstance(facts, dict):
                problems[name] = "is not named in run.json"
            elif n_bytes != facts.get("n_bytes"):
                problems[name] = f"has {n_bytes} bytes, {facts.get('n_bytes')} were written"
            elif files.sha256_file(path) != facts.get("sha256"):
                problems[name] = "is not what was written (SHA-256)"
        except OSError as error:
            problems[name] = _path_problem(error)
    return problems


def _path_problem(error: OSError) -> str:
    """Return what is wrong with the path; raise the error again if it concerns no path."""
    if error.errno == errno.ENOENT:
        return "is missing"
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ELOOP):
        return "is not a file"
    raise error
