"""Eq. 4 on examples computed by hand."""

import numpy as np
import pandas as pd
import pytest

from sextant.predict.features import sample_weights


def test_the_farthest_point_of_a_group_weighs_nothing_and_one_on_the_limit_all():
    X = pd.DataFrame({"llm_id": ["a"] * 4, "gpu_profile_id": "g"})
    y = pd.DataFrame({"nttft_ms": [10.0, 40.0, 50.0, 130.0], "itl_ms": 1.0})
    weights = sample_weights(X, y, (50.0, None))  # 40, 10, 0 and 80 ms away
    assert weights * 2.375 == pytest.approx([0.5, 0.875, 1.0, 0.0])


def test_weights_keep_the_rows_order_and_range():
    rng = np.random.default_rng(7)
    X = pd.DataFrame(
        {"llm_id": rng.choice(list("abc"), 60), "gpu_profile_id": rng.choice(list("xy"), 60)},
        index=rng.permutation(60),
    )
    y = pd.DataFrame(rng.lognormal(3, 1, (60, 2)), columns=["nttft_ms", "itl_ms"], index=X.index)
    weights = sample_weights(X, y, (20.0, 30.0))
    assert ((weights >= 0) & (weights <= 1)).all()
    shuffled = rng.permutation(60)
    again = sample_weights(X.iloc[shuffled], y.iloc[shuffled], (20.0, 30.0))
    assert again == pytest.approx(weights[shuffled])
