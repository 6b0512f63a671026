"""Joules of an output token: the law, its fit, and what an answer says of it."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from test_law import DENSE, LLMS, MOE, PROFILES

from answers import explained, recommended
from sextant.ask.question import Question
from sextant.facts.gpu import GPUS, load_gpu
from sextant.facts.kernels import reached
from sextant.facts.slo import SLO
from sextant.law.energy import Energy, energy_rows, log_energy
from sextant.law.posterior import columns_of
from sextant.points.frame import FactTables
from sextant.predict.predictor import JOULES
from sextant.workload.lengths import Length, RequestLengths

FACTS = FactTables(LLMS, PROFILES)
TRUE = np.log([0.6, 0.3, 1.5])
"""Idle, memory and compute shares of TDP in these tests."""
NOT_MEASURED = "Qwen__Qwen3-32B"
SOURCES = ("archive:inferencex", "archive:mlenergy")


def points(llm_ids=tuple(LLMS), profile_ids=("1xH100-80GB", "8xH100-80GB", "8xB200-180GB")):
    """Return points of many users that follow the law exactly."""
    keys = [(llm, name, n) for llm in llm_ids for name in profile_ids for n in (1, 8, 64, 256)]
    frame = pd.DataFrame(keys, columns=["llm_id", "gpu_profile_id", "users"])
    frame = frame.assign(input_tokens=1024.0, output_tokens=512.0, engine="vllm")
    X = energy_rows(frame, FACTS)
    # Steps take three times what the reading takes, and as long again as the products.
    itl_ms = (3 * X["read_ms"] + 2 * X["product_ms"]).to_numpy()
    joules = np.exp(log_energy(np.tile(TRUE, (len(X), 1)), columns_of(X), itl_ms))
    return frame.assign(itl_ms=itl_ms, energy_j_per_token=joules)


H100 = load_gpu(GPUS, "H100-80GB")


def test_a_step_reads_and_multiplies_what_the_facts_say():
    llm = LLMS["Qwen__Qwen3-32B"]
    X = energy_rows(points(["Qwen__Qwen3-32B"], ["1xH100-80GB"]), FACTS)
    context_bytes = llm.kv_bytes_per_token * (1024 + 512 / 2)
    for row in X.itertuples():
        shares = {
            kind: reached(H100, "vllm", kind, "bf16") for kind in ("dense", "decode_attention")
        }
        read_ms = llm.step_weight_bytes / 3350e6 / shares["dense"].bandwidth_share
        context_ms = row.users * context_bytes / 3350e6
        read_ms += context_ms / shares["decode_attention"].bandwidth_share
        assert row.read_ms == pytest.approx(read_ms)
        # A token of each user, and what the others' prompts take while one is decoded.
        tokens = row.users + (row.users - 1) * 1024 / 512
        flops = tokens * 2 * llm.n_flop_parameters
        product_ms = flops / 989.4e9 / shares["dense"].flops_share
        assert row.product_ms == pytest.approx(product_ms, rel=0.03)


def test_a_device_draws_no_more_than_its_tdp_and_a_longer_step_takes_no_less():
    frame = points()
    X = columns_of(energy_rows(frame, FACTS))
    phi, itl_ms = np.tile(np.log([0.9, 0.9, 0.9]), (len(frame), 1)), frame["itl_ms"].to_numpy()
    energies = [np.exp(log_energy(phi, X, factor * itl_ms)) for factor in (0.3, 1.0, 3.0)]
    assert (np.diff(energies, axis=0) > 0).all()
    for factor, joules in zip((0.3, 1.0, 3.0), energies, strict=True):
        watts = joules * X["users"] / (factor * itl_ms / 1000) / X["n_gpus"]
        assert (watts < X["tdp_w"]).all()


def test_the_fit_finds_what_devices_draw_whatever_a_few_points_say():
    frame = points()
    frame.loc[frame.index[::17], "energy_j_per_token"] *= 10
    found = Energy.fitted(frame[frame["llm_id"] != NOT_MEASURED], FACTS)
    own = frame[frame["llm_id"] == NOT_MEASURED].reset_index(drop=True)
    truth = points([NOT_MEASURED])["energy_j_per_token"].to_numpy()
    itl_ms = np.tile(own["itl_ms"].to_numpy(), (200, 1))
    predicted = found.predict(own, FACTS, itl_ms, seed=1)
    assert predicted["energy_j_per_token"].to_numpy() == pytest.approx(truth, rel=0.1)
    assert found.n_llms == len(LLMS) - 1


def test_llms_that_differ_and_architectures_that_are_new_widen_the_interval():
    frame = points()
    shifts = dict(zip(LLMS, (-0.4, -0.2, 0.0, 0.2, 0.4), strict=True))
    joules = frame["energy_j_per_token"] * np.exp(frame["llm_id"].map(shifts))
    differing = frame.assign(energy_j_per_token=joules)
    asked = points([DENSE], ["1xH100-80GB", "8xL40S-48GB"])
    itl_ms = np.tile(asked["itl_ms"].to_numpy(), (400, 1))

    def width(measured: pd.DataFrame) -> np.ndarray:
        made = Energy.fitted(measured, FACTS).predict(asked, FACTS, itl_ms, seed=1)
        return np.log(made[JOULES[2]] / made[JOULES[1]]).to_numpy()

    assert (width(differing) > 2 * width(frame)).all()
    assert width(frame)[4:].min() > width(frame)[:4].max()


def test_a_device_without_tdp_is_neither_learned_from_nor_predicted():
    device = replace(PROFILES["1xH100-80GB"].gpu, tdp_w=None)
    facts = FactTables(
        LLMS, PROFILES | {"1xH100-80GB": replace(PROFILES["1xH100-80GB"], gpu=device)}
    )
    frame = points([DENSE, MOE])
    found = Energy.fitted(frame, facts)
    predicted = found.predict(frame, facts, frame[["itl_ms"]].to_numpy().T, seed=1)
    unknown = (frame["gpu_profile_id"] == "1xH100-80GB").to_numpy()
    assert predicted[unknown].isna().all(axis=None)
    assert predicted[~unknown].notna().all(axis=None)
    assert Energy.fitted(frame[unknown], facts) is None


def test_an_explanation_says_what_a_token_takes_and_who_measured_it():
    limits = SLO("asked", nttft_ms=1.0, itl_ms=1.0, percentile=50, users=16)
    requests = RequestLengths(Length(500, 500), Length(500, 500))
    asked = Question(limits, llm_id="Qwen__Qwen3-8B", sources=SOURCES, requests=requests)
    found = explained(asked, "1xH100-80GB", 16)
    energy = found["energy"]
    # ML.ENERGY measured 0.25 J with 16 users and 640 output tokens.
    assert energy["energy_lo_j_per_token"] < 0.25 < energy["energy_hi_j_per_token"]
    assert energy["sources"] == ["archive:mlenergy"]
    assert "J per output token" in found["text"]
    assert "from 21 LLMs of archive:mlenergy" in found["text"]
    without = replace(asked, sources=("archive:inferencex",), llm_id="Qwen__Qwen3-32B")
    told = explained(without, "1xH100-80GB", 16)
    assert told["energy"] is None
    assert "J per output token" not in told["text"]


def test_an_answer_has_the_energy_of_each_option():
    limits = SLO("asked", ttft_ms=1000.0, tpot_ms=40.0, percentile=95, users=64)
    requests = RequestLengths(Length(1000, 1000), Length(300, 300))
    asked = Question(limits, llm_id="Qwen__Qwen3-32B", sources=SOURCES, requests=requests)
    found = recommended(replace(asked, gpu_profile_ids=("2xH100-80GB", "4xH100-80GB")))
    for row in found["alternatives"]:
        assert row["energy_lo_j_per_token"] < row["energy_j_per_token"]
    chosen = {row["gpu_profile_id"]: row for row in found["alternatives"]}[found["gpu_profile_id"]]
    if chosen["users_per_replica"] == found["users_per_replica"]:
        asked_j = found["energy"]["energy_j_per_token"]
        assert asked_j == pytest.approx(chosen["energy_j_per_token"], rel=1e-9)
    wh = found["energy"]["wh_per_million_output_tokens"]
    assert wh == pytest.approx(found["energy"]["energy_j_per_token"] * 277.8, rel=1e-3)
    assert "Wh per million" in found["text"]
