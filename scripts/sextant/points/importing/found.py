"""The cells in a folder, or in a tar of it, as they are: nothing is believed yet."""

import contextlib
import lzma
import os
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError, printable
from sextant.experiment.cells import CellKey
from sextant.points.cells.files import read_run, read_tuning
from sextant.points.cells.integrity import ALL_FILES, CHECKPOINT, DAMAGED, damaged_files
from sextant.points.cells.run import CellRun
from sextant.points.cells.tables import TABLES

# Other stages write files called requests.parquet and telemetry.parquet too.
_MARKS = {"run.json", "tuning.json", "server.parquet"}


@dataclass(frozen=True)
class WholeCell:
    """The files of a cell, all of them whole and understood."""

    folder: Path
    place: str
    """Its folder below what was given, for messages."""
    run: CellRun


@dataclass(frozen=True)
class DamagedCell:
    """Files of a cell of which some are missing, damaged or cannot be understood."""

    folder: Path
    place: str
    damage: dict[str, str]
    """What is wrong with which file."""
    key: CellKey | None = None
    """By its `run.json`; None if that cannot be read."""


FoundCell = WholeCell | DamagedCell


@contextlib.contextmanager
def opened(place: Path) -> Iterator[Path]:
    """Yield a folder, or what a tar holds, unpacked into a folder that is removed afterwards.

    Raises InputError: neither a folder nor a tar, or a tar with anything but plain files and
    folders below its own.
    """
    if place.is_dir():
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="sextant-import-") as folder:
        try:
            with tarfile.open(place) as archive:
                _unpack(archive, place, Path(folder))
        except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
            fix = "give a folder of results, or a tar of one that is whole"
            reason = str(error).partition("\n")[0].rstrip(":")
            raise InputError(
                f"neither a folder nor a tar ({reason})", file=place, fix=fix
            ) from None
        yield Path(folder)


def _unpack(archive: tarfile.TarFile, place: Path, folder: Path) -> None:
    members = archive.getmembers()
    for member in members:
        if problem := _member_problem(member):
            fix = "make the tar of plain files: tar --dereference -cf cells.tar FOLDER"
            raise InputError(f"{member.name!r} {problem}", file=place, fix=fix)
    members = [member for member in members if PurePosixPath(member.name).name in ALL_FILES]
    n_bytes, free = sum(member.size for member in members), shutil.disk_usage(folder).free
    if n_bytes > free:
        problem = f"its {n_bytes / 2**20:.0f} MiB do not fit into {free / 2**20:.0f} MiB"
        raise InputError(problem, file=place, field=str(folder), fix="set TMPDIR, or free space")
    archive.extractall(folder, members, filter="data")


def _member_problem(member: tarfile.TarInfo) -> str | None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "leaves the tar's folder"
    return None if member.isfile() or member.isdir() else "is not a plain file"


def find_cells(folder: Path) -> list[FoundCell]:
    """Return all cells below a folder, whole or not; links are not followed.

    Raises OSError if a folder in it cannot be read.
    """
    found: list[FoundCell] = []
    for name, folders, files in os.walk(folder, onerror=_raise):
        # Of a cell that is measured just now, and of one that was damaged.
        kept = (name for name in folders if name != CHECKPOINT and not name.startswith(DAMAGED))
        folders[:] = sorted(kept)
        for linked in [each for each in folders if (Path(name) / each).is_symlink()]:
            place = _place(Path(name) / linked, folder)
            damage = {printable(linked): "is a link to a folder"}
            found.append(DamagedCell(Path(name) / linked, place, damage))
        if _MARKS & set(files):
            found.append(_read_cell(Path(name), _place(Path(name), folder)))
    return found


def _place(path: Path, folder: Path) -> str:
    return printable(path.relative_to(folder).as_posix())


def _raise(error: OSError) -> None:
    raise error


def _read_cell(folder: Path, place: str) -> FoundCell:
    paths = [folder / name for name in ALL_FILES]
    odd = {path.name: "is a link" for path in paths if path.is_symlink()}
    # A pipe would be waited for.
    odd |= {path.name: "is not a file" for path in paths if path.exists() and not path.is_file()}
    damage = odd or damaged_files(folder)
    if odd or "run.json" in damage:
        return DamagedCell(folder, place, damage)
    try:
        run = read_run(folder)
    except InputError as error:
        return DamagedCell(folder, place, {"run.json": f"cannot be understood ({error})"})
    if damage := damage or _malformed(folder):
        return DamagedCell(folder, place, damage, run.key)
    return WholeCell(folder, place, run)


def _malformed(folder: Path) -> dict[str, str]:
    """Return the files that are whole but not what the next stage reads, and what is wrong."""
    found = {}
    for name, schema in TABLES.items():
        file = f"{name}.parquet"
        try:
            if not pq.read_schema(folder / file).equals(schema):
                found[file] = "has other columns"
        except pa.ArrowException as error:
            found[file] = f"cannot be read ({error})"
    try:
        read_tuning(folder)
    except InputError as error:
        found["tuning.json"] = f"cannot be understood ({error})"
    return found
