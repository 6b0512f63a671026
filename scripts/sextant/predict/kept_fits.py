"""Fits that are kept in the user's cache: a question about the same points needs no new fit.

A fit is known by all that it follows from: the points, the seed, the law's code and its
libraries. So a kept one is never out of date, and gives the same numbers to the last digit.
"""

import os
from hashlib import sha256
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import pandas as pd

from sextant.base.files import atomic_path
from sextant.predict.native_xgboost import xgboost
from sextant.predict.protocols import Rows
from sextant.predict.roofline.predictor import Roofline

_MOST_KEPT = 32


def fit_or_restore(model: Roofline, training: Rows, references: Rows | None) -> None:
    """Fit a model as `Roofline.fit` does, or restore what it found before.

    Without a place for the cache (`$XDG_CACHE_HOME`, else `~/.cache`) it is fitted each time.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = home / "sextant" / f"fit-{_key(model.seed, training, references)}.npz"
    try:
        with np.load(path, allow_pickle=False) as arrays:
            model.restore(training.X, dict(arrays))
        return
    except (
        OSError,
        ValueError,
        KeyError,
        BadZipFile,
        xgboost.core.XGBoostError,
    ):  # there is none, or it is damaged
        model.fit(training, references)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **model.arrays())
        kept = sorted(path.parent.glob("fit-*.npz"), key=lambda each: each.stat().st_mtime)
        for old in kept[:-_MOST_KEPT]:
            old.unlink(missing_ok=True)
    except OSError:  # the next question fits again
        return


def _key(seed: int, training: Rows, references: Rows | None) -> str:
    digest = sha256(f"{seed} {np.__version__} {pd.__version__} {xgboost.__version__}".encode())
    for path in sorted((Path(__file__).parent / "roofline").glob("*.py")):
        digest.update(path.read_bytes())
    for rows in (training, references):
        for frame in () if rows is None else rows:
            digest.update(repr([*frame.columns]).encode())
            digest.update(pd.util.hash_pandas_object(frame).to_numpy().tobytes())
        digest.update(b"|")
    return digest.hexdigest()[:32]
