"""What all shipped predictors have in common, and the frame in which latencies are returned."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPUProfile
from sextant.facts.slo import SLO
from sextant.points.characterizations.features import Facts
from sextant.points.characterizations.points import FLOOR_MS, TARGETS
from sextant.predict.features import design_matrix
from sextant.predict.tuning import Settings


def latency_frame(
    latencies_ms: np.ndarray | Sequence[Sequence[float]], index: pd.Index
) -> pd.DataFrame:
    """Return `nttft_ms, itl_ms`, not below `FLOOR_MS`, from values of shape (rows, 2)."""
    values = np.asarray(latencies_ms, dtype=float).reshape(len(index), len(TARGETS))
    return pd.DataFrame(np.maximum(values, FLOOR_MS), columns=TARGETS, index=index)


class LatencyPredictor:
    """Base of the predictors; `sextant.predict.protocols` says what each attribute means."""

    depends_on: tuple[str, ...] = ("percentiles", "first_token")
    min_training_llms = 2
    uses_references = False

    def __init__(
        self,
        slo: SLO,
        profiles: Mapping[str, GPUProfile],
        seed: int,
        settings: Settings | None = None,
    ) -> None:
        self.slo, self.profiles, self.seed, self.settings = slo, profiles, seed, settings

    def design(self, keys: pd.DataFrame, facts: Facts) -> pd.DataFrame:
        """Return the design matrix of features (`features.design_matrix`)."""
        return design_matrix(keys, facts.features)
