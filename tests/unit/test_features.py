"""Facts reach the design matrix; encodings know the training rows only."""

import numpy as np
import pandas as pd
import pytest

from sextant.gpu import GPU, GPUProfile
from sextant.llm import LLM
from sextant.predict.features import (
    FeatureEncoder,
    design_matrix,
    leave_one_out,
    llm_table,
    profile_table,
)

LLAMA = LLM("llama", 2, 64, 256, 8, 4, 8, 1000, 512, "bfloat16", 1_000_000, 900_000)
OPT = LLM("opt", 4, 64, 256, 8, 8, 8, 1000, 512, "float32", 2_000_000, 1_900_000)
T4 = GPU("T4", "gpu", "Turing", 16.0, 320.0, 65.0, "data sheet")


def matrix(llm_ids: list[str], types: list[str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "llm_id": llm_ids,
            "gpu_profile_id": "g",
            "users": range(1, len(llm_ids) + 1),
            "llm_type": types,
            "size": 1.0,
        }
    )


def targets(values: list[float]) -> pd.DataFrame:
    return pd.DataFrame({"nttft_ms": values, "itl_ms": [10 * value for value in values]})


def test_the_design_matrix_holds_the_facts_of_llm_and_profile():
    llms = llm_table({"opt": OPT, "llama": LLAMA})
    profiles = profile_table({"4xT4": GPUProfile("4xT4", T4, 4, 3.9)})
    rows = pd.DataFrame(
        {"llm_id": ["llama", "opt"], "gpu_profile_id": "4xT4", "users": [8, 16]}, index=[5, 3]
    )
    X = design_matrix(rows, llms, profiles)
    assert X.index.tolist() == [5, 3]
    assert X["n_parameters"].tolist() == [1_000_000, 2_000_000]
    assert X["weight_bytes"].tolist() == [2_000_000, 8_000_000]
    # 2 (K and V) x layers x KV heads x head size x bytes
    assert X["kv_bytes_per_token"].tolist() == [2 * 2 * 4 * 8 * 2, 2 * 4 * 8 * 8 * 4]
    assert X["total_memory_gib"].tolist() == [64.0, 64.0]
    assert X["total_memory_bandwidth_gb_s"].tolist() == [1280.0, 1280.0]
    assert X["total_dense_bf16_tflops"].tolist() == [260.0, 260.0]
    assert X["architecture"].tolist() == ["Turing", "Turing"]
    assert "usd_per_hour" not in X


def test_leave_one_out_holds_each_llm_out_once():
    folds = list(leave_one_out(pd.Series(["b", "a", "b", "c"], index=[9, 8, 7, 6])))
    assert [held_out.tolist() for _, held_out in folds] == [[1], [0, 2], [3]]
    assert [training.tolist() for training, _ in folds] == [[0, 2, 3], [1, 3], [0, 1, 2]]


def test_a_category_unique_to_one_llm_tells_nothing_about_it():
    X = matrix(list("aabb"), ["p", "p", "q", "q"])
    encoded = FeatureEncoder().fit_transform(X, targets([1.0, 2.0, 5.0, 6.0]))
    assert encoded.shape == (4, 4)  # users, size, the type by either target
    # The rows of `a` see the mean of `b` only, and the reverse.
    assert encoded[:, 2].tolist() == pytest.approx([5.5, 5.5, 1.5, 1.5])
    assert encoded[:, 3].tolist() == pytest.approx([55, 55, 15, 15])


def test_unknown_categories_become_the_training_mean_and_users_come_first():
    encoder = FeatureEncoder()
    encoder.fit_transform(matrix(list("abc"), ["p", "p", "q"]), targets([1.0, 2.0, 6.0]))
    unseen = encoder.transform(matrix(["z", "z"], ["new", "other"]))
    assert unseen[:, 0].tolist() == [1, 2]
    assert unseen[:, 2].tolist() == pytest.approx([3.0, 3.0])


def test_a_single_llm_and_no_categories_can_be_encoded():
    alone = FeatureEncoder().fit_transform(matrix(["a", "a"], ["p", "p"]), targets([1.0, 3.0]))
    assert np.isfinite(alone).all()
    numbers = matrix(["a", "b"], ["p", "q"]).drop(columns="llm_type")
    encoded = FeatureEncoder().fit_transform(numbers, targets([1.0, 3.0]))
    assert encoded.tolist() == [[1.0, 1.0], [2.0, 1.0]]
