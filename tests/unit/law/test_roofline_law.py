"""The law of `roofline` of servers without CUDA graphs (TGIS): what it must say."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from served_world import LLMS, PROFILES, USERS, decoder, facts
from sextant.law.fact_rows import fact_rows
from sextant.law.posterior import columns_of, prior
from sextant.law.terms import LAW, NAMES, PARAMETERS, terms
from sextant.points.frame import LENGTHS, FactTables, Features, execution_classes

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
    assert parts["queueing_ms"] == pytest.approx(0, abs=1e-9)
    assert (parts["batching_ms"], parts["itl_batch"]) == (0, 1)


def test_without_cuda_graphs_launches_and_memory_traffic_hide_each_other() -> None:
    X = facts(users=(1,))
    parts, columns = told(X, bandwidth=1.0), columns_of(X)
    step = parts["launch_ms"] + parts["weights_ms"]
    read = (columns["attention_bytes"] + columns["dense_bytes"]) / columns["n_gpus"]
    read /= columns["dense_bytes_per_ms"]
    launches = columns["launch_ms"]
    assert ((np.maximum(read, launches) <= step) & (step < read + launches)).all()
    graphed = told(X.assign(is_eager=0.0), bandwidth=1.0)
    assert (graphed["launch_ms"] + graphed["weights_ms"] >= read + launches).all()


@pytest.mark.parametrize("seed", range(20))
def test_latencies_never_fall_with_more_users(seed) -> None:
    X = facts({"seven": LLMS["seven"], "grouped": LLMS["grouped"]})
    phi = prior(LAW).draw_parameters(X, 20, seed)[seed]
    logs = LAW.predict_log(phi, columns_of(X)).reshape(-1, len(USERS), 2)
    assert np.isfinite(logs).all()
    assert (np.diff(logs, axis=1) > -1e-9).all()


def test_prompts_are_gathered_the_longer_the_more_others_there_are() -> None:
    X = facts({"x": LLMS["seven"]}, {"1xlarge": PROFILES["1xlarge"]}, (1, 2, 8, 64))
    waits = told(X, median=1e-9)
    steps = waits["batching_ms"] / sum(waits[name] for name in LAW.itl_terms)
    assert (np.diff(steps) > 0).all() and 0.9 * 12 < steps[-1] < 13, (
        "half of 24 steps, and the step under way"
    )


def test_a_median_gap_sees_prompts_once_a_step_computes_several() -> None:
    X = facts({"x": LLMS["seven"]}, {"2xlarge": PROFILES["2xlarge"]}, (4, 128))
    of_median, of_mean = (told(X, median=half)["other_prompts_ms"] for half in (2.0, 1e-9))
    share = of_median / of_mean
    assert share[0] < 0.1 < 0.5 < share[1]


def test_a_padded_batch_holds_its_activations_on_each_device() -> None:
    llm = replace(LLMS["seven"], llm_type="mpt")
    keys = facts({"x": llm}, {"2xlarge": PROFILES["2xlarge"]}, (1,))
    published = Features(pd.DataFrame({"is_flash_attention": {"x": 0}}), pd.DataFrame())
    keyed = keys[["llm_id", "gpu_profile_id", "users", *LENGTHS, "engine"]]
    padded = fact_rows(keyed, FactTables({"x": llm}, PROFILES, published))
    assert (padded["kv_tokens"] < 0.95 * keys["kv_tokens"]).all()


def test_an_encoder_computes_the_prompt_and_its_layers_are_launched_once() -> None:
    alone = LLMS["seven"]
    both = replace(
        alone,
        is_encoder_decoder=True,
        n_encoder_layers=32,
        n_encoder_flop_parameters=alone.n_flop_parameters // 2,
    )
    for tokens, sign in ((2000.0, -1), (2.0, 1)):  # half of the products, twice the layers
        ms = [told(one(llm, input_tokens=tokens))["prefill_ms"][0] for llm in (both, alone)]
        assert np.sign(ms[0] - ms[1]) == sign


def test_published_features_tell_which_decoders_ran_padded() -> None:
    llms = {"flash": decoder(16, 2048), "padded": replace(decoder(16, 2048), llm_type="mpt")}
    llms |= {"sibling": replace(decoder(24, 4096), llm_type="mpt"), "unknown": decoder(24, 4096)}
    table = pd.DataFrame({"is_flash_attention": {"flash": 1, "padded": 0}})
    found = execution_classes(llms, Features(table, pd.DataFrame()))
    assert found == {"flash": "paged", "padded": "padded", "sibling": "padded", "unknown": "paged"}
    encoder = {"t5": replace(decoder(16, 2048), is_encoder_decoder=True, n_encoder_layers=16)}
    assert execution_classes(encoder, None) == {"t5": "encoder-decoder"}


def test_points_without_lengths_are_of_their_sources_workload() -> None:
    keys = pd.DataFrame({"llm_id": "seven", "gpu_profile_id": "1xlarge", "users": [1, 2, 4]})
    keys = keys.assign(source=["a", "a", "b"], input_tokens=[80.0, None, None], output_tokens=9.0)
    rows = fact_rows(keys, FactTables(LLMS, PROFILES))
    assert rows["input_tokens"].tolist() == [80, 80, 500]
