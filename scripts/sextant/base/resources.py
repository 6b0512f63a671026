"""Where the files that ship lie: facts, prices, measurements; and the pipeline, in a checkout."""

from pathlib import Path

from sextant.base.errors import InputError

PACKAGE = Path(__file__).parents[1]
"""The folder of the library's modules."""
_ROOT = PACKAGE.parents[1]
CHECKOUT = _ROOT if (_ROOT / "workflow" / "Snakefile").is_file() else None
"""The folder of the repository, also of an editable install; None for an installed wheel."""


def resource(name: str) -> Path:
    """Return the path of a file or folder of `resources/`, which a wheel has inside the package."""
    return (CHECKOUT or PACKAGE) / "resources" / name


def checkout() -> Path:
    """Return the folder of the repository; InputError for an installed wheel."""
    if CHECKOUT is None:
        problem = "this needs the pipeline, which is not part of an installed wheel"
        fix = "clone the repository, run `make .venv/.ready` there and use .venv/bin/sextant"
        raise InputError(problem, fix=fix)
    return CHECKOUT
