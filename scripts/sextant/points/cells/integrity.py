"""Whether the files of a cell are still those that were written, by `run.json`'s SHA-256 of each.

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

from sextant.base.errors import InputError
from sextant.base.files import read_json, sha256_file

CELL_FILES = ("requests.parquet", "server.parquet", "telemetry.parquet", "tuning.json")
"""What a cell consists of, beside `run.json`."""

ALL_FILES = (*CELL_FILES, "run.json")

CHECKPOINT = "partial"
"""The folder in a cell's own where finished levels are kept."""

DAMAGED = "damaged-"
"""Prefix of the folders that hold damaged files, inside the cell's folder."""

FILES = "files"
"""The key of a `run.json` that has size and SHA-256 of each other file."""

SEAL = "content_sha256"
"""The key of a `run.json` that has the checksum of all others."""


def file_facts(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files by name."""
    return {
        path.name: {"n_bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in paths
    }


def recorded_facts(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what a cell's whole `run.json` says of its other files; see `file_facts`."""
    return read_json(folder / "run.json")[FILES]


def sealed(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a `run.json` with its own checksum, `content_sha256`."""
    return {**run, SEAL: _content_sha256(run)}


def _content_sha256(run: Mapping[str, Any]) -> str:
    content = {name: value for name, value in run.items() if name != SEAL}
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def require_whole(cells: Sequence[Path]) -> None:
    """Check all cells; set aside the files of damaged ones, so that these are made again.

    All files of a damaged cell go to a folder `damaged-<n>` in the cell's own. Its results are
    then missing: the next run of the same command makes them, and no other cell's. InputError names
    every damaged file of every cell, and where it is now.
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
    for number in itertools.count(1):
        place = folder / f"{DAMAGED}{number}"
        with contextlib.suppress(FileExistsError):
            place.mkdir(parents=True)
            break
    for name in ALL_FILES:
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

    Raises OSError if a file could not be read, which tells nothing of its content: a missing right,
    a network file system that does not answer.
    """
    try:
        run = read_json(folder / "run.json")
    except OSError as error:
        return {"run.json": _no_file(error)}
    except InputError as error:
        return {"run.json": f"cannot be read ({error.problem})"}
    if not isinstance(run, dict) or not isinstance(run.get(FILES), dict) or SEAL not in run:
        return {"run.json": "does not say what was written"}
    if run[SEAL] != _content_sha256(run):
        return {"run.json": "is not what was written (SHA-256)"}
    found = {name: _damage(folder / name, run[FILES].get(name)) for name in CELL_FILES}
    return {name: problem for name, problem in found.items() if problem}


def _damage(path: Path, facts: object) -> str | None:
    try:
        n_bytes = path.stat().st_size
        if not isinstance(facts, dict):
            return "is not named in run.json"
        if n_bytes != facts.get("n_bytes"):
            return f"has {n_bytes} bytes, {facts.get('n_bytes')} were written"
        is_whole = sha256_file(path) == facts.get("sha256")
    except OSError as error:
        return _no_file(error)
    return None if is_whole else "is not what was written (SHA-256)"


def _no_file(error: OSError) -> str:
    """Return what is wrong where there is no file; any other error says nothing of the file."""
    if error.errno == errno.ENOENT:
        return "is missing"
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ELOOP):
        return "is not a file"
    raise error
