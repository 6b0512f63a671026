"""Has Numba compile functions, and keeps what it compiled for the next process.

The folder's name is a hash of what is compiled: Numba itself would not see that a function called
from another file has changed. It lies in the user's cache, since the library's own folder may be
read-only; without a folder that can be written, each process compiles for itself.
"""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

import numba
from numba.core import config

Function = TypeVar("Function", bound=Callable)
_SOURCES = ("world", "tables", "decode", "steps", "kernel")


def _cache_folder() -> str | None:
    if given := os.environ.get("NUMBA_CACHE_DIR"):
        return given
    digest = hashlib.sha256(numba.__version__.encode())
    for name in _SOURCES:
        digest.update((Path(__file__).parent / f"{name}.py").read_bytes())
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "sextant" / f"simulate-{digest.hexdigest()[:16]}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a home that is read-only, or none
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


_FOLDER = _cache_folder()
if _FOLDER is not None:
    config.CACHE_DIR = _FOLDER  # type: ignore[attr-defined]  # made from the environment


def compiled(function: Function) -> Function:
    """Return a function that Numba compiles on its first call; it releases the GIL."""
    return cast(Function, numba.njit(nogil=True, cache=_FOLDER is not None)(function))
