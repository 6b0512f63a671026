"""`--vary` answers what the same question with these values answers."""

from typing import Any

import pytest

import sextant
from sextant.base.errors import InputError

ASKED: dict[str, Any] = {
    "hf_config": "resources/llms/meta-llama__Llama-3.1-8B-Instruct.json",
    "gpu_profiles": ["1xH100-80GB", "1xH200-141GB", "2xH100-80GB"],
    "request_rate": 8,
    "input_tokens": 1500,
    "output_tokens": 250,
    "ttft_ms": "p95:1000",
    "tpot_ms": 40,
}
OPTION = ("gpu_profile_id", "replicas", "usd_per_hour", "probability_met")


def option_of(facts: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(facts[name] for name in OPTION)


@pytest.mark.parametrize("ask", [sextant.recommend, sextant.capacity])
def test_each_row_is_the_answer_to_its_question(ask) -> None:
    answer = ask(**ASKED, vary=["traffic=1,3", "ttft-ms=300,1000"]).to_dict()
    rows = {tuple(row["values"].values()): row for row in answer["variations"]}
    assert len(rows) == 4
    assert option_of(rows[1, 1000]) == option_of(answer)
    assert rows[1, 1000]["change"] == "none"

    asked = {**ASKED, "request_rate": 24, "ttft_ms": "p95:300"}
    assert option_of(rows[3, 300]) == option_of(ask(**asked).to_dict())
    assert rows[3, 300]["change"] in ("replicas", "gpu_profile")
    assert "Varied:" in answer["text"] and "change the answer" in answer["text"]


def test_prices_and_lengths_are_varied_too() -> None:
    answer = sextant.recommend(**ASKED, vary=["price:H200=0.5,1", "input-tokens=1500,6000"])
    rows = {tuple(row["values"].values()): row for row in answer.to_dict()["variations"]}
    assert rows[0.5, 1500]["gpu_profile_id"] == "1xH200-141GB"
    assert rows[0.5, 1500]["usd_per_hour"] < rows[1, 1500]["usd_per_hour"]
    longer = sextant.recommend(**{**ASKED, "input_tokens": 6000}).to_dict()
    assert option_of(rows[1, 6000]) == option_of(longer)


def test_measured_answers_are_varied_by_load_and_limits() -> None:
    asked = {"llm": "google__flan-ul2", "source": "archive:llm-pilot", "nttft_ms": 100}
    answer = sextant.recommend(**asked, itl_ms=50, users=50, vary=["traffic=1,4"]).to_dict()
    assert answer["basis"] == "measured"
    same, more = answer["variations"]
    assert option_of(same) == option_of(answer)
    assert option_of(more) == option_of(sextant.recommend(**asked, itl_ms=50, users=200).to_dict())


def test_lengths_of_a_trace_and_budgets_are_not_varied() -> None:
    with pytest.raises(InputError, match="the lengths are those of the traffic"):
        sextant.capacity(**ASKED, draws=0, vary=["input-tokens=100"])
    budget = {name: value for name, value in ASKED.items() if name != "request_rate"}
    with pytest.raises(InputError, match="a budget is asked about"):
        sextant.recommend(**budget, usd_per_month=10000, vary=["traffic=2"])
