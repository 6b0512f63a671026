"""Arrays that take a while to compute, kept in the user's cache under a name that tells them apart.

The cache is `$XDG_CACHE_HOME`, else `~/.cache`. Where it cannot be written, nothing is kept. A file
ends with the SHA-256 of its name and of what is before, so damage is found, whatever it is.
"""

import io
import logging
import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

import numpy as np

from sextant.base.files import read_plain
from sextant.base.whole_files import atomic_path

_MOST_KEPT = 32
"""Files of one kind; the oldest go."""
_FORM = b"2"
"""How files are written; those of another form have other names."""
log = logging.getLogger(__name__)


def kept_path(kind: str, *parts: str | bytes | np.ndarray) -> Path:
    """Return the file of arrays that follow from all of these parts."""
    digest = sha256(_FORM)
    for part in parts:
        digest.update(part.encode() if isinstance(part, str) else bytes(part))
        digest.update(b"|")
    return _cache() / f"{kind}-{digest.hexdigest()[:32]}.npz"


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "sextant"


def read_arrays(path: Path) -> dict[str, np.ndarray] | None:
    """Return the arrays of a file, of the cache or one that ships; None where there is none, or
    the cache's is damaged, which is said."""
    try:
        content = read_plain(path)
    except FileNotFoundError:
        return None
    except OSError:
        content = b""
    if path.parent == _cache():
        size = sha256().digest_size
        content, digest = content[:-size], content[-size:]
        if digest != _digest(path, content):
            log.warning("%s is damaged: what it held is computed again", path)
            return None
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return dict(arrays)


def _digest(path: Path, content: bytes) -> bytes:
    return sha256(path.name.encode() + content).digest()


def keep_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Keep arrays for the next question."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **arrays)
        data = content.getvalue()
        if path.is_fifo():  # the cache is Sextant's own: a pipe there is removed
            path.unlink()
        with atomic_path(path) as temporary:
            temporary.write_bytes(data + _digest(path, data))
        kind = path.name.partition("-")[0]
        kept = sorted(path.parent.glob(f"{kind}-*.npz"), key=lambda file: file.stat().st_mtime)
        for old in kept[:-_MOST_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:  # the next question computes them again
        return
