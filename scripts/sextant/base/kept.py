"""Arrays that take a while to compute, kept in the user's cache under a name that tells them apart.

The cache is `$XDG_CACHE_HOME`, else `~/.cache`. Where it cannot be written, nothing is kept.
"""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from sextant.base.files import atomic_path

_MOST_KEPT = 32
"""Files of one kind; the oldest go."""


def kept_path(kind: str, *parts: str | bytes | np.ndarray) -> Path:
    """Return the file of arrays that follow from all of these parts."""
    digest = sha256()
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else bytes(part))
        digest.update(b"|")
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "sextant" / f"{kind}-{digest.hexdigest()[:32]}.npz"


def read_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Return the arrays of a file; None where there is none, or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, KeyError, BadZipFile):
        return None


def keep_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Keep arrays for the next question."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        kind = path.name.partition("-")[0]
        kept = sorted(path.parent.glob(f"{kind}-*.npz"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-_MOST_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:  # the next question computes them again
        return
