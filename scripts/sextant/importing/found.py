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
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sextant.base.errors import InputError
from sextant.base.files import read_json
from sextant.base.text import printable
from sextant.benchmark.results import TABLES
from sextant.cells.integrity import CELL_FILES, CHECKPOINT, DAMAGED, SEAL, damaged_files
from sextant.experiment.cell_key import CellKey
from sextant.experiment.variants import DEFAULT_VARIANT

# Other stages write files called requests.parquet and telemetry.parquet too.
_MARKS = {"run.json", "tuning.json", "server.parquet"}
# What the comparison looks into; null where it was not recorded.
_OBJECTS = ("definition", "host", "server", "provenance")


@dataclass(frozen=True)
class FoundCell:
    """The files of a cell, wherever they lie."""

    folder: Path
    place: str
    """Its folder below what was given, for messages."""
    key: CellKey | None
    """By its `run.json`; None if that cannot be read."""
    run: dict[str, Any]
    damage: dict[str, str]
    """What is wrong with which file; empty if nothing is."""


@contextlib.contextmanager
def opened(place: Path) -> Iterator[Path]:
    """Yield a folder, or what a tar holds, unpacked into a folder that is removed afterwards.

    Raises:
        InputError: neither a folder nor a tar, or a tar with anything but plain files and
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
            raise InputError(f"neither a folder nor a tar ({error})", file=place, fix=fix) from None
        yield Path(folder)


def _unpack(archive: tarfile.TarFile, place: Path, folder: Path) -> None:
    members = archive.getmembers()
    for member in members:
        if problem := _member_problem(member):
            fix = "make the tar of plain files: tar --dereference -cf cells.tar FOLDER"
            raise InputError(f"{member.name!r} {problem}", file=place, fix=fix)
    names = {*CELL_FILES, "run.json"}
    members = [member for member in members if PurePosixPath(member.name).name in names]
    n_bytes, free = sum(member.size for member in members), shutil.disk_usage(folder).free
    if n_bytes > free:
        problem = f"its {n_bytes / 2**20:.0f} MiB do not fit into {free / 2**20:.0f} MiB"
        raise InputError(problem, file=place, field=str(folder), fix="set TMPDIR, or free space")
    archive.extractall(folder, members, filter="data")


def _member_problem(member: tarfile.TarInfo) -> str | None:
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        return "leaves the tar's folder"
    return None if member.isfile() or member.isdir() else "is no plain file"


def find_cells(folder: Path) -> list[FoundCell]:
    """Return all cells below a folder, whole or not; links are not followed.

    Raises:
        OSError: a folder in it cannot be read.
    """
    found = []
    for name, folders, files in os.walk(folder, onerror=_raise):
        # Of a cell that is measured just now, and of one that was damaged.
        kept = (name for name in folders if name != CHECKPOINT and not name.startswith(DAMAGED))
        folders[:] = sorted(kept)
        for linked in [each for each in folders if (Path(name) / each).is_symlink()]:
            place = _place(Path(name) / linked, folder)
            damage = {printable(linked): "is a link to a folder"}
            found.append(FoundCell(Path(name) / linked, place, None, {}, damage))
        if _MARKS & set(files):
            found.append(_read_cell(Path(name), _place(Path(name), folder)))
    return found


def _place(path: Path, folder: Path) -> str:
    return printable(path.relative_to(folder).as_posix())


def _raise(error: OSError) -> None:
    raise error


def _read_cell(folder: Path, place: str) -> FoundCell:
    paths = [folder / name for name in (*CELL_FILES, "run.json")]
    odd = {path.name: "is a link" for path in paths if path.is_symlink()}
    # A pipe would be waited for.
    odd |= {path.name: "is no file" for path in paths if path.exists() and not path.is_file()}
    if odd:
        return FoundCell(folder, place, None, {}, odd)
    damage = damaged_files(folder)
    if "run.json" in damage:
        return FoundCell(folder, place, None, {}, damage)
    run = read_json(folder / "run.json")
    if not {*CELL_FILES} <= run.get("files", {}).keys() or SEAL not in run:
        problem = "does not vouch for the files"
        return FoundCell(folder, place, None, {}, damage | {"run.json": problem})
    if malformed := [name for name in _OBJECTS if not isinstance(run.get(name, {}), dict | None)]:
        problem = f"{', '.join(malformed)} cannot be understood"
        return FoundCell(folder, place, None, {}, {"run.json": problem})
    try:
        names = ("llm_id", "gpu_profile_id", "workload_id", "scenario_id")
        key = CellKey(*(run[name] for name in names), run.get("variant_id", DEFAULT_VARIANT))
        hash(key)
    except (KeyError, TypeError) as error:
        return FoundCell(folder, place, None, {}, {"run.json": f"does not name its cell ({error})"})
    return FoundCell(folder, place, key, run, damage or _malformed(folder, run))


def _malformed(folder: Path, run: dict[str, Any]) -> dict[str, str]:
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
        for level in run["levels"]:
            numbers = [float(level["level"]), level["started_s"], level["duration_s"]]
            lags = [level["client_lag_ms"]["p99"], level["send_lag_ms"]["p99"]]
            sum([*numbers, *lags, level["client_lag_ms"]["max"], level["server_mean_itl_ms"] or 0])
        tuning = read_json(folder / "tuning.json")
        len(tuning["probes"])
        sum(tuning["memory"][name] for name in ("memory_utilization", "weight_gib", "kv_gib"))
        if not isinstance(run["is_feasible"], bool) or not run["scenario"]["kind"]:
            raise ValueError("it does not say what came of the cell")
        sum([run["variant"]["replicas"]])
    except (KeyError, TypeError, ValueError, InputError) as error:
        found["run.json"] = f"cannot be understood ({error!r})"
    return found
