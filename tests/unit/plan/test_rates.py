"""Request rates in a measurement plan: sized as the answers size them."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from command import sextant
from sextant.decide.replica_sizing import enough_replicas
from sextant.facts.gpu import profile_of_id
from sextant.facts.slo import SLO
from sextant.plan.cell_order import Budget, Candidate, order_cells
from sextant.plan.rates import size_rates, steady_notes
from sextant.plan.value import weigh_decisions
from sextant.points.folder import SHIPPED, load_folder
from sextant.predict.predictor import Draws

LLM = "Qwen__Qwen3-32B"
RATE = SLO("rate", ttft_ms=1000, itl_ms=40, percentile=50, request_rate_rps=6)
USERS = SLO("users", itl_ms=40, percentile=50, users=6)
LENGTHS = (1000.0, 250.0)


def test_a_rate_in_a_plan_needs_the_replicas_that_recommend_says() -> None:
    ships = load_folder(SHIPPED / "inferencex")
    needs = size_rates(ships, [USERS, RATE], [LLM], LENGTHS, 42)
    assert [*needs] == [("rate", LLM)]
    assert steady_notes([USERS, RATE], [LLM], needs) == []
    words = ["--llm", LLM, "--source", "archive:inferencex", "--gpu-profiles", "2xH100-80GB"]
    words += ["--ttft-ms", 1000, "--itl-ms", 40, "--percentile", 50, "--request-rate", 6]
    words += ["--input-tokens", 1000, "--output-tokens", 250, "--risk", 0.1, "--format", "json"]
    recommended = json.loads(sextant("recommend", *words))
    of_profile = needs["rate", LLM]["2xH100-80GB"].to_numpy()
    assert enough_replicas(of_profile, 0.9) == recommended["replicas"]
    chance = (of_profile <= recommended["replicas"]).mean()
    assert chance == pytest.approx(recommended["probability_met"])


def test_without_a_law_of_a_step_a_rate_is_a_steady_load_and_that_is_said_once() -> None:
    ships = load_folder(SHIPPED / "llm-pilot")
    more = replace(RATE, slo_id="more", request_rate_rps=9)
    llm_ids = ["llama-7b", "llama-13b"]
    needs = size_rates(ships, [RATE, more], llm_ids, LENGTHS, 42)
    (note,) = steady_notes([USERS, RATE, more], llm_ids, needs)
    assert needs == {} and "by Little's law at median latencies" in note
    assert steady_notes([USERS], llm_ids, needs) == []


def test_a_measurement_gains_by_what_the_law_of_a_step_says_of_a_rate() -> None:
    """By latencies alone both serve; by the law one of two needs no number of replicas in half of
    the draws, those in which its latency is high: knowing that is worth a quarter."""
    is_slow = np.random.default_rng(0).permutation(1000) % 2 == 0
    cells = [("a", "1xT4-16GB"), ("a", "1xA10-24GB")]
    rows = [(*cell, 8, 100.0, 20.0) for cell in cells]
    keys = ["llm_id", "gpu_profile_id", "users", "input_tokens", "output_tokens"]
    itl_ms = np.stack([np.where(is_slow, 12.0, 8.0), np.full(1000, 10.0)], axis=1)
    draws = Draws(pd.DataFrame(rows, columns=keys), np.stack([np.ones_like(itl_ms), itl_ms], -1))
    prices = {"1xT4-16GB": 1.0, "1xA10-24GB": 1.5}
    profiles = {
        name: replace(profile_of_id(name), usd_per_hour=price) for name, price in prices.items()
    }
    slo = SLO("rate", itl_ms=40, percentile=50, request_rate_rps=1)
    needs = pd.DataFrame({"1xT4-16GB": np.where(is_slow, np.inf, 1.0), "1xA10-24GB": 1.0})
    candidates = [Candidate(*cell, (8,), 0.5, 0.1, 1, 1.0) for cell in cells]

    by_latencies = weigh_decisions(draws, profiles, [slo], 1)
    assert order_cells([by_latencies], candidates, Budget()).rounds == ()
    by_law = weigh_decisions(draws, profiles, [slo], 1, {("rate", "a"): needs})
    (only,) = order_cells([by_law], candidates, Budget()).rounds
    assert only.cells[0].pair == cells[0]
    assert only.cells[0].gain == pytest.approx(0.25, abs=0.01)
