"""Builds the compiled functions that Python calls into one module, with Numba and a C compiler.

    python -m sextant.simulate.building

Every installation does it (`hatch_build.py`). Do it again after an edit of this room; without a
module of the current source Numba compiles at run time (`compiling`), which gives the same numbers
later.
"""

from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from sextant.simulate import cache_depths, compiling, routing, source, steps, world
from sextant.simulate.server import Scheduler, StepLaw
from sextant.workload.requests import RequestStream


def build(folder: Path = source.ROOM) -> Path:
    """Return the module of the current source; if there is none, build it and delete older ones.

    It is only loaded from this room, the default of `folder`.

    Raises ImportError without setuptools, and setuptools' errors without a C compiler.
    """
    if compiling.BUILT is not None:
        return Path(str(compiling.BUILT.__file__))

    # Numba's compiler is loaded where a module is built, and has types of its own for half of it.
    compiler: Any = import_module("numba.pycc.compiler")
    cc: Any = import_module("numba.pycc.cc")

    class GilFreeFlags(compiler.Flags):  # type: ignore[misc]
        """Flags of functions that release the GIL, for which `CC` has no option."""

        def __init__(self, copy_from: Any = None) -> None:
            super().__init__(copy_from)
            self.release_gil = True

    builder = cc.CC(compiling.BUILT_NAME, source_module=compiling)
    # No function makes an array, so none has to be counted: counting takes half of the time.
    builder.use_nrt = False
    for function, signature in signatures().items():
        builder.export(function.__name__, signature)(function.py_func)
    plain_flags = compiler.Flags
    compiler.Flags = GilFreeFlags
    try:
        with TemporaryDirectory(dir=folder, prefix=".building-") as temporary:
            builder.output_dir = temporary
            builder.compile()
            path = folder / builder.output_file
            (Path(temporary) / path.name).replace(path)
    finally:
        compiler.Flags = plain_flags

    ending = path.name.removeprefix(compiling.BUILT_NAME)
    for other in folder.glob(f"built_*{ending}"):
        if other != path:
            other.unlink(missing_ok=True)
    return path


def signatures() -> dict[Any, Any]:
    """Return the functions that Python calls, and the Numba types of their arguments.

    A built function does not check how an array lies in memory: callers pass contiguous arrays of
    these types.
    """
    numba: Any = import_module("numba")
    types = numba.types

    requests = RequestStream.of(np.zeros(2), np.full(2, 2), np.full(2, 2))
    law = StepLaw(1.0, 1.0, 1.0, 1.0, 1.0)
    tables = numba.typeof(world.make_world(requests, Scheduler(99, 9, 99), law, 1, warmup_s=0.0))
    whole = types.int64
    real = types.float64
    indices = types.int64[::1]
    return {
        routing.route: whole(tables, whole, indices, real, whole),
        routing.finish: types.void(tables),
        routing.run_closed: types.void(tables, whole),
        steps.advance: types.void(tables, whole, real),
        cache_depths.compute_depths: types.void(*[indices] * 7),
    }


if __name__ == "__main__":
    print(build())
