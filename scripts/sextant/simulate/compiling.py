"""Compilation of the simulation by Numba, which no other module of the library imports.

Numba keeps what it compiled in the user's cache, since the library's own folder may be read-only;
without a cache, each process compiles for itself. The folder's name is a hash of all modules of
this room: Numba would not see that a function of another module has changed.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from sextant.base.files import import_without

Function = TypeVar("Function", bound=Callable[..., Any])
# Numba would load SciPy's linear algebra and a tool for coverage on the first call.
numba = import_without("numba", "coverage")
import_without("numba.np.arraymath", "scipy.linalg")


def _cache_folder() -> str | None:
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return chosen
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "sextant" / f"simulate-{digest.hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a home that is read-only, or none
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


_FOLDER = _cache_folder()
if _FOLDER is not None:
    numba.core.config.CACHE_DIR = _FOLDER


def compiled(function: Function) -> Function:
    """Return a function that Numba compiles on its first call; it releases the GIL."""
    return cast(Function, numba.njit(nogil=True, cache=_FOLDER is not None)(function))
