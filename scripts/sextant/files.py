"""Files that are either whole or absent, and know where they came from."""

import contextlib
import hashlib
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sextant import __version__
from sextant.errors import InputError

PROVENANCE_KEY = b"sextant"


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it there only if the block succeeds.

    A full disk, an exception or a kill leaves no file that could pass for a whole one.
    The name keeps its ending, because libraries choose the format by it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.partial{path.suffix}")
    # In containers a process id comes again: what a killed job left is not ours to continue.
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def sha256_file(path: str | Path) -> str:
    """Return the hexadecimal SHA-256 of a file's bytes."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


@cache
def git_commit() -> str:
    """Return the commit of this source tree, `-dirty` if it differs, `unknown` outside git."""
    here = Path(__file__).parent
    # Without optional locks: a job that is killed meanwhile leaves no lock in the repository.
    command = ["git", "--no-optional-locks", "describe", "--always", "--dirty"]
    command += ["--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def provenance(inputs: Mapping[str, str | Path] | None = None, **facts: Any) -> dict[str, Any]:
    """Return what every result carries: version, commit, SHA-256 of the inputs, other facts."""
    return {
        "sextant_version": __version__,
        "git_commit": git_commit(),
        "inputs_sha256": {name: sha256_file(path) for name, path in (inputs or {}).items()},
        **facts,
    }


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically. NaN is refused: JSON has no such number."""
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_json(
    path: str | Path, *, problem: str = "not JSON", fix: str = "make the file again"
) -> Any:
    """Read a JSON file; `problem` and `fix` are what the error says if it is none.

    Raises:
        InputError: it is no JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{problem} ({error})", file=path, fix=fix) from None


def write_parquet(path: str | Path, table: pa.Table, origin: Mapping[str, Any]) -> None:
    """Write `table` as zstd Parquet with `origin` (see `provenance`) in its metadata."""
    metadata = {**(table.schema.metadata or {}), PROVENANCE_KEY: json.dumps(origin).encode()}
    with atomic_path(path) as temporary:
        pq.write_table(table.replace_schema_metadata(metadata), temporary, compression="zstd")


def read_provenance(path: str | Path) -> dict[str, Any]:
    """Return the provenance that `write_parquet` stored, empty if there is none."""
    metadata = pq.read_schema(path).metadata or {}
    return json.loads(metadata.get(PROVENANCE_KEY, b"{}"))
