"""Importance of parameters for latency, where it is known what the latency is made of."""

import numpy as np
import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.studies.importance import parameter_importance

PARAMETERS = ["input_tokens", "output_tokens", "is_greedy"]


@pytest.fixture
def requests() -> pd.DataFrame:
    """Requests whose latency is 10 ms a token of output, 1 ms a token of input, and no more."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "input_tokens": rng.integers(1, 1000, 2000),
            "output_tokens": rng.integers(1, 300, 2000),
            "is_greedy": rng.random(2000) < 0.5,
            "status": "ok",
        }
    )
    frame["e2e_ms"] = 10.0 * frame["output_tokens"] + frame["input_tokens"]
    return frame


def test_latency_is_explained_by_what_it_is_made_of(requests):
    found = parameter_importance(requests, "e2e_ms", PARAMETERS, seed=0)
    assert (found.n_rows, found.n_held_out, found.n_failed) == (2000, 400, 0)
    assert found.r2_held_out > 0.99 and found.r2_training > found.r2_held_out
    # Var(10·U(1, 299)) is 90% of the variance, Var(U(1, 999)) is 10%.
    assert found.mdi["output_tokens"] == pytest.approx(0.9, abs=0.03)
    assert found.mdi["input_tokens"] == pytest.approx(0.1, abs=0.03)
    assert sum(found.mdi.values()) == pytest.approx(1)
    # R² falls by twice a parameter's share when its values change places.
    assert found.permutation["output_tokens"] == pytest.approx(1.8, abs=0.2)
    assert abs(found.permutation["is_greedy"]) < 0.01 and found.mdi["is_greedy"] < 0.01
    assert found == parameter_importance(requests, "e2e_ms", PARAMETERS, seed=0)
    assert found != parameter_importance(requests, "e2e_ms", PARAMETERS, seed=1)


def test_noise_is_learnt_by_heart_and_not_explained(requests):
    noise = requests.assign(e2e_ms=np.random.default_rng(1).normal(size=2000))
    found = parameter_importance(noise, "e2e_ms", PARAMETERS, seed=0)
    assert found.r2_training > 0.7 and found.r2_held_out < 0.05


def test_failed_and_unknown_requests_are_left_out_and_counted(requests):
    requests.loc[:99, ["status", "e2e_ms"]] = ["failed", 1e9]
    requests.loc[100:149, "e2e_ms"] = np.nan
    found = parameter_importance(requests, "e2e_ms", PARAMETERS, seed=0, max_rows=1000)
    assert (found.n_failed, found.n_without_latency) == (100, 50)
    assert (found.n_rows, found.n_not_sampled, found.n_held_out) == (1000, 850, 200)
    assert found.r2_held_out > 0.98


def test_a_parameter_may_be_null(requests):
    top_k = pd.array([None, 5] * 1000, "Int32")
    slow = requests.assign(top_k=top_k, e2e_ms=requests["e2e_ms"] + 5000.0 * top_k.isna())
    found = parameter_importance(slow, "e2e_ms", [*PARAMETERS, "top_k"], seed=0)
    assert found.r2_held_out > 0.99
    assert found.mdi["top_k"] > 0.8


def test_too_little_to_learn_from(requests):
    with pytest.raises(InputError, match=r"field 'e2e_ms': 49 requests .*50 or more"):
        parameter_importance(requests.head(49), "e2e_ms", PARAMETERS, seed=0)
    with pytest.raises(InputError, match="field 'e2e_ms': 0 requests have a latency"):
        parameter_importance(requests.assign(e2e_ms=None), "e2e_ms", PARAMETERS, seed=0)
    with pytest.raises(InputError, match="all requests have the same latency"):
        parameter_importance(requests.assign(e2e_ms=5.0), "e2e_ms", PARAMETERS, seed=0)
    for parameters, target in ((["top_p"], "e2e_ms"), (PARAMETERS, "ttft_ms")):
        with pytest.raises(InputError, match=r"field '(top_p|ttft_ms)': the requests lack the col"):
            parameter_importance(requests, target, parameters, seed=0)
