"""Whether the files of a cell are still those that its `run.json` vouches for.

Disks fill, copies break off, file systems lose blocks: what was measured for hours is read
again only if it is what was written.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from sextant.errors import InputError
from sextant.files import read_json, sha256_file

CELL_FILES = ("requests.parquet", "server.parquet", "telemetry.parquet", "tuning.json")
"""What a cell consists of, beside `run.json`."""


def file_facts(paths: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of files by name, for `run.json` to vouch for them."""
    return {
        path.name: {"n_bytes": path.stat().st_size, "sha256": sha256_file(path)} for path in paths
    }


def damaged_files(folder: Path) -> dict[str, str]:
    """Return the files of a cell's folder that are missing or damaged, and what is wrong.

    A cell whose `run.json` does not vouch for its files (an imported archive, or one measured
    before this was recorded) is only checked for whether they can be read.
    """
    try:
        facts = read_json(folder / "run.json").get("files", {})
    except FileNotFoundError:
        return {"run.json": "is missing"}
    except (InputError, AttributeError, OSError) as error:
        return {"run.json": f"cannot be read ({error})"}
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
    except FileNotFoundError:
        return "is missing"
    except (InputError, pa.ArrowException, OSError) as error:
        return f"cannot be read ({error})"


def _read(path: Path) -> None:
    if path.suffix == ".parquet":
        pq.read_metadata(path)
    else:
        read_json(path)
