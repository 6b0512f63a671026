"""Whether the files of a cell are still those that its `run.json` vouches for.

Disks fill, copies break off, file systems lose blocks: what was measured for hours is read
again only if it is what was written.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import read_json, sha256_file

CELL_FILES = ("requests.parquet", "server.parquet", "telemetry.parquet", "tuning.json")
"""What a cell consists of, beside `run.json`."""

CHECKPOINT = "partial"
"""The folder in a cell's own where finished levels are kept."""

DAMAGED = "damaged-"
"""How the folders in a cell's own begin that hold what was set aside."""

SEAL = "content_sha256"
"""The key of a `run.json` that has the checksum of all others."""


def file_facts(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files by name, for `run.json` to vouch for them."""
    return {
        path.name: {"n_bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in paths
    }


def sealed(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `run.json` with its own checksum, `content_sha256`."""
    return {**run, SEAL: _content_sha256(run)}


def _content_sha256(run: Mapping[str, Any]) -> str:
    content = {name: value for name, value in run.items() if name != SEAL}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def require_whole(cells: Sequence[Path]) -> None:
    """Check all cells; set aside the files of damaged ones, so that these are made again.

    All files of a damaged cell go to a folder `damaged-<n>` in the cell's own. Its results are
    then missing: the next run of the same command makes them, and no other cell's.

    Raises:
        InputError: names every damaged file of every cell, and where it is now.
    """
    try:
        damage = {folder: found for folder in cells if (found := damaged_files(folder))}
    except OSError as error:
        fix = "see to the file system, or the file's rights, and run again: nothing was set aside"
        raise InputError(
            f"cannot be read ({error.strerror})", file=error.filename, fix=fix
        ) from None
    if not damage:
        return
    lines = []
    for folder, found in damage.items():
        problems = ", ".join(f"{name} {problem}" for name, problem in found.items())
        lines.append(f"\n  {folder}: {problems}; set aside in {_set_aside(folder).name}")
    fix = "run the same command again: it makes just these cells again"
    raise InputError(f"{len(damage)} of {len(cells)} cells are damaged:{''.join(lines)}", fix=fix)


def _set_aside(folder: Path) -> Path:
    """Move a cell's files to a new folder in its own, and return it."""
    for number in itertools.count(1):
        place = folder / f"{DAMAGED}{number}"
        with contextlib.suppress(FileExistsError):
            place.mkdir(parents=True)
            break
    for name in (*CELL_FILES, "run.json"):
        # Another rule that reads the cell may have found the damage in the same moment.
        with contextlib.suppress(FileNotFoundError):
            (folder / name).rename(place / name)
    return place


def drop_checkpoints(cells: Iterable[Path]) -> None:
    """Drop the finished levels that were kept of cells whose results have been read.

    Not before: a job that outlives a killed Snakemake finishes its cell unheard of, and the next
    Snakemake deletes the results and submits the cell once more, which then finds its levels.
    """
    for folder in cells:
        shutil.rmtree(folder / CHECKPOINT, ignore_errors=True)


def damaged_files(folder: Path) -> dict[str, str]:
    """Return the files of a cell's folder that are missing or damaged, and what is wrong.

    A cell whose `run.json` does not vouch for its files (an imported archive, or one measured
    before this was recorded) is only checked for whether they can be read.

    Raises:
        OSError: a file could not be read, which tells nothing of its content: a missing right, a
            network file system that does not answer.
    """
    try:
        run = read_json(folder / "run.json")
        facts = run.get("files", {})
    except OSError as error:
        return {"run.json": _no_file(error)}
    except (InputError, AttributeError) as error:
        return {"run.json": f"cannot be read ({error})"}
    if SEAL in run and run[SEAL] != _content_sha256(run):
        return {"run.json": "is not what was written (SHA-256)"}
    if not isinstance(facts, Mapping):
        return {"run.json": "does not say what was written"}
    found = {name: _damage(folder / name, facts.get(name)) for name in CELL_FILES}
    return {name: problem for name, problem in found.items() if problem}


def _damage(path: Path, facts: Mapping[str, Any] | None) -> str | None:
    """Return what is wrong with a file, None if nothing is."""
    try:
        if facts is None:
            _read(path)
            return None
        n_bytes = path.stat().st_size
        if n_bytes != facts["n_bytes"]:
            return f"has {n_bytes} bytes, {facts['n_bytes']} were written"
        return None if sha256_file(path) == facts["sha256"] else "is not what was written (SHA-256)"
    except OSError as error:
        return _no_file(error)
    except (KeyError, TypeError):
        return "is not what run.json says was written"
    except (InputError, pa.ArrowException) as error:
        return f"cannot be read ({error})"


def _no_file(error: OSError) -> str:
    """Return what is wrong where there is no file; any other error says nothing of the file."""
    if error.errno == errno.ENOENT:
        return "is missing"
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ELOOP):
        return "is no file"
    if error.errno is None:  # Arrow's, of what it has read
        return f"cannot be read ({error})"
    raise error


def _read(path: Path) -> None:
    if path.suffix == ".parquet":
        pq.read_metadata(path)
    else:
        read_json(path)
