"""Features of an LLM on a GPU profile serving some users, as predictors take them.

A design matrix has one row per (LLM, GPU profile, users): the two identifiers, which are
never features, numbers, and categories as strings. The tables of features decide which columns
it holds beyond `IDENTIFIERS` and `users`, so published features fit in as well.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from sextant.points.frame import IDENTIFIERS, TARGETS, Features


def design_matrix(rows: pd.DataFrame, features: Features) -> pd.DataFrame:
    """Return `llm_id, gpu_profile_id, users` of `rows` with their features, indexed as `rows`.

    Raises KeyError: a row names an LLM or a profile that its table lacks.
    """
    parts = [
        rows[[*IDENTIFIERS, "users"]],
        features.llms.loc[rows["llm_id"]].set_axis(rows.index),
        features.profiles.loc[rows["gpu_profile_id"]].set_axis(rows.index),
    ]
    return pd.concat(parts, axis=1)


UNKNOWN = -1.0
"""Stands for an unknown feature of an LLM or a GPU profile, as in LLM-Pilot's code."""


def column_kinds(X: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Return the names of a design matrix's numbers, `users` first, and of its categories."""
    facts = X.drop(columns=[*IDENTIFIERS, "users"])
    numbers = ["users", *facts.select_dtypes(["number", "bool", "boolean"]).columns]
    return numbers, [name for name in facts if name not in numbers]


def numbers_of(X: pd.DataFrame, names: Sequence[str]) -> np.ndarray:
    """Return these columns as numbers, (rows, names)."""
    return X[names].astype(float).fillna(UNKNOWN).to_numpy()


class FeatureEncoder:
    """Turns a design matrix into numbers: categories become target means, per target.

    As in LLM-Pilot's code: the shrunken mean (scikit-learn's `TargetEncoder`) of each target
    over the training rows of a category, the overall mean for a category never seen; in
    training, the means of a fifth of the rows come from the other four. Facts that are not
    known become -1. Columns are the categories for the first target, those for the second,
    `users`, then the other numbers: samples of columns are drawn by position.
    """

    def fit_transform(self, X: pd.DataFrame, y: pd.DataFrame) -> np.ndarray:
        """Learn the encodings from training rows `X` and their targets `y`; encode `X`."""
        # Imported here: it takes a second, and not all predictors encode.
        from sklearn.model_selection import KFold
        from sklearn.preprocessing import TargetEncoder

        self.numbers_, self.categories_ = column_kinds(X)
        self.encoders_ = []
        parts = []
        # Consecutive fifths, so that most rows of an LLM are encoded by other LLMs' rows; a
        # single row has no others.
        folds = KFold(min(5, len(X))) if len(X) > 1 else [([0], [0])]
        for target in TARGETS if self.categories_ else []:
            encoder = TargetEncoder(target_type="continuous", cv=folds)
            parts.append(encoder.fit_transform(X[self.categories_], y[target]))
            self.encoders_.append(encoder)
        return np.hstack([*parts, numbers_of(X, self.numbers_)])

    def transform(self, X: pd.DataFrame) -> np.ndarray:
        """Encode rows with what `fit_transform` learned."""
        parts = [encoder.transform(X[self.categories_]) for encoder in self.encoders_]
        return np.hstack([*parts, numbers_of(X, self.numbers_)])

    def monotone_in_users(self) -> tuple[int, ...]:
        """Return XGBoost's constraint a column: 1 where outputs must not fall, 0 elsewhere."""
        n_encoded = len(self.encoders_) * len(self.categories_)
        return (*[0] * n_encoded, 1, *[0] * (len(self.numbers_) - 1))


def sample_weights(
    X: pd.DataFrame, y: pd.DataFrame, limits_ms: Sequence[float | None]
) -> np.ndarray:
    """Return one weight per row: the mean over both targets of the closeness to their limits.

    Closeness is eq. 4 of LLM-Pilot (arXiv 2410.02425), 1 - |l - L| / max |l - L|. The maximum is
    over a group: all user counts of one LLM on one GPU profile. Where all points of a group are
    equally far, e.g. a single point, or points exactly on the limit (0/0), all get 1: a weight of 0
    would throw away the only measurement of a pair. The closeness is divided by its sum over the
    group, as LLM-Pilot's code does beyond eq. 4, so that the weights of a group add up to 1. A
    target without a limit does not count; without any limit the rows of a group weigh the same.

    Args:
        X: design matrix.
        y: finite `nttft_ms` and `itl_ms`, aligned with `X`.
        limits_ms: limits on both targets; None: there is none.
    """
    groups = [X[name] for name in IDENTIFIERS]
    near = []
    for target, limit_ms in zip(TARGETS, limits_ms, strict=True):
        if limit_ms is not None:
            distance = (y[target] - limit_ms).abs()
            by_group = distance.groupby(groups)
            farthest = by_group.transform("max")
            nearest = by_group.transform("min")
            is_ranked = farthest > nearest
            near.append((1 - distance / farthest.where(is_ranked, 1)).where(is_ranked, 1.0))
    near = near or [pd.Series(1.0, X.index)]
    return np.mean([part / part.groupby(groups).transform("sum") for part in near], axis=0)
