"""Eq. 4 on examples computed by hand."""

import numpy as np
import pandas as pd
import pytest

from sextant.predict.features import closeness, sample_weights


def test_the_farthest_point_of_a_group_weighs_nothing_and_one_on_the_limit_all():
    latency = pd.Series([10.0, 40.0, 50.0, 130.0])  # 40, 10, 0 and 80 ms from 50 ms
    weights = closeness(latency, 50.0, [pd.Series(["g"] * 4)])
    assert weights.tolist() == [0.5, 0.875, 1.0, 0.0]


def test_each_pair_of_llm_and_profile_is_its_own_group():
    X = pd.DataFrame({"llm_id": list("aabb"), "gpu_profile_id": ["x"] * 4, "users": [1, 2, 1, 2]})
    y = pd.DataFrame({"nttft_ms": [90.0, 60.0, 110.0, 500.0], "itl_ms": [50.0, 30.0, 45.0, 40.0]})
    # nTTFT against 100: distances 10, 40 | 10, 400. ITL against 50: 0, 20 | 5, 10.
    # Closeness: 0.75, 0 | 0.975, 0 and 1, 0 | 0.5, 0; divided by the sum over each group.
    expected = [(0.75 / 0.75 + 1) / 2, 0, (0.975 / 0.975 + 0.5 / 0.5) / 2, 0]
    assert sample_weights(X, y, 100.0, 50.0) == pytest.approx(expected)


@pytest.mark.parametrize("latency", [[77.0], [50.0], [50.0, 50.0, 50.0], [40.0, 60.0]], ids=str)
def test_a_group_without_a_farthest_point_is_kept_whole(latency):
    weights = closeness(pd.Series(latency), 50.0, [pd.Series(["g"] * len(latency))])
    assert weights.tolist() == [1.0] * len(latency)


def test_weights_keep_the_rows_order_and_range():
    rng = np.random.default_rng(7)
    X = pd.DataFrame(
        {"llm_id": rng.choice(list("abc"), 60), "gpu_profile_id": rng.choice(list("xy"), 60)},
        index=rng.permutation(60),
    )
    y = pd.DataFrame(rng.lognormal(3, 1, (60, 2)), columns=["nttft_ms", "itl_ms"], index=X.index)
    weights = sample_weights(X, y, 20.0, 30.0)
    assert ((weights >= 0) & (weights <= 1)).all()
    shuffled = rng.permutation(60)
    again = sample_weights(X.iloc[shuffled], y.iloc[shuffled], 20.0, 30.0)
    assert again == pytest.approx(weights[shuffled])
