"""What a budget serves: the reverse of the question for the cheapest deployment."""

import json

import pytest

import sextant
from command import sextant as command
from sextant.base.errors import InputError
from support import ROOT

LLM = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
ASKED = {
    "hf_config": LLM,
    "input_tokens": 1500,
    "output_tokens": 250,
    "ttft_ms": "p95:1000",
    "tpot_ms": "p95:20",
    "gpu_profiles": ["1xH100-80GB", "1xH200-141GB", "8xH200-141GB"],
}
USD = 10_000
pytestmark = pytest.mark.usefixtures("without_a_store")


@pytest.fixture(scope="module")
def answer():
    return sextant.recommend(**ASKED, usd_per_month=USD)


def test_the_largest_load_comes_first_with_the_replicas_that_the_budget_buys(answer) -> None:
    rows = answer.to_dict()["alternatives"]
    serving = [row for row in rows if row["status"] == "serves"]
    assert [row["request_rate_rps"] for row in serving] == sorted(
        (row["request_rate_rps"] for row in serving), reverse=True
    )
    for row in serving:
        usd = row["usd_per_hour"] / row["replicas"]
        assert row["replicas"] == int(USD / 730 / usd) and row["probability_met"] >= 0.9
    dear = {row["gpu_profile_id"]: row for row in rows if row["status"] == "too_dear"}
    assert set(dear) == {"8xH200-141GB"} and "USD a month" in dear["8xH200-141GB"]["reason"]
    facts = answer.to_dict()
    assert facts["gpu_profile_id"] == rows[0]["gpu_profile_id"]
    assert facts["usd_per_month"] == USD and facts["probability"] == pytest.approx(0.9)
    assert (
        str(answer)
        .splitlines()[0]
        .startswith("meta-llama__Llama-3.1-8B-Instruct: 10,000 USD a month (730 h) serve up to ")
    )
    assert json.loads(json.dumps(facts, allow_nan=False)) == facts
    assert answer.to_frame()["gpu_profile_id"].tolist() == [row["gpu_profile_id"] for row in rows]
    assert "10,000 USD a month" in answer.to_html()


def test_the_load_needs_just_these_replicas(answer) -> None:
    best = answer.to_dict()["alternatives"][0]
    asked = {**ASKED, "gpu_profiles": [best["gpu_profile_id"]], "risk": 0.1}
    rate = best["request_rate_rps"]
    needed = [
        sextant.recommend(**asked, request_rate=rate * factor).result.chosen.replicas
        for factor in (1.0, 1.02)
    ]
    assert needed == [best["replicas"], best["replicas"] + 1]


def test_of_given_traffic_it_is_a_factor(answer) -> None:
    base = sextant.capacity(**ASKED, request_rate=4, usd_per_month=USD).to_dict()
    best = answer.to_dict()["alternatives"][0]
    assert base["gpu_profile_id"] == best["gpu_profile_id"]
    assert base["factor"] * 4 == pytest.approx(base["request_rate_rps"])
    assert base["request_rate_rps"] == pytest.approx(best["request_rate_rps"], rel=0.01)
    assert "times the traffic" in base["text"]


def test_limits_that_nothing_meets_are_said() -> None:
    answer = sextant.recommend(**{**ASKED, "ttft_ms": "p95:1"}, usd_per_month=USD)
    assert not answer.has_solution and answer.to_dict()["gpu_profile_id"] is None
    assert "serve nothing within both limits with probability 0.9 or more" in str(answer)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"usd_per_month": 100}, r"buy no replica.*give 2\d\d\d or more"),
        ({"usd_per_month": -1}, "not a budget"),
        ({"usd_per_month": float("inf")}, "not a budget"),
        ({"request_rate": 2}, "a budget and a load are given"),
        ({"disaggregated": True}, "pools are sized at a stated rate"),
    ],
)
def test_a_wrong_budget_is_refused_with_the_fix(changes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        sextant.recommend(**{**ASKED, "usd_per_month": USD, **changes})


def test_two_pools_and_policies_have_no_budget() -> None:
    asked = {**ASKED, "request_rate": 4, "duration": "1min", "usd_per_month": USD}
    with pytest.raises(InputError, match="a budget is asked about"):
        sextant.capacity(**asked, split_tokens=1000)


def test_the_command_line_asks_the_same(answer) -> None:
    names = ("--input-tokens", 1500, "--output-tokens", 250)
    limits = ("--ttft-ms", "p95:1000", "--tpot-ms", "p95:20")
    profiles = ("--gpu-profiles", ",".join(ASKED["gpu_profiles"]))
    asked = ("--hf-config", LLM, *names, *limits, *profiles, "--usd-per-month", USD)
    assert json.loads(command("recommend", *asked, "--format", "json")) == answer.to_dict()
