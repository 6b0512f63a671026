"""Percentiles of users' latencies: what sources lack of them is simulated."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from answers import recommended
from sextant.ask.case import read_case
from sextant.ask.forecast import fit_medians, fit_predictor, make_predictor
from sextant.ask.question import Question
from sextant.ask.user_percentiles import (
    SIMULATED_USERS,
    UserPercentiles,
    latencies_to_simulate,
)
from sextant.facts.slo import SLO, factor
from sextant.points.frame import complete
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

PROFILE = "1xH100-80GB"
CHATS = SLO("chats", ttft_ms=1000.0, tpot_ms=40.0, percentile=50, users=32)
UNMEASURED = Question(
    CHATS,
    hf_config=ROOT / "resources" / "llms" / "Qwen__Qwen3-14B.json",
    requests=RequestLengths(Length(1000, 1000), Length(200, 200)),
    gpu_profile_ids=(PROFILE,),
)


def points(**latencies_ms: float) -> pd.DataFrame:
    """Return one point of 16 users with these latencies."""
    keys = {"llm_id": "it", "gpu_profile_id": PROFILE, "users": 16, "input_tokens": 1000.0}
    return complete(pd.DataFrame([{**keys, "output_tokens": 200.0, **latencies_ms}]))


def asked(percentile: int) -> SLO:
    return replace(CHATS, percentile=percentile)


@pytest.mark.parametrize("percentile", [50, 95])
def test_users_get_what_a_simulation_of_them_says(percentile) -> None:
    import sextant

    of_users = recommended(replace(UNMEASURED, slo=asked(percentile)))["latency"]
    simulated = sextant.simulate(
        hf_config=UNMEASURED.hf_config,
        gpu_profile=PROFILE,
        users=32,
        input_tokens="1000",
        output_tokens="200",
        duration="10min",
        draws=20,
    ).to_dict()
    for name, close in (("ttft_ms", 0.25), ("tpot_ms", 0.1)):
        expected_ms = simulated[name][f"p{percentile}"]
        assert of_users[name] == pytest.approx(expected_ms, rel=close)


def test_users_of_one_token_have_a_first_token_alone(recwarn) -> None:
    slo = SLO("one", ttft_ms=500.0, percentile=95, users=8)
    of_one = replace(UNMEASURED, slo=slo, requests=RequestLengths(Length(500, 500), Length(1, 1)))
    assert recommended(of_one)["latency"]["ttft_ms"] < 500
    assert not [it for it in recwarn if issubclass(it.category, RuntimeWarning)]


def test_a_fit_to_means_is_not_made_again_for_a_percentile() -> None:
    case = read_case(UNMEASURED, need_prices=False)
    models = []
    for percentile in (50, 99):
        slo = asked(percentile)
        fitted = fit_predictor(make_predictor(UNMEASURED, case.gpu_profiles), case, slo)
        assert fitted.simulates_users
        assert fitted.percentile_notes(case, slo) == [SIMULATED_USERS]
        models.append(fitted.model.posterior_)
    np.testing.assert_array_equal(models[0].mean, models[1].mean)


def test_points_that_have_the_percentile_are_learned_from_as_they_are() -> None:
    assert latencies_to_simulate(points(p95_ttft_ms=900.0, p95_tpot_ms=20.0), asked(95)) is None
    of_median = latencies_to_simulate(points(median_ttft_ms=300.0), asked(95))
    assert of_median is not None and of_median.is_mean == (False, False)
    of_mean = latencies_to_simulate(points(mean_ttft_ms=300.0, mean_tpot_ms=9.0), asked(50))
    assert of_mean is not None and of_mean.is_mean == (True, True)


def test_a_measured_percentile_stays_and_others_name_what_they_come_from() -> None:
    case = read_case(UNMEASURED, need_prices=False)
    of_mean = points(mean_ttft_ms=300.0, mean_tpot_ms=9.0, p95_tpot_ms=12.0)
    latencies = latencies_to_simulate(of_mean, asked(95))
    assert latencies is not None
    percentiles = UserPercentiles(case, fit_medians(case), latencies, case.gpu_profiles)
    (factor, _), *_ = percentiles.factors(of_mean)
    filled = percentiles.filled(of_mean).iloc[0]
    assert filled["p95_ttft_ms"] == pytest.approx(300.0 * factor)
    assert (filled["ttft_basis"], filled["ttft_basis_ms"]) == ("mean", 300.0)
    assert (filled["p95_tpot_ms"], filled["itl_basis"]) == (12.0, "")


def test_servers_whose_steps_nobody_knows_have_the_factors_of_others() -> None:
    sources = ("archive:inferencex", "archive:llm-pilot")
    question = replace(UNMEASURED, engine="tgis", sources=sources)
    case = read_case(question, need_prices=False)
    fitted = fit_predictor(make_predictor(question, case.gpu_profiles), case, asked(95))
    percentiles = fitted.percentiles(case, asked(95))
    assert percentiles is not None
    keys = pd.DataFrame({"gpu_profile_id": PROFILE, "users": [1, 64]})
    expected = [factor("nttft_ms", 50, 95), factor("itl_ms", 50, 95)]
    np.testing.assert_allclose(percentiles.factors(keys), [expected, expected])


def test_users_between_powers_of_two_lie_between_them() -> None:
    case = read_case(UNMEASURED, need_prices=False)
    latencies = latencies_to_simulate(case.trusted_points, CHATS)
    assert latencies is not None
    percentiles = UserPercentiles(case, fit_medians(case), latencies, case.gpu_profiles)
    keys = pd.DataFrame({"gpu_profile_id": PROFILE, "users": [16, 24, 32]})
    low, between, high = percentiles.factors(keys)[:, 0]
    assert high < between < low < 1
