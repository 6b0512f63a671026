"""A hash of this room's source: compiled code and kept results are of one source alone."""

import hashlib
from pathlib import Path

ROOM = Path(__file__).parent


def _source_digest() -> str:
    """Return a hash of all modules of this room.

    Numba alone would not see that a function of another module has changed.
    """
    digest = hashlib.sha256()
    for source in sorted(ROOM.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


DIGEST = _source_digest()
