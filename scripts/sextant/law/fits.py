"""Fits of `Roofline` that are not made again: those that ship, and those in the user's cache.

A fit takes seconds. `resources/fits/` has the fits of the sources that ship, each before its last
iteration (`Roofline.finish`); `python resources/fits/make.py` makes them. The cache has the last
fits whole. In go a model and its training rows; the model comes out fitted.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from inspect import getsource
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sextant.base.kept import keep_arrays, kept_path, read_arrays
from sextant.base.resources import resource
from sextant.law.energy import Energy, energy_points
from sextant.law.roofline import Roofline
from sextant.points.frame import FactTables
from sextant.predict.predictor import TrainingRows
from sextant.simulate.server import StepLaw

_CODE = tuple(sorted(Path(__file__).parent.glob("[a-z]*.py")))
LAW_FILE = "law.sha256"
"""File beside the fits that ship, with the digest of the code that they were made by."""


def fit_or_restore(
    model: Roofline, training: TrainingRows, references: TrainingRows | None
) -> None:
    """Fit a model as `Roofline.fit` does, or restore the same fit.

    A kept fit is named by everything that decides it, the law's code and its libraries included,
    so it gives the same numbers to the last digit. The cache is `$XDG_CACHE_HOME`, else
    `~/.cache`; where it cannot be written, every question makes its fit again.
    """
    libraries = f"{np.__version__} {pd.__version__}"
    rows = (_digest(training), _digest(references))
    path = kept_path("fit", f"{law_digest()} {libraries}", *rows)
    untold = model
    if references is not None:
        untold = Roofline(model.slo, model.profiles, model.seed)
        fit_or_restore(untold, training, None)
        model.untold_ = untold
    if _read(path, lambda arrays: model.restore(training.X, arrays)):
        return
    if references is not None:
        model.tell(untold, training, references)
    elif not use_shipped(model, training):
        model.fit(training)
    keep_arrays(path, model.arrays())


def energy_or_restore(points: pd.DataFrame, facts: FactTables) -> Energy | None:
    """Return what `Energy.fitted` learns of these points, or restore it."""
    rows = energy_points(points, facts)
    if rows is None:
        return None
    path = kept_path("energy", f"{law_digest()} {np.__version__}", _digest([rows]))
    shipped = resource("fits") / shipped_energy_name(rows)
    for file in (path, shipped) if _is_of_this_law() else (path,):
        if (arrays := read_arrays(file)) is not None:
            return Energy.restored(arrays)
    learned = Energy.fitted(points, facts)
    if learned is not None:
        keep_arrays(path, learned.arrays())
    return learned


def shipped_energy_name(rows: pd.DataFrame) -> str:
    """Return the name of the file in which what points tell of energy ships (`energy_points`)."""
    digest = sha256(_digest([_rounded(rows)]).encode())
    return f"energy-{digest.hexdigest()[:16]}.npz"


def use_shipped(model: Roofline, training: TrainingRows) -> bool:
    """Make a fit that ships with the library; return whether one is of these points and this law.

    Numbers are compared to 7 digits: the last ones depend on the processor and on NumPy.
    """
    path = resource("fits") / shipped_name(training)
    return _is_of_this_law() and _read(path, lambda arrays: model.finish(training, arrays))


def _is_of_this_law() -> bool:
    """Return whether the fits that ship were made by this code."""
    law = resource("fits") / LAW_FILE
    return law.is_file() and law.read_text().strip() == law_digest()


def shipped_name(training: TrainingRows) -> str:
    """Return the name of the file in which a fit of these points ships."""
    return f"{_digest(_rounded(frame) for frame in training)[:16]}.npz"


def law_digest() -> str:
    """Return a hash of the code that a fit follows from: this room, and the terms of a step."""
    return _digest_of_code(_CODE)


@cache
def _digest_of_code(sources: tuple[Path, ...]) -> str:
    digest = sha256(getsource(StepLaw).encode())
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _digest(frames: Any) -> str:
    digest = sha256()
    for frame in frames or ():
        digest.update(repr([*frame.columns]).encode())
        digest.update(pd.util.hash_pandas_object(frame).to_numpy().tobytes())
    return digest.hexdigest()


def _rounded(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype({name: np.float32 for name in frame.select_dtypes("number")})


def _read(path: Path, take: Callable[[dict[str, np.ndarray]], None]) -> bool:
    """Have a model take the arrays of a file; return whether there is one that is whole."""
    arrays = read_arrays(path)
    if arrays is None:
        return False
    try:
        take(arrays)
    except (ValueError, KeyError):
        return False
    return True
