"""Import of a published characterization: LLM-Pilot's archive becomes the benchmark contract.

Which cells there are, which were too large and which were left out stands in the paper's
Table III (Lazuka et al., LLM-Pilot, SC 2024). What the archive does not say is null.
"""

import hashlib
import logging
import lzma
import re
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from sextant.base.errors import InputError
from sextant.base.files import provenance
from sextant.base.sheets import SCHEMAS, load_sheet
from sextant.experiment.cells import CellKey
from sextant.experiment.scenarios import ClosedLoop
from sextant.experiment.servers import Variant
from sextant.points.cells.files import write_cell
from sextant.points.cells.run import CellRun, LevelRun, PublishedMedians
from sextant.points.cells.tables import REQUEST_SCHEMA, concatenated
from sextant.points.cells.tuning import Tuning
from sextant.points.cells.verdict import Verdict
from sextant.points.characterizations.feasibility import OUTCOMES
from sextant.points.importing.llm_pilot_requests import FileName, Results, read_results

log = logging.getLogger(__name__)

VERDICTS = {
    status: Verdict(outcome, source="LLM-Pilot, Table III") for status, outcome in OUTCOMES.items()
}
"""What came of a cell, by its `status` in the sheet of cells."""
_PROFILE = re.compile(r"(\d+)x(\w+)-\d+GB")
_N_READERS = 2
# Writers wait for the disk, which syncs each file, more than for a core.
_N_WRITERS = 8
MAX_FILE_BYTES = 64 * 2**20
"""Sixteen times the largest file of LLM-Pilot; one is read into memory at a time."""
_MAX_HEADER_BYTES = 2**20
_MAX_UNPACKED_BYTES = 16 * 2**30
_FETCH = "fetch the archive again, at the commit that the registry names"


class _File(NamedTuple):
    path: str
    """Below the repository's top."""
    sha256: str
    named: FileName


class _Level(NamedTuple):
    """What a file, or a published point, says of a cell at one number of users."""

    run: LevelRun
    requests: pa.Table
    started_ms: int | None = None
    """Start of the first request, since the epoch."""

    @property
    def users(self) -> int:
        """Its level."""
        return int(self.run.level)


class _Plan(NamedTuple):
    """What is known of a cell before the archive is opened."""

    llm_id: str
    gpu_profile_id: str
    status: str
    files: list[_File]
    published: list[_Level]


def import_archive(
    source: Path,
    manifest: Path,
    cells: Path,
    published_points: Path,
    out: Path,
    *,
    workload_id: str,
    scenario_id: str,
    source_name: str = "archive:llm-pilot",
) -> None:
    """Write LLM-Pilot's published characterization as cells of the benchmark contract.

    Args:
        source: folder of the unpacked repository, or a tar of it, however compressed.
        manifest: CSV `path,sha256` of the result files, below the repository's top.
        cells: sheet `llm_id, gpu_profile_id, status` with every cell of the source.
        published_points: CSV `llm_id,gpu_profile_id,users,median_nttft_ms,median_itl_ms` of
            the points whose requests the manifest lacks.
        out: folder of all benchmarks; a cell's files go to
            `<source_name>/` in it, as `CellKey.folder` says.
        workload_id: name of the workload that the authors replayed.
        scenario_id: name of their closed-loop scenario.
        source_name: name of the characterization.

    Raises:
        InputError: the source cannot be unpacked, a file is missing or altered, a row is
            malformed, or the three sheets contradict each other.
    """
    plans = _read_plans(manifest, cells, published_points)
    results = _read_all(source, {file.path: file for plan in plans for file in plan.files})

    def write(plan: _Plan) -> None:
        levels = [*(_level(file, results[file.path]) for file in plan.files), *plan.published]
        key = CellKey(plan.llm_id, plan.gpu_profile_id, workload_id, scenario_id)
        levels.sort(key=lambda level: level.users)
        _write_cell(out / source_name / key.folder, plan, levels, source=source_name, **asdict(key))

    with ThreadPoolExecutor(_N_WRITERS) as pool:
        list(pool.map(write, plans))
    n_requests = sum(len(file.requests) for file in results.values())
    log.info("%d cells, %d files, %d requests", len(plans), len(results), n_requests)


def _level(file: _File, found: Results) -> _Level:
    users = float(file.named.num_users)
    run = LevelRun(users, started_s=0.0, duration_s=found.duration_s)
    return _Level(run, found.requests, found.started_ms)


# The sheets


def _read_plans(manifest: Path, cells: Path, published_points: Path) -> list[_Plan]:
    files, published = _read_manifest(manifest), _read_published(published_points)
    plans: dict[tuple[str, str], _Plan] = {}
    for row in load_sheet(cells, SCHEMAS / "cells.schema.yaml"):
        llm_id, profile_id, status = row["llm_id"], row["gpu_profile_id"], row["status"]
        match = _PROFILE.fullmatch(profile_id)
        if not match:
            problem, fix = "no number and type of GPUs", "write it as 2xA100-40GB"
            raise InputError(problem, file=cells, row=row.line, field="gpu_profile_id", fix=fix)
        found = files.pop((llm_id, int(match[1]), match[2].lower()), [])
        plan = _Plan(llm_id, profile_id, status, found, published.pop((llm_id, profile_id), []))
        users = [file.named.num_users for file in plan.files]
        users += [level.users for level in plan.published]
        if (status == "measured") != bool(users) or len(users) > len(set(users)):
            problem = f"{llm_id} on {profile_id} is {status} and has points at {users} users"
            fix = f"let it agree with {manifest} and {published_points}"
            raise InputError(problem, file=cells, row=row.line, fix=fix)
        if (llm_id, profile_id) in plans:
            problem = f"{llm_id} on {profile_id} is there twice"
            raise InputError(problem, file=cells, row=row.line, fix="remove one of the rows")
        plans[llm_id, profile_id] = plan
    for path, left in ((manifest, files), (published_points, published)):
        if left:
            problem, fix = f"no cell {next(iter(left))}", f"add one row for it to {cells}"
            raise InputError(problem, file=path, fix=fix)
    return list(plans.values())


def _read_manifest(path: Path) -> dict[tuple[str, int, str], list[_File]]:
    files: dict[tuple[str, int, str], list[_File]] = {}
    for row in load_sheet(path, SCHEMAS / "manifest.schema.yaml", delimiter=","):
        named = FileName.of(row["path"])
        file = _File(row["path"], row["sha256"], named)
        files.setdefault((named.model, named.n_gpus, named.gpu_type), []).append(file)
    return files


def _read_published(path: Path) -> dict[tuple[str, str], list[_Level]]:
    points: dict[tuple[str, str], list[_Level]] = {}
    for row in load_sheet(path, SCHEMAS / "published_points.schema.yaml", delimiter=","):
        medians = PublishedMedians(row["median_nttft_ms"], row["median_itl_ms"])
        run = LevelRun(float(row["users"]), published_medians=medians)
        level = _Level(run, REQUEST_SCHEMA.empty_table())
        points.setdefault((row["llm_id"], row["gpu_profile_id"]), []).append(level)
    return points


# The archive


def _read_all(source: Path, files: Mapping[str, _File]) -> dict[str, Results]:
    """Read every file, by path, after its checksum has been compared."""
    results: dict[str, Future[Results]] = {}
    folders, unknown = {str(Path(path).parent) for path in files}, []
    # While one file is unpacked, another is read.
    with ThreadPoolExecutor(_N_READERS) as pool:
        for path, content in _contents(source, folders):
            if path not in files:
                unknown.append(path)
                continue
            if hashlib.sha256(content).hexdigest() != files[path].sha256:
                raise InputError(f"{path} was altered", file=source, fix=_FETCH)
            results[path] = pool.submit(read_results, content, path, files[path].named)
    for path in files:
        if path not in results:
            raise InputError(f"{path} is missing", file=source, fix=_FETCH)
    if unknown:
        log.warning("left out, not being in the manifest: %s", ", ".join(sorted(unknown)))
    return {path: result.result() for path, result in results.items()}


def _contents(source: Path, folders: Collection[str]) -> Iterator[tuple[str, bytes]]:
    """Yield path and bytes of the CSV files in some of a repository's folders.

    A tar is read as a stream and nothing is unpacked to the disk: a member's name is compared
    and never used as a path, links and devices are passed over. The folder on top may have any
    name: it can hold the commit.
    """
    if source.is_dir():
        for path in sorted(path for name in folders for path in (source / name).glob("*.csv")):
            if path.is_file():
                _check_size(path, path.stat().st_size, source)
                yield path.relative_to(source).as_posix(), path.read_bytes()
        return
    try:
        with tarfile.open(source, "r|*", tarinfo=_Member) as archive:
            for member in archive:
                # What is passed over is unpacked, too, though nowhere to.
                _check_size(
                    member.name, member.offset_data + member.size, source, _MAX_UNPACKED_BYTES
                )
                parent, _, name = f"/{member.name}".rpartition("/")
                folder = next((known for known in folders if parent.endswith(f"/{known}")), None)
                if member.isfile() and folder and name.endswith(".csv"):
                    _check_size(member.name, member.size, source)
                    content = archive.extractfile(member)
                    assert content is not None  # it is a file
                    yield f"{folder}/{name}", content.read()
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        fix = "give the repository's folder, or a tar of it, whole as it was published"
        raise InputError(f"cannot be unpacked ({error})", file=source, fix=fix) from None


class _Member(tarfile.TarInfo):
    """A member of a tar whose long names and other headers are bounded.

    They are read into memory whole, before anybody has seen the member.
    """

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if not self.isreg() and self.size > _MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {self.size} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]  # not in its stubs


def _check_size(
    what: str | Path, n_bytes: int, source: Path, most_bytes: int = MAX_FILE_BYTES
) -> None:
    if n_bytes > most_bytes:
        problem = f"at {what} it has {n_bytes / 2**20:.0f} MiB, above {most_bytes / 2**20:.0f}"
        raise InputError(problem, file=source, fix=_FETCH)


# The benchmark contract


def _write_cell(folder: Path, plan: _Plan, levels: Sequence[_Level], **names: Any) -> None:
    verdict = VERDICTS[plan.status]
    started_ms = min((level.started_ms for level in levels if level.started_ms), default=None)
    durations_s = {level.run.duration_s for level in levels} - {None}
    scenario = {
        "kind": ClosedLoop.kind,
        "levels": [level.users for level in levels],
        "warmup_s": None,
        "duration_s": durations_s.pop() if len(durations_s) == 1 else None,
    }
    run = CellRun(
        **names,
        scenario=scenario,
        variant=Variant(),
        verdict=verdict,
        levels=tuple(level.run for level in levels),
        started_at=datetime.fromtimestamp(started_ms // 1000, UTC) if started_ms else None,
        provenance=provenance(inputs_sha256={file.path: file.sha256 for file in plan.files}),
    )
    requests = concatenated("requests", [level.requests for level in levels])
    write_cell(folder, run, Tuning(verdict, probes=None), {"requests": requests})
