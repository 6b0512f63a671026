"""Files with their provenance, written whole (`whole_files`); imports and docstrings of our own
sources; rows of tables.

A row of a table is a dict, as JSON has it. Imports are lean: commands that need no frames start
without pandas, and the load client starts without Arrow, which would double its memory.
"""

import ast
import contextlib
import errno
import hashlib
import json
import math
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sextant import __version__
from sextant.base.errors import InputError
from sextant.base.resources import CHECKOUT
from sextant.base.whole_files import atomic_path, settle

if TYPE_CHECKING:
    import grimp
    import pandas as pd
    import pyarrow as pa

Row = dict[str, Any]  # a row by column; an unknown value is None
PROVENANCE_KEY = b"sextant"
MAKE_AGAIN = "delete it and run the same command again, which makes it again"
# Deleting a trace or a workload would measure all its cells again in the same run. Made in a run of
# its own, with the same content as before, it makes nothing else stale.
_AGAIN = (
    "{0} again: `sextant {1}`, or in the workflow `snakemake --cores all --forcerun {2} --until "
    "fit_workload` and then the same command again"
)
MAKE_TRACE_AGAIN = _AGAIN.format("ingest the trace", "ingest", "ingest_trace")
MAKE_WORKLOAD_AGAIN = _AGAIN.format("fit the workload", "fit", "fit_workload")


def sha256_file(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@cache
def git_commit() -> str:
    """Return the checkout's commit, `-dirty` if files differ; `unknown` without one, or git."""
    if CHECKOUT is None:  # a wheel may lie inside somebody else's repository
        return "unknown"
    # Without optional locks: a job that is killed leaves no lock in the repository.
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty"]
    command += ["--abbrev=40", "--exclude=*"]
    return output_of(*command, folder=CHECKOUT, timeout_s=10) or "unknown"


def output_if_well(*command: str, folder: Path | None = None, timeout_s: float = 60) -> str | None:
    """Return what a command prints; None if it cannot run, fails or takes too long."""
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=timeout_s
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def output_of(*command: str, folder: Path | None = None, timeout_s: float = 60) -> str:
    """Return what a command prints, nothing where `output_if_well` has None."""
    return output_if_well(*command, folder=folder, timeout_s=timeout_s) or ""


def nearest_existing(folder: Path) -> Path:
    """Return a folder, or the nearest one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


def require_writable(folder: str | Path) -> None:
    """Raise InputError unless this user may write into a folder, or make it."""
    existing = nearest_existing(Path(folder))
    if not os.access(existing, os.W_OK):
        fix = "choose another folder (`pathvars`), or have it made writable"
        raise InputError("cannot be written", file=existing, fix=fix)


def provenance(inputs: Mapping[str, str | Path] | None = None, **facts: Any) -> dict[str, Any]:
    """Return the provenance of a result: version, commit, SHA-256 of inputs, other facts."""
    return {
        "sextant_version": __version__,
        "git_commit": git_commit(),
        "inputs_sha256": {name: sha256_file(path) for name, path in (inputs or {}).items()},
        **facts,
    }


def write_text(path: str | Path, text: str) -> None:
    """Write a text as UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN is refused: JSON has no such number."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_plain(path: str | Path, most_bytes: int = 2**34) -> bytes:
    """Return a file's bytes; OSError if it is a folder, a pipe, a device, or above `most_bytes`."""
    settle(Path(path).parent)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
        if status.st_size > most_bytes:
            raise OSError(errno.EOVERFLOW, f"it has more than {most_bytes >> 10:,} KiB", str(path))
        return file.read()  # not read(most_bytes), which asks for that much memory at once


def absence(path: str | Path) -> str:
    """Return why a path is not a file that can be read: there is none, or it is something else."""
    if Path(path).is_dir():
        return "it is a folder, not a file"
    if Path(path).exists():
        return "it is a pipe or a device, not a file"
    return "there is no such file"


def read_json(path: str | Path, *, fix: str = MAKE_AGAIN) -> Any:
    """Read a JSON file; raise InputError with `fix` if it is not JSON."""
    try:
        return json.loads(read_plain(path).decode())
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})", file=path, fix=fix) from None


def read_object(path: str | Path, *, fix: str = MAKE_AGAIN) -> dict[str, Any]:
    """Read a JSON file of one object; errors as of `read_json`."""
    content = read_json(path, fix=fix)
    if not isinstance(content, dict):
        raise InputError("not a JSON object", file=path, fix=fix)
    return content


def write_parquet(
    path: str | Path, table: "pa.Table | pa.RecordBatchReader", origin: Mapping[str, Any]
) -> None:
    """Write a table, or its batches, as zstd Parquet with `origin` (`provenance`) inside."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {**(table.schema.metadata or {}), PROVENANCE_KEY: json.dumps(origin).encode()}
    schema = table.schema.with_metadata(metadata)
    form: Any = {"compression": "zstd", "write_page_checksum": True}
    with atomic_path(path) as temporary, pq.ParquetWriter(temporary, schema, **form) as writer:
        for piece in [table] if isinstance(table, pa.Table) else table:
            writer.write(piece.replace_schema_metadata(metadata))


@contextlib.contextmanager
def reading(path: str | Path, *errors: type[Exception], fix: str = MAKE_AGAIN) -> Iterator[None]:
    """Turn Arrow's and the file system's errors, and `errors`, into an `InputError`."""
    import pyarrow as pa

    settle(Path(path).parent)
    try:
        yield
    except (pa.ArrowException, OSError, UnicodeError, *errors) as error:
        problem = f"cannot be read ({' '.join(str(error).split())[:300]})"
        raise InputError(problem, file=path, fix=fix) from None


def read_parquet(
    path: str | Path, columns: Sequence[str] | None = None, *, fix: str = MAKE_AGAIN
) -> "pa.Table":
    """Read a Parquet file, or some columns; InputError, with `fix`, if none or damaged."""
    import pyarrow.parquet as pq

    with reading(path, fix=fix), pq.ParquetFile(path, page_checksum_verification=True) as file:
        return file.read(columns)


def read_provenance(path: str | Path) -> dict[str, Any]:
    """Return the provenance that `write_parquet` stored, empty if there is none."""
    import pyarrow.parquet as pq

    with reading(path, ValueError):
        metadata = pq.read_schema(path).metadata or {}
        return json.loads(metadata.get(PROVENANCE_KEY, b"{}"))


def library_files(folder: Path, script: Path, *modules: str) -> list[str]:
    """Return the files that decide a script's results, for a rule's input.

    They are the modules that the script or `modules` import, directly or not, and the files other
    than Python beside these modules, such as templates. Compiled modules follow from their source.
    """
    graph = _imports()
    named = set(modules)
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            named |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    direct = named & graph.modules
    files = set()
    for module in direct.union(*map(graph.find_upstream_modules, direct)):
        path = folder.joinpath(*module.split("."))
        # A folder may be left from when a module was a package.
        file = path.with_suffix(".py")
        files.add(file if file.is_file() else path / "__init__.py")
    beside = {file for folder in {file.parent for file in files} for file in folder.iterdir()}
    templates = {file for file in beside if file.is_file() and file.suffix not in (".py", ".so")}
    return sorted(map(str, files | templates))


@cache
def _imports() -> "grimp.ImportGraph":
    import grimp

    return grimp.build_graph("sextant", cache_dir=None)


def docstrings_below(kind: type) -> dict[str, str]:
    """Return the description of each field of a class and its bases.

    It is the docstring below the field, or the comment beside it that begins with `#:`.
    """
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        lines, bodies = _class_bodies(base.__module__)
        for pair in pairwise([*bodies.get(base.__name__, ()), None]):
            match pair:
                case ast.AnnAssign(ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    docs[name] = " ".join(text.split())
                case ast.AnnAssign(ast.Name(name), end_lineno=int(line)), _:
                    if comment := lines[line - 1].partition("  #: ")[2]:
                        docs[name] = comment
    return docs


@cache
def _class_bodies(module: str) -> tuple[list[str], dict[str, list[ast.stmt]]]:
    file = getattr(sys.modules.get(module), "__file__", None)
    text = Path(file).read_text(encoding="utf-8") if file else ""
    classes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)]
    return text.split("\n"), {node.name: node.body for node in classes}


def group_by(rows: Iterable[Row], *columns: str) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows by their values in `columns`, groups in the order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[column] for column in columns), []).append(row)
    return groups


def frame_rows(frame: "pd.DataFrame") -> list[Row]:
    """Return a frame's rows with None for what is missing; infinity stays."""
    rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{name: _native(value) for name, value in row.items()} for row in rows]


def jsonable(value: Any) -> Any:
    """Return a value as JSON has it: NaN and infinity are null, a `level` of infinity is `inf`."""
    pandas = sys.modules.get("pandas")
    if pandas and isinstance(value, pandas.DataFrame):
        return [jsonable(row) for row in value.to_dict("records")]
    if isinstance(value, Mapping):
        return {
            str(name): "inf" if name == "level" and item == math.inf else jsonable(item)
            for name, item in value.items()
        }
    if isinstance(value, str) or value is None:
        return value
    if isinstance(value, Sequence | np.ndarray) or (pandas and isinstance(value, pandas.Series)):
        return [jsonable(item) for item in value]
    if pandas and (value is pandas.NA or value is pandas.NaT):
        return None
    native = _native(value)
    return None if isinstance(native, float) and not math.isfinite(native) else native


def _native(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def import_without(module: str, *hidden: str) -> Any:
    """Import a module as if the `hidden` modules were not installed, unless they are loaded."""
    absent = [name for name in hidden if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None: not installed
    try:
        return import_module(module)
    finally:
        for name in absent:
            del sys.modules[name]
