"""Import LLM-Pilot's archive as cells of the benchmark contract: rule import_archive.

Inputs: the archive, the manifest of its files, the sheets of cells and of published points.
Outputs: every cell's files.

Which cells there are, which were too large and which were left out stands in the paper's
Table III (Lazuka et al., LLM-Pilot, SC 2024). As its authors define `latency_ms_per_token`, the
first entry is the time until the stream was acknowledged, the second is TTFT, and the entries after
it are ITL. A request therefore counts as `scheduled` when it started and `sent` when its stream was
acknowledged. A level's clock starts with its first request. What the archive lacks is null.
"""

import hashlib
import logging
import lzma
import re
import sys
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pydantic import Field, PositiveFloat, PositiveInt

# For a checkout in which the library is not installed.
sys.path.append(str(Path(__file__).parents[2] / "scripts"))

from sextant.base.errors import InputError
from sextant.base.files import provenance
from sextant.base.job_log import job_log
from sextant.base.sheets import load_sheet
from sextant.experiment.scenarios import ClosedLoop
from sextant.experiment.servers import Variant
from sextant.experiment.sheets import CellKey, CellRow
from sextant.points.cell_files import REQUEST_SCHEMA, concatenated, write_cell
from sextant.points.run import (
    CellOrigin,
    CellRun,
    LevelRun,
    PublishedMedians,
    ServerFacts,
)
from sextant.points.verdict import OUTCOMES, Tuning, Verdict

# Found by name: some files have one more column in front of them.
_COLUMNS = {
    "model": pa.string(),
    "n_gpus": pa.int32(),
    "gpu_type": pa.string(),
    "num_users": pa.int32(),
    "status": pa.int32(),
    "errors": pa.string(),
    "start_timestamp": pa.int64(),
    "experiment_duration_s": pa.float64(),
    "n_input_tokens": pa.float64(),
    "n_output_tokens": pa.float64(),
    "latency_ms_per_token": pa.string(),
}
_SUCCESS = 200
_MILLISECONDS = r"^\[\d{1,9}(, \d{1,9})*\]$"
# As much of an error as the load client keeps.
_ERROR_CHARACTERS = 300
_FIX = "give the file as its publisher wrote it"


_FILE_NAME = re.compile(r"results_(.+)_gpu(\d+)_([a-z0-9]+)_u(\d+)\.csv")


class FileName(NamedTuple):
    """What the name of a file says of the columns of these names, spelt as in the name."""

    model: str
    n_gpus: int
    gpu_type: str
    num_users: int

    @classmethod
    def of(cls, path: str) -> "FileName":
        """Read `results_<llm>_gpu<n>_<type>_u<users>.csv`, which the path ends in."""
        match = _FILE_NAME.fullmatch(Path(path).name)
        assert match is not None  # by the manifest's schema
        model, n_gpus, gpu_type, users = match.groups()
        return cls(model, int(n_gpus), gpu_type, int(users))


class Results(NamedTuple):
    """What one file holds."""

    requests: pa.Table
    """Rows of the contract's `requests.parquet`, in the order of the file."""
    started_ms: int
    """Start of the first request, since the epoch."""
    duration_s: float
    """`experiment_duration_s`, which throughput refers to."""


def read_results(content: bytes, file: str, expected: FileName) -> Results:
    """Read a file of results; `file` is its path, for messages, `expected` what its name says.

    Raises InputError: a column is missing, a row is malformed or is not what the name says.
    """
    options = csv.ConvertOptions(column_types=_COLUMNS, include_columns=list(_COLUMNS))
    try:
        rows = csv.read_csv(pa.BufferReader(content), convert_options=options).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowKeyError) as error:
        problem = f"cannot be read ({' '.join(str(error).split())})"
        raise InputError(problem, file=file, fix=_FIX) from None
    if not len(rows):
        raise InputError("the file has no rows", file=file, fix=_FIX)
    columns = {name: rows[name].combine_chunks() for name in _COLUMNS}
    for field, (is_sound, problem) in _checks(columns, expected).items():
        is_fault = pc.invert(pc.fill_null(is_sound, False))
        if pc.any(is_fault).as_py():
            line = pc.index(is_fault, True).as_py() + 2  # below the header
            raise InputError(problem, file=file, row=line, field=field, fix=_FIX)
    started_ms = pc.min(columns["start_timestamp"]).as_py()
    requests = _requests(columns, expected.num_users, started_ms)
    return Results(requests, started_ms, columns["experiment_duration_s"][0].as_py())


def _checks(columns: Mapping[str, pa.Array], expected: FileName) -> dict:
    """Return by field which rows are sound, and what is wrong with the others."""
    spelt = {
        **columns,
        "model": pc.replace_substring(columns["model"], "/", "__"),
        "gpu_type": pc.utf8_lower(columns["gpu_type"]),
    }
    checks = {
        field: (pc.equal(spelt[field], value), f"not {value}, as the file's name says")
        for field, value in expected._asdict().items()
    }
    for field in ("status", "start_timestamp"):
        checks[field] = pc.is_valid(columns[field]), "not a number"
    durations_s, texts = columns["experiment_duration_s"], columns["latency_ms_per_token"]
    is_duration = pc.and_(pc.greater(durations_s, 0), pc.equal(durations_s, durations_s[0]))
    checks["experiment_duration_s"] = is_duration, "not positive, or not the same in all rows"
    is_failed = pc.not_equal(columns["status"], _SUCCESS)
    for field in ("n_input_tokens", "n_output_tokens"):
        count = columns[field]
        is_count = pc.and_(pc.greater(count, 0), pc.equal(count, pc.trunc(count)))
        is_unknown = pc.and_(is_failed, pc.is_null(count))
        checks[field] = pc.or_kleene(is_unknown, is_count), "not a count"
    is_list = pc.match_substring_regex(texts, _MILLISECONDS)
    has_token = pc.or_(is_failed, pc.match_substring(texts, ","))
    checks["latency_ms_per_token"] = (
        pc.and_(is_list, has_token),
        "not a list of ms, or without a token's",
    )
    return checks


def _requests(columns: Mapping[str, pa.Array], users: int, started_ms: int) -> pa.Table:
    """Return the rows of `requests.parquet`; null is what the archive does not say."""
    texts = pc.utf8_slice_codeunits(columns["latency_ms_per_token"], 1, -1)
    entries = pc.split_pattern(texts, ", ").cast(pa.list_(pa.int32()))
    lengths, ms = entries.value_lengths().to_numpy(), entries.flatten().to_numpy()
    last = np.cumsum(lengths) - 1
    first = last - lengths + 1
    sums_ms = np.cumsum(ms, dtype=np.int64)
    since_sent_ms = sums_ms - np.repeat(sums_ms[first], lengths)
    sent_ms = columns["start_timestamp"].to_numpy() - started_ms + ms[first]
    token_ends = np.concatenate([[0], np.cumsum(lengths - 1)])
    has_no_token = lengths == 1

    def token_s(entry: np.ndarray) -> pa.Array:
        return pa.array((sent_ms + since_sent_ms[entry]) / 1000, mask=has_no_token)

    known = {
        "level": np.full(len(lengths), users, float),
        "scheduled_s": (sent_ms - ms[first]) / 1000,
        "sent_s": sent_ms / 1000,
        "first_token_s": token_s(np.minimum(first + 1, last)),
        "last_token_s": token_s(last),
        "token_offsets_ms": pa.ListArray.from_arrays(
            pa.array(token_ends, pa.int32()),
            pa.array(np.delete(since_sent_ms, first), pa.float32()),
        ),
        "input_tokens": columns["n_input_tokens"].cast(pa.int32()),
        "output_tokens": columns["n_output_tokens"].cast(pa.int32()),
        **_outcomes(columns["status"], columns["errors"]),
    }
    unknown = {field.name: pa.nulls(len(lengths), field.type) for field in REQUEST_SCHEMA}
    return pa.table({**unknown, **known}, schema=REQUEST_SCHEMA)


def _outcomes(status: pa.Array, errors: pa.Array) -> dict[str, pa.Array]:
    """Return `status` and `error`. A stream that broke off is incomplete, whatever broke it."""
    is_ok, is_late = pc.equal(status, _SUCCESS), pc.match_substring(errors, "deadline exceeded")
    said = pc.binary_join_element_wise("status", status.cast(pa.string()), errors, " ")
    return {
        "status": pc.if_else(is_ok, "ok", pc.if_else(is_late, "timeout", "incomplete")),
        "error": pc.if_else(is_ok, None, pc.utf8_slice_codeunits(said, 0, _ERROR_CHARACTERS)),
    }


log = logging.getLogger(__name__)

VERDICTS = {
    status: Verdict(outcome, source="LLM-Pilot, Table III") for status, outcome in OUTCOMES.items()
}
"""The verdict of a cell, by its `status` in the sheet of cells."""
_PROFILE = re.compile(r"(\d+)x(\w+)-\d+GB")
_N_READERS = 2
# Writers wait for the disk, which syncs each file, more than for a core.
_N_WRITERS = 8
MAX_FILE_BYTES = 64 * 2**20
"""Sixteen times the largest file of LLM-Pilot; one is read into memory at a time."""
_MAX_HEADER_BYTES = 2**20
_MAX_UNPACKED_BYTES = 16 * 2**30
_FETCH = "fetch the archive again, at the commit that the registry names"


@dataclass(frozen=True, kw_only=True)
class ManifestRow:
    """manifest.csv: each row is a file of results in LLM-Pilot's repository."""

    path: Annotated[
        str,
        Field(pattern=r"^(?!/)(?!(.*/)?\.\.(/|$))(.*/)?results_[^/]+_gpu\d+_[a-z0-9]+_u\d+\.csv$"),
    ]
    """results_<llm>_gpu<n>_<type>_u<users>.csv, its path below the repository's top, without .."""
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """the 64 lower-case hexadecimal digits that `sha256sum` prints"""


@dataclass(frozen=True, kw_only=True)
class PublishedPointRow:
    """published_points.csv: points of which only the medians are published."""

    llm_id: str
    """an LLM of the sheet of cells"""
    gpu_profile_id: str
    """a GPU profile of the sheet of cells"""
    users: PositiveInt
    """users of the closed loop, from 1 on"""
    median_nttft_ms: PositiveFloat
    """ms per input token, above 0"""
    median_itl_ms: PositiveFloat
    """ms, above 0"""


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


class Sheets(NamedTuple):
    """What is known of the archive beforehand."""

    manifest: Path
    """CSV `path,sha256` of the result files, below the repository's top."""
    cells: Path
    """`llm_id, gpu_profile_id, status` of every cell of the source."""
    published_points: Path
    """CSV `llm_id,gpu_profile_id,users,median_nttft_ms,median_itl_ms` of the points whose requests
    the manifest lacks."""


def import_archive(
    source: Path,
    sheets: Sheets,
    out: Path,
    *,
    workload_id: str,
    scenario_id: str,
    source_name: str = "archive:llm-pilot",
) -> None:
    """Write LLM-Pilot's published characterization as cells of the benchmark contract.

    Args:
        source: folder of the unpacked repository, or a tar of it, however compressed.
        sheets: what it has.
        out: folder of all benchmarks; a cell's files go to
            `<source_name>/` in it, as `CellKey.folder` says.
        workload_id: name of the workload that the authors replayed.
        scenario_id: name of their closed-loop scenario.
        source_name: name of the characterization.

    Raises:
        InputError: the source cannot be unpacked, a file is missing or altered, a row is
            malformed, or the three sheets contradict each other.
    """
    plans = _read_plans(sheets)
    results = _read_all(source, {file.path: file for plan in plans for file in plan.files})

    def write(plan: _Plan) -> None:
        levels = [*(_level(file, results[file.path]) for file in plan.files), *plan.published]
        key = CellKey(plan.llm_id, plan.gpu_profile_id, workload_id, scenario_id)
        levels.sort(key=lambda level: level.users)
        _write_cell(out / source_name, source_name, key, plan, levels)

    with ThreadPoolExecutor(_N_WRITERS) as pool:
        list(pool.map(write, plans))
    n_requests = sum(len(file.requests) for file in results.values())
    log.info("%d cells, %d files, %d requests", len(plans), len(results), n_requests)


def _level(file: _File, found: Results) -> _Level:
    users = float(file.named.num_users)
    run = LevelRun(users, started_s=0.0, duration_s=found.duration_s)
    return _Level(run, found.requests, found.started_ms)


# The sheets


def _read_plans(sheets: Sheets) -> list[_Plan]:
    manifest, cells, published_points = sheets
    files = _read_manifest(manifest)
    published = _read_published(published_points)
    plans: dict[tuple[str, str], _Plan] = {}
    for row in load_sheet(cells, CellRow):
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
    for row in load_sheet(path, ManifestRow, delimiter=","):
        named = FileName.of(row["path"])
        file = _File(row["path"], row["sha256"], named)
        files.setdefault((named.model, named.n_gpus, named.gpu_type), []).append(file)
    return files


def _read_published(path: Path) -> dict[tuple[str, str], list[_Level]]:
    points: dict[tuple[str, str], list[_Level]] = {}
    for row in load_sheet(path, PublishedPointRow, delimiter=","):
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


def _write_cell(
    folder: Path, source: str, key: CellKey, plan: _Plan, levels: Sequence[_Level]
) -> None:
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
        source=source,
        key=key,
        scenario=scenario,
        variant=Variant(),
        verdict=verdict,
        levels=tuple(level.run for level in levels),
        server=ServerFacts("tgis", None) if levels else None,
        origin=CellOrigin(
            started_at=datetime.fromtimestamp(started_ms // 1000, UTC) if started_ms else None,
            provenance=provenance(inputs_sha256={file.path: file.sha256 for file in plan.files}),
        ),
    )
    requests = concatenated("requests", [level.requests for level in levels])
    write_cell(folder / key.folder, run, Tuning(verdict, probes=None), {"requests": requests})


if "snakemake" in globals():
    with job_log(snakemake.log[0]):
        given, decision = snakemake.input, snakemake.params.decision
        import_archive(
            Path(given.source),
            Sheets(Path(given.manifest), Path(given.cells), Path(given.published_points)),
            # <out>/<source>/<llm>/<gpu_profile>/<workload>/<scenario>/run.json
            Path(snakemake.output.runs[0]).parents[5],
            workload_id=decision["workload_id"],
            scenario_id=decision["scenario_id"],
            source_name=snakemake.params.source,
        )
