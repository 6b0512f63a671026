"""Nested tuning is the plain one, done once a pair."""

import numpy as np
import pandas as pd

from sextant.facts.gpu import GPU, GPUProfile
from sextant.predict import Rows, reference_profiles
from sextant.predict.tuning import choose, choose_nested

SIZES = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 9.0}
PROFILES = {
    name: GPUProfile(name, GPU(name, "gpu", "x", memory, 1.0, 1.0, 32.0, "invented"), n, 1.0)
    for name, n, memory in [("4xbig", 4, 80.0), ("1xsmall", 1, 16.0), ("1xbig", 1, 80.0)]
}
X = pd.DataFrame(
    [(llm, profile, users) for llm in SIZES for profile in PROFILES for users in (1, 8)],
    columns=["llm_id", "gpu_profile_id", "users"],
)
Y = pd.DataFrame({"nttft_ms": X["llm_id"].map(SIZES), "itl_ms": 1.0, "throughput_tok_s": 1.0})
ROWS = Rows(X, Y)


class MeanTimes:
    """Predicts a multiple of the training mean; counts its trainings."""

    GRID = ({"factor": 1.0}, {"factor": 0.5}, {"factor": 0.25}, {"factor": 0.5})
    uses_references = True
    profiles = PROFILES

    def __init__(self) -> None:
        self.trainings: list[str] = []

    def validation_errors(self, training, held_out):
        self.trainings.append("".join(training.X["llm_id"].unique()))
        mean = training.y["nttft_ms"].mean()
        assert all(set(own.X["gpu_profile_id"]) == {"1xsmall", "4xbig"} for _, own in held_out)
        return np.array(
            [
                [
                    np.mean(np.abs(s["factor"] * mean - own.y["nttft_ms"]) / own.y["nttft_ms"])
                    for s in self.GRID
                ]
                for own, _ in held_out
            ]
        )


def test_nested_choices_are_the_plain_choices_without_each_llm() -> None:
    model = MeanTimes()
    nested = choose_nested(model, ROWS, 1, lambda text: None)
    assert sorted(model.trainings) == ["ab", "ac", "ad", "bc", "bd", "cd"]  # each pair once
    assert nested == {llm_id: choose(MeanTimes(), ROWS.without([llm_id])) for llm_id in SIZES}


def test_the_reference_profiles_are_the_weakest_and_the_strongest() -> None:
    assert reference_profiles(PROFILES) == ("1xsmall", "4xbig")
