"""The law of `roofline`: what it must say whatever its parameters are."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from served_world import GPUS, LLMS, PROFILES, USERS, decoder, facts
from sextant.points.frame import Features, execution_classes
from sextant.predict.roofline.batching import BATCHING, NAMES, PARAMETERS, terms
from sextant.predict.roofline.posterior import columns_of

PRIOR = np.array([each.mean for each in PARAMETERS.values()])


def told(X, **changed):
    """Return the terms of the law at its prior, but for these parameters' values."""
    phi = np.tile(PRIOR, (len(X), 1))
    for name, value in changed.items():
        phi[:, NAMES.index(name)] = np.log(value)
    return terms(phi, columns_of(X))


def one(llm, profile="1xmiddle", users=(1,), **lengths):
    return facts({"x": llm}, {profile: PROFILES[profile]}, users, **lengths)


def test_a_user_alone_neither_waits_nor_queues() -> None:
    parts = told(one(LLMS["seven"]))
    assert parts["queueing_ms"] == 0
    assert parts["batching_ms"] < 1e-3
    assert parts["itl_batch"] == pytest.approx(1, abs=0.01)


def test_a_step_is_never_faster_than_its_memory_traffic_or_its_launches() -> None:
    X = facts(users=(1,))
    parts, columns = told(X, bandwidth=1.0), columns_of(X)
    step = parts["launch_ms"] + parts["weights_ms"]
    read = columns["dense_bytes"] / (columns["n_gpus"] * columns["bytes_per_ms"])
    assert (step >= read).all()
    assert (step >= columns["n_blocks"] * PARAMETERS["launch"].prior).all()


@pytest.mark.parametrize("seed", range(20))
def test_latencies_never_fall_with_more_users(seed) -> None:
    X = facts({"seven": LLMS["seven"], "grouped": LLMS["grouped"]})
    sd = np.array([parameter.sd for parameter in PARAMETERS.values()])
    phi = np.tile(PRIOR + np.random.default_rng(seed).normal(0, sd), (len(X), 1))
    logs = BATCHING.predict_log(phi, columns_of(X)).reshape(-1, len(USERS), 2)
    assert np.isfinite(logs).all()
    assert (np.diff(logs, axis=1) > -1e-9).all()


def test_a_batch_touches_more_experts_than_a_token() -> None:
    dense = LLMS["seven"]
    experts = 8 * 16 * dense.n_parameters // 24
    mixture = replace(
        dense,
        n_experts=8,
        n_experts_per_token=2,
        n_expert_parameters=experts,
        n_parameters=dense.n_parameters // 3 + experts,
        n_flop_parameters=dense.n_parameters // 3 + experts // 4,
    )
    alone, busy = (told(one(mixture, "2xlarge", (n,)), launch=1e-6) for n in (1, 128))
    columns = columns_of(one(mixture, "2xlarge"))
    least = columns["dense_bytes"] + columns["expert_bytes"] / 4
    speed = 2 * GPUS["large"].memory_bandwidth_gb_s * 1e6 * PARAMETERS["bandwidth"].prior
    assert alone["weights_ms"] == pytest.approx(least / speed, rel=0.02)
    assert busy["weights_ms"] > 2 * alone["weights_ms"]


def test_slow_links_make_devices_wait_for_each_other() -> None:
    slow = replace(GPUS["middle"], interconnect_gb_s=3.0)
    profile = PROFILES["2xmiddle"]
    quick = facts({"x": LLMS["seven"]}, {"2xmiddle": profile}, (32,))
    lame = facts({"x": LLMS["seven"]}, {"2xmiddle": replace(profile, gpu=slow)}, (32,))
    for name in ("sequences_ms", "prefill_ms"):
        assert told(lame)[name] > told(quick)[name]
    alone = replace(PROFILES["1xmiddle"], gpu=slow)
    same = told(facts({"x": LLMS["seven"]}, {"1xmiddle": alone}, (32,)))
    assert same["sequences_ms"] == told(one(LLMS["seven"], users=(32,)))["sequences_ms"]


def test_published_features_tell_which_decoders_ran_padded() -> None:
    llms = {"flash": decoder(16, 2048), "padded": replace(decoder(16, 2048), llm_type="mpt")}
    llms |= {"sibling": replace(decoder(24, 4096), llm_type="mpt"), "unknown": decoder(24, 4096)}
    table = pd.DataFrame({"is_flash_attention": {"flash": 1, "padded": 0}})
    found = execution_classes(llms, Features(table, pd.DataFrame()))
    assert found == {"flash": "paged", "padded": "padded", "sibling": "padded", "unknown": "paged"}
    encoder = {"t5": replace(decoder(16, 2048), is_encoder_decoder=True, n_encoder_layers=16)}
    assert execution_classes(encoder, None) == {"t5": "encoder-decoder"}
