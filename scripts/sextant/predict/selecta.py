"""Selecta (Klimovic et al., USENIX ATC 2018): fill the gaps of a matrix by factorising it."""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Self

import numpy as np
import pandas as pd

from sextant.points.frame import FLOOR_MS, IDENTIFIERS, KEYS, TARGETS
from sextant.predict.predictor import Settings, TrainingRows, latency_frame
from sextant.predict.tuning import HeldOutRows, Tunable, choose_settings, mape_error

if TYPE_CHECKING:  # of the extra `baselines`, which may not be installed
    from surprise import SVD, Trainset

N_EPOCHS = 500

Key = tuple[int, str]
"""Number of users and target."""


class Selecta(Tunable):
    """The baseline Selecta of LLM-Pilot (section V-C): collaborative filtering, no features.

    For each number of users and each target a matrix of LLMs × GPU profiles holds what the
    training LLMs took in milliseconds, and the new LLM's two reference measurements. Its
    factorisation by stochastic gradient descent (Surprise, the library of Selecta's and
    LLM-Pilot's authors) predicts the rest, within 0 and the largest entry. Where the descent
    diverges, as it does for entries of seconds, it is the largest entry.
    """

    uses_references = True
    GRID = tuple(
        {"n_factors": n_factors, "init_std_dev": spread, "lr_all": rate, "reg_all": penalty}
        for n_factors, spread, rate, penalty in product(
            [20, 50], [0.01, 0.05, 0.1], [0.001, 0.005], [0.01, 0.1, 0.2]
        )
    )

    def fit(self, training: TrainingRows, references: TrainingRows | None = None) -> Self:
        """Factorise, with settings chosen on the training rows unless they were given."""
        self.settings_ = self.settings or choose_settings(self, training)
        matrices = _matrices([training] if references is None else [training, references])
        self.factors_ = self._factorise(matrices, self.settings_)
        return self

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms` and `itl_ms`, one row per row of `X`.

        An LLM or profile without an entry gets the mean and the other's bias; a number of
        users without a matrix gets NaN.
        """
        return _estimate(self.factors_, X)

    def validation_errors(
        self, training: TrainingRows, held_out: Sequence[HeldOutRows]
    ) -> np.ndarray:
        """Return the error of each setting on each LLM held out, (LLMs, settings).

        As in LLM-Pilot's code, the truth replaces the prediction where there is a reference.
        Each LLM has matrices of its own, with its references only.
        """
        errors = np.empty((len(held_out), len(self.GRID)))
        for row, (rows, references) in enumerate(held_out):
            matrices = _matrices([training, references])
            truth = rows.y[TARGETS].to_numpy()
            for position, settings in enumerate(self.GRID):
                predicted = _estimate(self._factorise(matrices, settings), rows.X)
                predicted.loc[references.X.index] = references.y[TARGETS]
                errors[row, position] = mape_error(truth, predicted.to_numpy())
        return errors

    def _factorise(
        self, matrices: "Mapping[Key, Trainset]", settings: Settings
    ) -> "dict[Key, SVD]":
        from surprise import SVD

        fixed = {"n_epochs": N_EPOCHS, "init_mean": 0, "random_state": self.seed}
        return {key: SVD(**settings, **fixed).fit(matrix) for key, matrix in matrices.items()}


def _matrices(parts: Sequence[TrainingRows]) -> "dict[Key, Trainset]":
    """Return the known entries, LLM × GPU profile, by number of users and target."""
    from surprise import Dataset, Reader

    points = pd.concat([pd.concat([rows.X[KEYS], rows.y], axis=1) for rows in parts])
    matrices = {}
    for users, same in points.groupby("users"):
        for target in TARGETS:
            # Estimates are clipped to the scale.
            reader = Reader(rating_scale=(FLOOR_MS, same[target].max()))
            entries = Dataset.load_from_df(same[[*IDENTIFIERS, target]], reader)
            matrices[users, target] = entries.build_full_trainset()
    return matrices


def _estimate(factors: "Mapping[Key, SVD]", X: pd.DataFrame) -> pd.DataFrame:
    estimates = [
        [
            factors[users, target].predict(llm_id, profile_id).est
            if (users, target) in factors
            else np.nan
            for target in TARGETS
        ]
        for llm_id, profile_id, users in X[KEYS].itertuples(index=False, name=None)
    ]
    return latency_frame(estimates, X.index)
