"""Facts reach the design matrix; encodings and choices know the training rows only."""

import numpy as np
import pandas as pd
import pytest

from roofline import PROFILES, STRONGEST, WEAKEST, rows_of
from sextant.facts.gpu import GPU, GPUProfile
from sextant.facts.llm import LLM
from sextant.points.frame import computed_features, features_of_sheets
from sextant.predict.features import FeatureEncoder, design_matrix, sample_weights
from sextant.predict.predictor import reference_profiles
from sextant.predict.tuning import choose_nested, choose_settings, mape_error

LLAMA = LLM("llama", 2, 64, 256, 8, 4, 8, 1000, 512, "bfloat16", 1_000_000, 900_000)
OPT = LLM("opt", 4, 64, 256, 8, 8, 8, 1000, 512, "float32", 2_000_000, 1_900_000)
T4 = GPU("T4", "gpu", "Turing", 16.0, 320.0, 65.0, 32.0, "data sheet")


def matrix(llm_ids: list[str], types: list[str]) -> pd.DataFrame:
    frame = pd.DataFrame({"llm_id": llm_ids, "gpu_profile_id": "g"})
    frame["users"] = range(1, len(llm_ids) + 1)
    return frame.assign(llm_type=types, size=1.0)


def targets(values: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"nttft_ms": values, "itl_ms": [10 * value for value in values]})


def test_the_design_matrix_holds_the_facts_of_llm_and_profile():
    profiles = {"4xT4": GPUProfile("4xT4", T4, 4, 3.9)}
    features = computed_features({"opt": OPT, "llama": LLAMA}, profiles)
    rows = pd.DataFrame({"llm_id": ["llama", "opt"], "users": [8, 16]}, index=[5, 3])
    X = design_matrix(rows.assign(gpu_profile_id="4xT4"), features)
    assert X.index.tolist() == [5, 3]
    assert X["n_parameters"].tolist() == [1_000_000, 2_000_000]
    assert X["weight_bytes"].tolist() == [2_000_000, 8_000_000]
    # 2 (K and V) x layers x KV heads x head size x bytes
    assert X["kv_bytes_per_token"].tolist() == [2 * 2 * 4 * 8 * 2, 2 * 4 * 8 * 8 * 4]
    assert X["total_memory_gib"].tolist() == [64.0, 64.0]
    assert X["total_memory_bandwidth_gb_s"].tolist() == [1280.0, 1280.0]
    assert X["total_dense_16bit_tflops"].tolist() == [260.0, 260.0]
    assert X["architecture"].tolist() == ["Turing", "Turing"]
    assert "usd_per_hour" not in X


def test_published_features_keep_their_columns_order_and_add_what_a_profile_has():
    llms = [
        {"llm_id": "a", "n_heads": 8, "note": "looks wrong"},  # its n_positions is not known
        {"llm_id": "b", "n_positions": 512, "n_heads": 16},
    ]
    gpus = [{"gpu_id": "T4", "architecture": "Turing", "memory_capacity_gb": 16.0}]
    profiles = {f"{n}xT4": GPUProfile(f"{n}xT4", T4, n, 1.0) for n in (1, 4)}
    features = features_of_sheets(llms, gpus, profiles)
    assert features.llms.columns.tolist() == ["n_positions", "n_heads"]
    assert np.isnan(features.llms.loc["a", "n_positions"])
    own = {"architecture": "Turing", "memory_capacity_gb": 16.0, "n_gpus": 4}
    whole = own | {"memory_capacity_gb_total": 64.0}
    assert features.profiles.loc["4xT4"].to_dict() == whole


def test_categories_become_means_of_the_other_fifths_and_precede_the_numbers():
    X = matrix(list("abcde") * 2, ["p"] * 5 + ["q"] * 5)
    values = [float(value) for value in range(1, 11)]
    encoder = FeatureEncoder()
    encoded = encoder.fit_transform(X, targets(values))
    assert encoded.shape == (10, 4)  # the type by either target, users, size
    assert encoded[:, 2].tolist() == list(range(1, 11))
    # Rows 0 and 1 are a fifth: their `p` is encoded by rows 2 to 4 (mean 4), shrunken
    # towards the mean of rows 2 to 9; the second target is ten times the first.
    assert encoded[0, 0] == encoded[1, 0]
    assert 4 < encoded[0, 0] < 6.5
    assert encoded[:, 1] == pytest.approx(10 * encoded[:, 0])
    assert encoder.monotone_in_users() == (0, 0, 1, 0)


def test_unknown_categories_become_the_training_mean_and_unknown_numbers_minus_one():
    encoder = FeatureEncoder()
    encoder.fit_transform(matrix(list("abc"), ["p", "p", "q"]), targets([1.0, 2.0, 6.0]))
    unseen = encoder.transform(matrix(["z", "z"], ["new", "other"]).assign(size=[2.0, np.nan]))
    assert unseen[:, 0].tolist() == pytest.approx([3.0, 3.0])
    assert unseen[:, 2].tolist() == [1, 2]
    assert unseen[:, 3].tolist() == [2, -1]


def test_the_farthest_point_of_a_group_weighs_nothing_and_one_on_the_limit_all():
    """Eq. 4 of LLM-Pilot."""
    X = pd.DataFrame({"llm_id": ["a"] * 4, "gpu_profile_id": "g"})
    y = pd.DataFrame({"nttft_ms": [10.0, 40.0, 50.0, 130.0], "itl_ms": 1.0})
    weights = sample_weights(X, y, (50.0, None))  # 40, 10, 0 and 80 ms away
    assert weights * 2.375 == pytest.approx([0.5, 0.875, 1.0, 0.0])
    backwards = [3, 2, 1, 0]
    again = sample_weights(X.iloc[backwards], y.iloc[backwards], (50.0, 2.0))
    assert again == pytest.approx(sample_weights(X, y, (50.0, 2.0))[::-1])


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
        assert all(set(own.X["gpu_profile_id"]) == {WEAKEST, STRONGEST} for _, own in held_out)
        truths = [own.y["nttft_ms"] for own, _ in held_out]
        guesses = [setting["factor"] * mean for setting in self.GRID]
        return np.array([[mape_error(true, guess) for guess in guesses] for true in truths])


def test_nested_choices_are_the_plain_choices_without_each_llm() -> None:
    assert reference_profiles(PROFILES) == (WEAKEST, STRONGEST)
    rows, model = rows_of({"a": 1.0, "b": 2.0, "c": 4.0, "d": 9.0}), MeanTimes()
    nested = choose_nested(model, rows, 1, lambda text: None)
    assert sorted(model.trainings) == ["ab", "ac", "ad", "bc", "bd", "cd"]  # each pair once
    assert nested == {
        llm_id: choose_settings(MeanTimes(), rows.without([llm_id])) for llm_id in "abcd"
    }
