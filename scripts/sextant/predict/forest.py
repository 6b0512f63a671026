"""Random forests for both latencies, and every forest of a grid from shared trees."""

from collections.abc import Iterator, Sequence
from typing import Self

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.ensemble import RandomForestRegressor
from sklearn.tree import DecisionTreeRegressor

from sextant.points.frame import TARGETS
from sextant.predict import Rows, latency_frame
from sextant.predict.features import FeatureEncoder
from sextant.predict.tuning import HeldOut, Settings, Tunable, choose, mape_error

_FRIEDMAN = "friedman_mse"
_TINY = 2.0**-20
"""A power of 2, so that scaling loses no digit."""


class ForestPredictor(Tunable):
    """One random forest for both targets in milliseconds: what RF and PARIS share."""

    def fit(self, training: Rows, references: Rows | None = None) -> Self:
        """Train, with settings chosen on the training rows unless they were given."""
        self.settings_ = self.settings or choose(self, training)
        self.measured_ = [training] if references is None else [training, references]
        self.encoder_ = FeatureEncoder()
        X = self.describe(training.X, self.measured_)
        encoded = self.encoder_.fit_transform(X, training.y[TARGETS])
        y = _split_by(self.settings_["criterion"], training.y[TARGETS].to_numpy())
        self.forest_ = _grow(self.settings_, self.seed, encoded, y)
        return self

    def predict(self, X: pd.DataFrame) -> pd.DataFrame:
        """Return `nttft_ms` and `itl_ms`, one row per row of `X`."""
        encoded = self.encoder_.transform(self.describe(X, self.measured_))
        predicted = _latencies(self.settings_["criterion"], self.forest_.predict(encoded))
        return latency_frame(predicted, X.index)

    def validation_errors(self, training: Rows, held_out: Sequence[HeldOut]) -> np.ndarray:
        """Return the error of each setting on each LLM held out, (LLMs, settings)."""
        measured = [training, *(llm.references for llm in held_out)]
        encoder = FeatureEncoder()
        X = self.describe(training.X, measured)
        encoded = encoder.fit_transform(X, training.y[TARGETS])
        unseen = pd.concat([llm.rows.X for llm in held_out])
        unseen = encoder.transform(self.describe(unseen, measured))
        ends = np.cumsum([len(llm.rows.X) for llm in held_out])[:-1]
        errors = np.empty((len(held_out), len(self.GRID)))
        y = training.y[TARGETS].to_numpy()
        for position, predicted in predict_grid(self.GRID, self.seed, encoded, y, unseen):
            parts = np.split(predicted, ends)
            for row, (llm, part) in enumerate(zip(held_out, parts, strict=True)):
                errors[row, position] = mape_error(llm.rows.y[TARGETS].to_numpy(), part)
        return errors

    def describe(self, X: pd.DataFrame, measured: Sequence[Rows]) -> pd.DataFrame:
        """Return the features of rows `X`, given all points that may be known of their LLMs."""
        return X


def predict_grid(
    grid: Sequence[Settings], seed: int, X: np.ndarray, y: np.ndarray, unseen: np.ndarray
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each position of the grid and its forest's predictions, (unseen rows, targets).

    Exactly those of one `RandomForestRegressor` per setting, from fewer trees. Seeds of trees
    are drawn in sequence, so a forest's first trees are the smaller forest. And a tree that
    ends by itself within a limit of depth is what that limit would have grown.
    """
    most = max(settings["n_estimators"] for settings in grid)
    deepest = max(settings["max_depth"] for settings in grid)
    kinds = dict.fromkeys((settings["criterion"], settings["bootstrap"]) for settings in grid)
    for criterion, bootstrap in kinds:
        kind = {"criterion": criterion, "bootstrap": bootstrap}
        targets = _split_by(criterion, y)
        forest = _grow(kind | {"n_estimators": most, "max_depth": deepest}, seed, X, targets)
        for max_depth in dict.fromkeys(settings["max_depth"] for settings in grid):
            trees = _limit_depth(forest, max_depth, X, targets)
            sums = np.cumsum([tree.predict(unseen) for tree in trees], axis=0)
            for position, settings in enumerate(grid):
                if settings.items() >= (kind | {"max_depth": max_depth}).items():
                    n_estimators = settings["n_estimators"]
                    yield position, _latencies(criterion, sums[n_estimators - 1] / n_estimators)


def _split_by(criterion: str, y: np.ndarray) -> np.ndarray:
    """Return the targets to grow trees on: those of `friedman_mse` split by the sum of both.

    That is what scikit-learn did until 1.8 with more than one target (1.9 takes it for
    `squared_error`). The first latency is added so small that it changes no split.
    """
    return np.column_stack([y.sum(axis=1), _TINY * y[:, 0]]) if criterion == _FRIEDMAN else y


def _latencies(criterion: str, predicted: np.ndarray) -> np.ndarray:
    """Return both latencies from predictions of what `_split_by` returned."""
    if criterion != _FRIEDMAN:
        return predicted
    first = predicted[:, 1] / _TINY
    return np.column_stack([first, predicted[:, 0] - first])


def _grow(settings: Settings, seed: int, X: np.ndarray, y: np.ndarray) -> RandomForestRegressor:
    if settings["criterion"] == _FRIEDMAN:
        settings = settings | {"criterion": "squared_error"}
    return RandomForestRegressor(**settings, random_state=seed, n_jobs=1).fit(X, y)


def _limit_depth(
    forest: RandomForestRegressor, max_depth: int, X: np.ndarray, y: np.ndarray
) -> list[DecisionTreeRegressor]:
    """Return the forest's trees as they would be had their depth been limited."""
    trees = []
    for tree, drawn in zip(forest.estimators_, forest.estimators_samples_, strict=True):
        if not _ends_by(tree, max_depth):
            weights = np.bincount(drawn, minlength=len(X)) if forest.bootstrap else None
            tree = clone(tree).set_params(max_depth=max_depth).fit(X, y, sample_weight=weights)
        trees.append(tree)
    return trees


def _ends_by(tree: DecisionTreeRegressor, max_depth: int) -> bool:
    """Tell whether a limit of depth would not have changed a tree."""
    # A leaf that is not pure was tried to split, which draws random numbers; with the limit
    # it would not have been, and the rest of the tree would draw others.
    leaves = tree.tree_.children_left == -1
    is_pure = tree.tree_.impurity[leaves].max() <= np.finfo(float).eps
    return tree.max_depth == max_depth or tree.get_depth() < max_depth + is_pure
