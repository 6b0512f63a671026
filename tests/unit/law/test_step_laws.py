"""Step laws: the closed form of their latencies, and where they come from."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_law import DENSE, LAW, MOE, PROFILES, rows

from sextant.ask.laws import _coupled
from sextant.base.errors import InputError
from sextant.law.means import (
    BatchLimits,
    MeanLoad,
    broadcast_laws,
    closed_loop,
    open_loop,
    saturation_rps,
)
from sextant.law.posterior import columns_of, prior
from sextant.law.roofline import Roofline
from sextant.law.terms import PARAMETERS, step_law
from sextant.predict.predictor import TrainingRows
from sextant.simulate.server import NAMES, Scheduler, StepLaw
from sextant.simulate.simulation import simulate, simulate_closed, summarise
from sextant.workload.requests import RequestStream

GPU_LAW = StepLaw(2, 8, 0.05, 2e-5, 0.02, 1e-7, 3, request_ms=5)
HOST_LAW = replace(GPU_LAW, host_ms=12)  # more than a step of a few requests takes
MOE_LAW = StepLaw(2, 2, 0.05, 2e-5, 0.02, 1e-7, 1, 12, 0.03, request_ms=5)
LIMITS = BatchLimits(256, 2048, 1e6)
LOAD = MeanLoad(500, 200)


def simulated(law: StepLaw, rate_rps: float, n: int = 4000) -> dict:
    """Return what the simulator says of requests of `LOAD` that come at random."""
    gaps_s = np.random.default_rng(1).exponential(1 / rate_rps, n)
    requests = RequestStream.of(np.cumsum(gaps_s), np.full(n, 500), np.full(n, 200))
    scheduler = Scheduler(1_000_000, 256, 2048, has_prefix_caching=False)
    return summarise(simulate(requests, scheduler, law, warmup_s=0.2 * n / rate_rps))


@pytest.mark.parametrize("law", [GPU_LAW, MOE_LAW, HOST_LAW])
def test_closed_form_gives_the_simulators_means_below_saturation(law: StepLaw) -> None:
    for share in (0.1, 0.5, 0.8):
        rate = share * float(saturation_rps(law, LIMITS, LOAD))
        means, found = open_loop(law, LIMITS, LOAD, rate), simulated(law, rate)
        for name, tolerance in (("ttft_ms", 0.08), ("itl_ms", 0.05), ("e2e_ms", 0.05)):
            assert getattr(means, name) == pytest.approx(found[name]["mean"], rel=tolerance), name


def test_latencies_rise_with_the_rate_up_to_saturation_and_are_unknown_beyond() -> None:
    most = float(saturation_rps(GPU_LAW, LIMITS, LOAD))
    # Beyond it the queue grows: what is answered is what the server can.
    served = simulated(GPU_LAW, 2 * most)["request_rate_rps"]
    assert 0.9 * most < served < 1.01 * most
    means = open_loop(GPU_LAW, LIMITS, LOAD, most * np.array([0.01, 0.2, 0.5, 0.9, 0.99, 1.01]))
    for name in ("ttft_ms", "itl_ms", "e2e_ms"):
        values = getattr(means, name)
        assert (np.diff(values[:5]) > 0).all(), name
        assert np.isnan(values[5]), name


def test_users_keep_littles_law() -> None:
    users = np.array([1.0, 4, 16, 64, 200])
    means = closed_loop(GPU_LAW, LIMITS, LOAD, users)
    assert means.request_rate_rps * means.e2e_ms / 1e3 == pytest.approx(users, rel=1e-6)
    assert (np.diff(means.itl_ms) > 0).all()


@pytest.mark.parametrize(
    ("limits", "load"),
    [
        (BatchLimits(8, 2048, 1e6), LOAD),
        (BatchLimits(256, 2048, 5000), LOAD),
        (BatchLimits(256, 256, 1e6), LOAD),
    ],
)
def test_less_of_what_a_server_has_saturates_it_earlier(
    limits: BatchLimits, load: MeanLoad
) -> None:
    assert saturation_rps(GPU_LAW, limits, load) < 0.9 * saturation_rps(GPU_LAW, LIMITS, load)


def fitted() -> tuple[Roofline, pd.DataFrame]:
    """Return a predictor fitted to what the law's own priors say of two LLMs."""
    X = rows([DENSE, MOE], ["2xH100-80GB", "8xH100-80GB"])
    phi = LAW.design(X)
    phi = phi.parameters(phi.mean)
    latencies = np.exp(LAW.predict_log(phi, columns_of(X)))
    y = pd.DataFrame(latencies, X.index, ["nttft_ms", "itl_ms"])
    return Roofline(None, PROFILES, 1).fit(TrainingRows(X, y)), X


def test_fitted_laws_give_the_predictors_latencies() -> None:
    model, X = fitted()
    asked = X[(X["llm_id"] == DENSE) & (X["gpu_profile_id"] == "8xH100-80GB")]
    (laws,) = model.step_laws(asked.iloc[:1], 50, 1)
    told = model.explain(asked)
    load = MeanLoad(*asked.iloc[0][["input_tokens", "output_tokens"]])
    limits = BatchLimits(1e4, 8192, 1e9)
    users = asked["users"].to_numpy()
    means = closed_loop(StepLaw.of(laws[0]), limits, load, users)
    few = users <= 64
    assert means.itl_ms[few] == pytest.approx(told["itl_ms"].to_numpy()[few], rel=0.05)
    ttft_ms = told["nttft_ms"].to_numpy() * asked["input_tokens"].to_numpy()
    assert means.ttft_ms[few] == pytest.approx(ttft_ms[few], rel=0.1)
    drawn = closed_loop(broadcast_laws(laws[1:]), limits, load, np.array([8.0]))
    spread = np.log(drawn.itl_ms).std()
    assert 0.005 < spread < 0.5
    assert np.log(np.median(drawn.itl_ms) / means.itl_ms[1]) == pytest.approx(0, abs=0.1)


def test_a_simulated_load_test_waits_as_the_predictor_says() -> None:
    model, X = fitted()
    asked = X[(X["llm_id"] == MOE) & (X["gpu_profile_id"] == "8xH100-80GB") & (X["users"] == 64)]
    (laws,), told = model.step_laws(asked, 2, 1), model.explain(asked).iloc[0]
    inputs, outputs = asked.iloc[0][["input_tokens", "output_tokens"]]
    ttft_ms = told["nttft_ms"] * inputs
    # All users start at once and send ten requests.
    spread = np.random.default_rng(0).uniform(0.8, 1.2, (2, 4000))
    requests = RequestStream.of(np.zeros(4000), inputs * spread[0], outputs * spread[1])
    scheduler = Scheduler(10**9, 512, 8192, has_prefix_caching=False)
    duration_s = 9.5 * (ttft_ms + outputs * told["itl_ms"]) / 1e3
    found = simulate_closed(64, requests, scheduler, StepLaw.of(laws[0]), duration_s=duration_s)
    assert 1e3 * found.ttft_s.mean() == pytest.approx(ttft_ms, rel=0.15)
    assert 1e3 * found.gaps.mean_s == pytest.approx(told["itl_ms"], rel=0.05)


def test_servers_without_cuda_graphs_have_no_step_law() -> None:
    model, X = Roofline(None, PROFILES, 1), rows([DENSE, MOE], ["8xH100-80GB"], engine="tgis")
    y = X[["users"]].assign(nttft_ms=0.1 + X["users"] / 100, itl_ms=10.0 + X["users"])
    model.fit(TrainingRows(X, y[["nttft_ms", "itl_ms"]]))
    for known in (model, fitted()[0]):  # also beside others
        with pytest.raises(InputError, match="without CUDA graphs"):
            known.step_laws(X.iloc[:1], 2, 1)


def test_without_graphs_the_device_is_as_fast_and_the_host_has_a_time_of_its_own() -> None:
    model, X = fitted()
    captured = X.iloc[:1]
    (told,) = model.step_laws(captured.assign(is_uncaptured=1.0), 20, 1)
    (with_graphs,) = model.step_laws(captured, 20, 1)
    host = NAMES.index("host_ms")
    assert np.delete(told, host, 1) == pytest.approx(np.delete(with_graphs, host, 1))
    assert (with_graphs[:, host] == 0).all()
    likely_ms = captured["n_layers"].iloc[0] * PARAMETERS["host"].prior
    assert told[0, host] == pytest.approx(likely_ms)
    assert np.log(told[1:, host]).std() == pytest.approx(PARAMETERS["host"].sd, rel=0.4)


def test_draws_are_coupled_so_that_a_better_device_is_no_worse_against_its_likeliest_law():
    names, rng = ("1xH100-80GB", "1xH200-141GB", "8xH200-141GB"), np.random.default_rng(3)
    drawn = {name: GPU_LAW.array() * np.exp(0.3 * rng.standard_normal((9, 1))) for name in names}
    found = _coupled(drawn, PROFILES, np.array([1000.0, 200.0]))
    ratios = {name: found[name][:, 0] / found[name][0, 0] for name in names}
    own = {name: drawn[name][:, 0] / drawn[name][0, 0] for name in names}
    assert found["1xH100-80GB"] == pytest.approx(drawn["1xH100-80GB"])
    better = np.minimum(own["1xH100-80GB"], own["1xH200-141GB"])
    assert ratios["1xH200-141GB"] == pytest.approx(better)
    assert ratios["8xH200-141GB"] == pytest.approx(np.minimum(better, own["8xH200-141GB"]))
    assert np.ptp(found["8xH200-141GB"][:, 4] / found["8xH200-141GB"][:, 0]) < 1e-12


def test_tiny_weights_without_cuda_graphs_take_no_time_below_0() -> None:
    X = rows([DENSE], ["2xH100-80GB"]).assign(is_eager=1.0)
    facts = columns_of(pd.concat([X] * 40, ignore_index=True))
    facts["dense_bytes"] = np.geomspace(1e-3, 1e6, len(facts["dense_bytes"]))
    facts["attention_bytes"] = np.zeros_like(facts["dense_bytes"])
    phi = np.tile(prior(LAW).most_likely(X)[:1], (len(facts["dense_bytes"]), 1))
    assert (step_law(phi, facts).dense_ms >= 0).all()
