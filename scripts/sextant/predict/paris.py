"""PARIS (Yadwadkar et al., SoCC 2017): a random forest that has seen two measurements."""

from collections.abc import Sequence

import pandas as pd
from sklearn.model_selection import ParameterGrid

from sextant.points.frame import KEYS
from sextant.predict.features import UNKNOWN
from sextant.predict.forest import ForestPredictor
from sextant.predict.predictor import TrainingRows, reference_profiles


class PARIS(ForestPredictor):
    """The baseline PARIS of LLM-Pilot (section V-C): RF and what two GPU profiles measured.

    Beside the facts, a row has the nTTFT, ITL and throughput of its LLM on the weakest and
    on the strongest GPU profile at every number of users. LLM-Pilot's code adds the users
    that each of both serves within the limits; its paper does not, and neither does this, so
    one fit serves every SLO.
    """

    uses_references = True
    GRID = tuple(
        ParameterGrid(
            {
                "n_estimators": [5, 10, 200],
                "max_depth": [10, 12, 15, 30],
                "bootstrap": [True, False],
                "criterion": ["absolute_error", "friedman_mse"],
            }
        )
    )

    def describe(self, X: pd.DataFrame, measured: Sequence[TrainingRows]) -> pd.DataFrame:
        """Return `X` with the reference measurements of each row's LLM beside it.

        The columns are the numbers of users in `measured[0]`, the training rows;
        what was not measured is `UNKNOWN`.
        """
        columns = pd.MultiIndex.from_product(
            [
                reference_profiles(self.profiles),
                measured[0].y.columns,
                sorted(measured[0].X["users"].unique()),
            ]
        )
        points = pd.concat([pd.concat([rows.X[KEYS], rows.y], axis=1) for rows in measured])
        table = points.pivot(index="llm_id", columns=KEYS[1:], values=list(measured[0].y))
        table = table.reorder_levels([1, 0, 2], axis=1).reindex(columns=columns)
        table.columns = ["_".join(map(str, column)) for column in columns]
        measurements = table.reindex(X["llm_id"]).fillna(UNKNOWN).set_axis(X.index)
        return pd.concat([X, measurements], axis=1)
