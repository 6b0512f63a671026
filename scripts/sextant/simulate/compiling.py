"""What runs the compiled functions of this room: a built module, else Numba.

`building` compiles the functions that Python calls when Sextant is installed. The built module's
name has a hash of this room's source, so a module of other source is never loaded. Without one,
Numba compiles each function on its first call and keeps the result in the user's cache, since the
library's own folder may be read-only; without a cache, each process compiles for itself.

Loading Numba and its kept code takes a second, the first compilation a quarter of a minute. No
other module of the library imports Numba.
"""

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from sextant.base.files import import_without
from sextant.simulate.source import DIGEST

Function = TypeVar("Function", bound=Callable[..., Any])
BUILT_NAME = f"built_{DIGEST}"
"""Name of the module that `building` makes from this source, in this package."""


def _built_module() -> ModuleType | None:
    try:
        return import_module(f"{__package__}.{BUILT_NAME}")
    except ImportError:  # not built, or for another Python or NumPy
        return None


BUILT = _built_module()


def _cache_folder(numba_version: str) -> str | None:
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        return chosen
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = home / "sextant" / f"simulate-{DIGEST}-{numba_version}"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a home that is read-only, or none
        return None
    return str(folder) if os.access(folder, os.W_OK) else None


if BUILT is None:
    # Numba would load SciPy's linear algebra and a tool for coverage on the first call.
    numba = import_without("numba", "coverage")
    import_without("numba.np.arraymath", "scipy.linalg")
    _FOLDER = _cache_folder(numba.__version__)
    if _FOLDER is not None:
        numba.core.config.CACHE_DIR = _FOLDER


def compiled(function: Function) -> Function:
    """Return the function as compiled code that releases the GIL.

    With a built module, a function that only compiled code calls remains Python: nobody calls it.
    """
    if BUILT is not None:
        return cast(Function, getattr(BUILT, function.__name__, function))
    # No function makes an array, so references to arrays need not be counted.
    options = {"nogil": True, "cache": _FOLDER is not None, "_nrt": False}
    return cast(Function, numba.njit(**options)(function))
