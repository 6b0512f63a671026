"""What is an LLM's own: terms of a step that its measurements tell of."""

import numpy as np
import pandas as pd
import pytest
from test_unseen import ASKED, LLMS, latencies, rows

from sextant.law.fit import finish_fit, fit_law
from sextant.law.own import OWN_SD, own_names
from sextant.law.posterior import Law, columns_of
from sextant.law.terms import LAW

USERS = (1, 4, 16, 64, 256)


def slow_sequences(X: pd.DataFrame, factor: float) -> np.ndarray:
    """Return latencies that the law has where each sequence of one LLM takes longer."""
    phi = fit_law(LAW, X, latencies(X, 0.0)).posterior.most_likely(X)
    phi[(X["llm_id"] == ASKED).to_numpy(), list(LAW.parameters).index("sequence")] += np.log(factor)
    return np.exp(LAW.predict_log(phi, columns_of(X)))


@pytest.fixture(scope="module")
def measured() -> tuple[pd.DataFrame, np.ndarray]:
    X = rows(users=USERS)
    return X, slow_sequences(X, 2.0)


def errors(law: Law, X: pd.DataFrame, y_ms: np.ndarray, is_in_fit: np.ndarray) -> np.ndarray:
    """Return the absolute errors of log ITL at the rows that a fit has not seen."""
    posterior = fit_law(law, X[is_in_fit].reset_index(drop=True), y_ms[is_in_fit]).posterior
    asked = X[~is_in_fit]
    predicted = law.predict_log(posterior.most_likely(asked), columns_of(asked))
    return np.abs(predicted - np.log(y_ms[~is_in_fit]))[:, 1]


def test_other_loads_of_a_measured_llm_follow_its_own_terms(measured) -> None:
    X, y_ms = measured
    is_in_fit = ~((X["llm_id"] == ASKED) & (X["users"] == 256)).to_numpy()
    with_own, without = (errors(law, X, y_ms, is_in_fit) for law in (LAW, LAW._replace(own={})))
    assert np.median(with_own) < 0.7 * np.median(without)


def test_an_llm_that_the_fit_has_not_seen_has_none(measured) -> None:
    X, y_ms = measured
    is_in_fit = (X["llm_id"] != ASKED).to_numpy()
    posterior = fit_law(LAW, X[is_in_fit].reset_index(drop=True), y_ms[is_in_fit]).posterior
    assert {name.partition("|")[0] for name in posterior.own} == set(LLMS) - {ASKED}
    plain = posterior._replace(own={})
    asked = X[~is_in_fit]
    assert np.array_equal(posterior.draw(asked, 20, 1), plain.draw(asked, 20, 1))


def test_a_fit_that_is_made_again_has_the_same_ones(measured) -> None:
    X, y_ms = measured
    fitted = fit_law(LAW, X, y_ms)
    again = finish_fit(LAW, X, y_ms, fitted.checkpoint)
    for name, own in fitted.posterior.own.items():
        assert own.mean.shape == (len(OWN_SD),)
        assert np.array_equal(own.mean, again.own[name].mean)
        assert np.array_equal(own.covariance, again.own[name].covariance)


def test_an_llm_whose_first_tokens_nobody_measured_is_no_less_sure_of_them(measured) -> None:
    X, y_ms = measured
    asked = (X["llm_id"] == ASKED).to_numpy()
    without = np.where(asked[:, None] & [True, False], np.nan, y_ms)
    posterior = fit_law(LAW, X, without).posterior
    own, plain = (
        np.quantile(it.draw(X[asked], 2000, 1)[..., 0], (0.05, 0.95), axis=0)
        for it in (posterior, posterior._replace(own={}))
    )
    assert np.ptp(own, axis=0) == pytest.approx(np.ptp(plain, axis=0), rel=0.1)


def test_servers_without_cuda_graphs_have_effects_of_their_own_instead() -> None:
    X = rows(users=(1,))
    assert (own_names(X.assign(is_eager=1.0)) == "").all()
    assert set(own_names(X)) == {f"{name}|vllm|Hopper" for name in LLMS}
