"""The registry of downloads: what may be fetched, from where, and the bytes it must have.

The download is our own: pooch does not limit its size, and knows no mirror.
"""

import shutil
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Annotated

from pydantic import Field

from sextant.base.errors import InputError
from sextant.base.files import sha256_file
from sextant.base.sheets import Id, load_sheet
from sextant.base.whole_files import atomic_path

TIMEOUT_S = 60
MAX_BYTES = 64 * 2**30  # a download that does not end would fill the disk
_AT_ONCE_BYTES = 2**20


@dataclass(frozen=True)
class Dataset:
    """resources/registry.csv: each row is a file that may be downloaded; none is ever replaced."""

    dataset_id: Id
    """name of the data set: 1 to 100 visible characters; a new version gets a new name"""
    version: str  #: the publisher's version, or the year
    url: Annotated[str, Field(pattern="^https?://[^/]")]
    """address of the download, http://… or https://…; the path of a file belongs in traces.tsv"""
    sha256: Annotated[str, Field(pattern=r"^([0-9a-f]{64}|.+\.csv)$")]
    """the 64 lower-case hexadecimal digits that `sha256sum` prints; for an archive that is packed
    again for each download, the path of a manifest: a CSV with the checksums of its files"""
    licence: str  #: licence of the data, e.g. CC-BY-4.0
    mirror_path: Annotated[str, Field(pattern=r"^(?!/)(?!(.*/)?\.\.(/|$))")]
    """path of the file below the mirror's folder, relative and without .."""
    citation: str  #: how to cite the data

    @property
    def file_name(self) -> str:
        """Name of the file, as its publisher gave it."""
        return Path(self.mirror_path).name


def load_registry(path: str | Path) -> dict[str, Dataset]:
    """Read the registry, keyed by `dataset_id`; raise InputError if it is malformed."""
    rows = load_sheet(path, Dataset, "dataset_id", delimiter=",")
    return {row["dataset_id"]: Dataset(**row) for row in rows}


def download(dataset: Dataset, out_path: str | Path, mirror: str | Path | None = None) -> None:
    """Download a data set's file, or copy it from a `mirror`'s folder.

    An archive with a manifest is verified when it is read. Raises InputError: no file in the
    mirror, a failed download, or other bytes.
    """
    source = dataset.url if mirror is None else str(Path(mirror) / dataset.mirror_path)
    with atomic_path(out_path) as temporary:
        try:
            if mirror is None:
                _download(dataset, temporary)
            else:
                shutil.copyfile(source, temporary)
        except FileNotFoundError:
            fix = "put the file there, or unset the mirror to download it"
            problem = f"the mirror has no {dataset.dataset_id}"
            raise InputError(problem, file=source, fix=fix) from None
        digest = dataset.sha256 if dataset.sha256.endswith(".csv") else sha256_file(temporary)
        if digest != dataset.sha256:
            problem = f"SHA-256 is {digest}, the registry has {dataset.sha256}"
            fix = "fetch it again; if its publisher changed it, add a row with a new id"
            raise InputError(problem, file=source, field=dataset.dataset_id, fix=fix)


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
