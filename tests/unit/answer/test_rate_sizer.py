"""A request rate has one number of replicas, whichever command is asked."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from command import sextant
from made_up_laws import made_up_laws, made_up_server, made_up_traffic, surface_of
from sextant.answer.rate_sizer import RateSizer
from sextant.facts.slo import SLO
from support import ROOT

LLAMA_8B = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
LLAMA_70B = ROOT / "resources" / "llms" / "meta-llama__Llama-3.3-70B-Instruct.json"
QWEN_14B = ROOT / "resources" / "llms" / "Qwen__Qwen3-14B.json"


def asked(config, gpu_id, n_gpus, rate_rps, lengths, **limits):
    """A question, as the columns of a sheet of demands, and the GPUs of a replica."""
    inputs, outputs = lengths
    demand = {"demand_id": "chat", "team": "web", "hf_config": config, **limits}
    demand |= {"request_rate_rps": rate_rps, "input_tokens": inputs, "output_tokens": outputs}
    return demand, gpu_id, n_gpus


QUESTIONS = {
    "70b": asked(
        LLAMA_70B, "H100-80GB", 4, 12, (3000, 400), ttft_ms=2000, tpot_ms=50, percentile=95
    ),
    "8b": asked(LLAMA_8B, "H100-80GB", 1, 40, (1000, 250), ttft_ms=500, itl_ms=30, percentile=50),
    "e2e": asked(QWEN_14B, "H200-141GB", 1, 25, (500, 300), e2e_ms=8000, percentile=90),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_recommend_capacity_and_fleet_give_one_number_of_replicas(name, tmp_path):
    demand, gpu_id, n_gpus = QUESTIONS[name]
    limits = [name for name in demand if name.endswith("_ms")]
    # Draws of one GPU profile are coupled with those of lesser ones, and nodes can be divided.
    candidates = [f"{n}x{gpu_id}" for n in (n_gpus, n_gpus // 2) if n]
    words = [
        *("--hf-config", demand["hf_config"], "--request-rate", demand["request_rate_rps"]),
        *("--input-tokens", demand["input_tokens"], "--output-tokens", demand["output_tokens"]),
        *(word for limit in limits for word in (f"--{limit.replace('_', '-')}", demand[limit])),
        *("--percentile", demand["percentile"], "--gpu-profiles", ",".join(candidates)),
        *("--risk", 0.1, "--format", "json"),
    ]
    recommended = json.loads(sextant("recommend", *words))
    sized = json.loads(sextant("capacity", *words))

    # Nodes of one replica each, just enough of them: larger ones would have more GPU profiles.
    n_nodes = sized["replicas"]
    pool = {"pool_id": "a", "gpu_id": gpu_id, "nodes": n_nodes, "devices_per_node": n_gpus}
    pool |= {"kind": "owned", "usd_per_hour": 2}
    for sheet, row in (("demands", demand), ("supply", pool)):
        pd.DataFrame([row], dtype=object).to_csv(tmp_path / f"{sheet}.tsv", sep="\t", index=False)
    sheets = ("--demands", tmp_path / "demands.tsv", "--supply", tmp_path / "supply.tsv")
    planned = json.loads(sextant("fleet", *sheets, "--risk", 0.1, "--format", "json"))
    (served,) = planned["plan"]["served"]

    answers = [recommended, sized, served]
    assert [answer["gpu_profile_id"] for answer in answers] == [f"{n_gpus}x{gpu_id}"] * 3
    assert len({answer["replicas"] for answer in answers}) == 1
    assert len({answer["probability_met"] for answer in answers}) == 1


def test_the_most_that_a_replica_bears_is_what_half_of_the_draws_bear():
    draws = made_up_laws(3, 50, 0.3)
    # The likeliest law misses the limit at any rate, most draws do not.
    terms = np.vstack([100 * draws.terms[:1], draws.terms[1:]])
    servers = {"a": made_up_server("a", 1.0, replace(draws, terms=terms))}
    surface = surface_of({"a": made_up_server("a", 1.0, draws)})
    sizer = RateSizer(servers, {}, None, made_up_traffic(1.0), surface, 0.1)
    slo = SLO("asked", ttft_ms=900.0, tpot_ms=35.0, percentile=95, request_rate_rps=1.0)
    borne_rps = sizer.borne_by(slo, "a").at(1.0)
    assert borne_rps[0] == 0 < sizer.most_rps(slo, "a") == np.median(borne_rps[1:])
