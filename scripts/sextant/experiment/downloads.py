"""The registry of downloads: what may be fetched, from where, and the bytes it has to have."""

import csv
import re
import shutil
import urllib.request
from dataclasses import dataclass, fields
from http.client import HTTPException
from pathlib import Path

from sextant.base.errors import InputError
from sextant.base.files import atomic_path, sha256_file
from sextant.base.ids import id_problem

TIMEOUT_S = 60
MAX_BYTES = 64 * 2**30
"""No download is larger; one that does not end would fill the disk before its checksum is known."""
_AT_ONCE_BYTES = 2**20


@dataclass(frozen=True)
class Dataset:
    """One row of `registry.csv`."""

    dataset_id: str
    version: str
    url: str
    sha256: str
    """The file's checksum or, of an archive that its publisher packs anew for each download,
    the path of a manifest: a CSV with the checksums of the files in it."""
    licence: str
    mirror_path: str
    """Where the file lies below a mirror's folder."""
    citation: str

    @property
    def file_name(self) -> str:
        """Name of the file, as its publisher gave it."""
        return Path(self.mirror_path).name

    @property
    def has_manifest(self) -> bool:
        """Whether the files in the archive have checksums, and not the archive itself."""
        return self.sha256.endswith(".csv")


_COLUMNS = [field.name for field in fields(Dataset)]


def load_registry(path: str | Path) -> dict[str, Dataset]:
    """Read the registry, keyed by `dataset_id`.

    Raises:
        InputError: a column or a cell is missing, an id stands twice, or a checksum or a
            mirror path is malformed.
    """
    datasets: dict[str, Dataset] = {}
    if not Path(path).is_file():
        fix = "correct `registry` in the configuration"
        raise InputError("there is no such file", file=path, fix=fix)
    with Path(path).open(encoding="utf-8-sig", newline="") as handle:
        reader = csv.DictReader(handle)
        if reader.fieldnames != _COLUMNS:
            problem = f"the columns are {reader.fieldnames}"
            raise InputError(problem, file=path, row=1, fix=f"use {','.join(_COLUMNS)}")
        for row in reader:
            dataset = _dataset(row, path, reader.line_num)
            if dataset.dataset_id in datasets:
                problem = f"{dataset.dataset_id!r} stands twice"
                fix = "give a new version a new id: rows are never replaced"
                raise InputError(problem, file=path, row=reader.line_num, fix=fix)
            datasets[dataset.dataset_id] = dataset
    return datasets


def _dataset(row: dict[str, str], path: str | Path, line: int) -> Dataset:
    for name in _COLUMNS:
        if not row[name]:
            raise InputError("empty cell", file=path, row=line, field=name, fix="fill it in")
    if None in row:
        fix = "quote a cell that holds a comma"
        raise InputError("more cells than columns", file=path, row=line, fix=fix)
    if not re.fullmatch(r"[0-9a-f]{64}|.+\.csv", row["sha256"]):
        fix = "give the 64 lower-case hexadecimal digits that `sha256sum` prints, or a manifest"
        raise InputError("not a SHA-256", file=path, row=line, field="sha256", fix=fix)
    if not re.match(r"https?://[^/]", row["url"]):
        fix = "give the address of the download, https://…; a file's path stands in traces.tsv"
        raise InputError("no address of the web", file=path, row=line, field="url", fix=fix)
    if problem := id_problem(row["dataset_id"]):
        fix = "give it a name of visible characters"
        problem = f"{row['dataset_id']!r} {problem}"
        raise InputError(problem, file=path, row=line, field="dataset_id", fix=fix)
    mirror_path = Path(row["mirror_path"])
    if mirror_path.is_absolute() or ".." in mirror_path.parts:
        fix = "give a path relative to the mirror's folder"
        raise InputError("leaves the mirror", file=path, row=line, field="mirror_path", fix=fix)
    return Dataset(**row)


def fetch(dataset: Dataset, out_path: str | Path, mirror: str | Path | None = None) -> None:
    """Bring a data set's file to `out_path`, from `mirror` if given, else from its URL.

    The checksum is verified before the file gets its name, so `out_path` is either right or
    absent. An archive with a manifest is not verified here: what unpacks it does that. There
    is one attempt; repeating it is the caller's business.

    Raises:
        InputError: the mirror lacks the file, the download fails, or the bytes differ.
    """
    with atomic_path(out_path) as temporary:
        if mirror is None:
            _download(dataset, temporary)
        else:
            _copy(dataset, Path(mirror) / dataset.mirror_path, temporary)
        if not dataset.has_manifest:
            _verify(
                dataset,
                temporary,
                dataset.url if mirror is None else Path(mirror) / dataset.mirror_path,
            )


def _verify(dataset: Dataset, path: Path, source: str | Path) -> None:
    found = sha256_file(path)
    if found != dataset.sha256:
        problem = f"SHA-256 is {found}, the registry has {dataset.sha256}"
        fix = "fetch it again; if its publisher changed it, add a row with a new id"
        raise InputError(problem, file=source, field=dataset.dataset_id, fix=fix)


def _copy(dataset: Dataset, source: Path, target: Path) -> None:
    try:
        shutil.copyfile(source, target)
    except FileNotFoundError:
        fix = "put the file there, or unset the mirror to download it"
        problem = f"the mirror has no {dataset.dataset_id}"
        raise InputError(problem, file=source, fix=fix) from None


def _download(dataset: Dataset, target: Path) -> None:
    try:
        with (
            urllib.request.urlopen(dataset.url, timeout=TIMEOUT_S) as response,
            target.open("wb") as handle,
        ):
            while chunk := response.read(_AT_ONCE_BYTES):
                handle.write(chunk)
                if handle.tell() > MAX_BYTES:
                    raise ValueError(f"it has more than {MAX_BYTES >> 30} GiB")
    except (OSError, HTTPException, ValueError) as error:
        fix = "check the network and the URL, or fetch from a mirror"
        problem = f"the download failed ({error})"
        raise InputError(problem, file=dataset.url, field=dataset.dataset_id, fix=fix) from error
