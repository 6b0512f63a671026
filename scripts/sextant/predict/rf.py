"""A random forest on facts alone: what PARIS would be without its measurements."""

from sklearn.model_selection import ParameterGrid

from sextant.predict.forest import ForestPredictor


class RandomForest(ForestPredictor):
    """The baseline RF of LLM-Pilot (section V-C), with the settings its authors chose among."""

    GRID = tuple(
        ParameterGrid(
            {
                "n_estimators": [5, 10, 50, 100],
                "max_depth": [8, 10, 12, 15, 30],
                "bootstrap": [True, False],
                "criterion": ["absolute_error", "friedman_mse", "poisson"],
            }
        )
    )
