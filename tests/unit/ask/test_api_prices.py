"""Own GPUs or an API: what both cost, where they break even, and which prices count."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_capacity import trace_file

from command import sextant
from html_page import Page
from sextant.ask.api_prices import (
    API_PRICES,
    MEAN_NOTE,
    Billed,
    OwnDeployment,
    compare_with_api,
    find_api_prices,
    load_api_prices,
    plain_name,
)
from sextant.ask.traffic import demand_of_trace
from sextant.base.errors import InputError
from sextant.facts.gpu import PRICES, priced, profile_of_id
from sextant.workload.requests import Prefixes, RequestStream, TraceOrigin
from support import ROOT

HEADER = "llm_id,provider,input_usd_per_mtok,output_usd_per_mtok,cached_input_usd_per_mtok"
LLAMA = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
LENGTHS = ("--input-tokens", 1500, "--output-tokens", 250)
ASKED = ("--hf-config", LLAMA, "--ttft-ms", "p95:1000", "--gpu-profiles", "1xH100-80GB")
PROFILE = replace(profile_of_id("1xH100-80GB"), usd_per_hour=4.0)
TRAFFIC = Billed(rate_rps=2.0, input_tokens=1000, output_tokens=200, cached_share=0.5)
DAY_S = 86_400
pytestmark = pytest.mark.usefixtures("without_a_store")


def table(*rows: str) -> str:
    Path("mine.csv").write_text("\n".join([HEADER, *rows, ""]))
    load_api_prices.cache_clear()
    return "mine.csv"


def compared(*rows: str, profile=PROFILE, replicas=2, probability=lambda n: 0.5, saved=0.0):
    """Compare replicas that serve 10 requests/s at most."""
    deployment = OwnDeployment(profile, replicas, 10.0, probability, saved)
    return compare_with_api(table(*rows), "m", TRAFFIC, deployment).to_dict()


def test_costs_and_break_even_are_those_by_hand() -> None:
    found = compared("m,dear,1,5,", "m,cheap,1,5,0.2", probability=lambda n: n / 10)
    # (1000 × (0.5 × 1 + 0.5 × 0.2) + 200 × 5) USD per million; without a price of its own cached
    # input costs as much as other input.
    cheap, dear = found["providers"]
    assert [cheap["provider"], dear["provider"]] == ["cheap", "dear"]
    assert cheap["usd_per_request"] == pytest.approx(0.0016)
    assert dear["usd_per_request"] == pytest.approx(0.002)
    assert dear["cached_input_usd_per_mtok"] is None
    # 7,200 requests an hour, 730 hours.
    assert cheap["usd_per_month"] == pytest.approx(7200 * 0.0016 * 730)
    assert (found["own_usd_per_hour"], found["own_usd_per_month"]) == (8.0, 5840.0)
    # 192 USD a day buy 120,000 requests, 1.39 of 10 a second.
    assert cheap["break_even_requests_per_day"] == pytest.approx(120_000)
    assert cheap["break_even_utilisation"] == pytest.approx(120_000 / DAY_S / 10)
    # The bills of 11.52 and 14.40 USD/h pay for 2 and 3 replicas of 4 USD/h.
    assert [row["probability_own_is_cheaper"] for row in found["providers"]] == [0.2, 0.3]


def test_own_gpus_are_cheaper_in_the_draws_whose_replicas_cost_less() -> None:
    needs = np.array([1, 2, 2, 3, np.inf])

    def probability(replicas: int) -> float:
        return float((needs <= replicas).mean())

    # Bills of 3.6, 7.9, 8.64 and 144 USD/h, where a replica costs 4: 8.64 million tokens an hour.
    bills = {"a": (3.6, 0.0), "b": (7.9, 0.2), "c": (8.64, 0.6), "d": (144, 0.8)}
    rows = [f"m,{name},{bill / 8.64},{bill / 8.64}," for name, (bill, _) in bills.items()]
    found = compared(*rows, probability=probability)["providers"]
    chances = {row["provider"]: row["probability_own_is_cheaper"] for row in found}
    assert chances == {name: chance for name, (_, chance) in bills.items()}
    unknown = compared(*rows, probability=lambda replicas: None)["providers"]
    assert [row["probability_own_is_cheaper"] for row in unknown] == [0.0, None, None, None]


@given(
    st.floats(0.01, 100),
    st.floats(0.01, 100),
    st.floats(0, 1),
    st.floats(0, 1),
    st.integers(1, 50),
)
def test_twice_the_price_is_twice_the_bill_and_half_the_break_even(
    full, output, cached, share, replicas
) -> None:
    rows = [f"m,{n},{n * full!r},{n * output!r},{n * cached * full!r}" for n in (1, 2)]
    deployment = OwnDeployment(PROFILE, replicas, 7.0, lambda n: min(n / 50, 1.0))
    billed = TRAFFIC._replace(cached_share=share)
    once, twice = compare_with_api(table(*rows), "m", billed, deployment).to_dict()["providers"]
    assert twice["usd_per_month"] == pytest.approx(2 * once["usd_per_month"])
    for name in ("break_even_requests_per_day", "break_even_utilisation"):
        assert twice[name] == pytest.approx(once[name] / 2)
    assert twice["probability_own_is_cheaper"] >= once["probability_own_is_cheaper"]
    # At the rate of break-even both cost the same.
    rate_rps = once["break_even_requests_per_day"] / DAY_S
    assert 3600 * rate_rps * once["usd_per_request"] == pytest.approx(4 * replicas)


def test_own_gpus_cost_the_machines_that_can_be_rented() -> None:
    share = priced(profile_of_id("1xH100-80GB"), "aws")
    asked = []
    found = compared("m,a,10,50,", profile=share, replicas=9, probability=asked.append, saved=0.5)
    assert found["own_usd_per_hour"] == pytest.approx(2 * 55.04)
    # 144 USD/h pay for two machines of eight.
    assert asked == [16]
    # A machine that others still need is not given back.
    assert found["own_scheduled_usd_per_month"] is None
    whole = compared("m,a,10,50,", saved=0.25)
    assert whole["own_scheduled_usd_per_month"] == pytest.approx(0.75 * 5840)
    assert compared("m,a,10,50,")["own_scheduled_usd_per_month"] is None


def test_organisation_and_precision_of_an_llm_do_not_count() -> None:
    names = ("meta-llama__Llama-3.1-8B-Instruct", "nvidia/Llama-3.1-8B-Instruct-FP8")
    names += ("Meta-Llama-3.1-8B-Instruct-AWQ-INT4", "llama-3.1-8b-instruct")
    assert {plain_name(name) for name in names} == {"llama-3.1-8b-instruct"}
    assert plain_name("Qwen/Qwen3-30B-A3B-Instruct-2507") != plain_name("Qwen/Qwen3-30B-A3B")


def test_the_table_that_ships_has_one_dated_price_of_an_llm_a_provider() -> None:
    prices = [listed.price for listed in load_api_prices(API_PRICES)]
    assert all(price.llm_id == plain_name(price.llm_id) for price in prices)
    assert all(len(price.as_of) == 10 and price.source.startswith("https://") for price in prices)
    for price in prices:  # a slip of the decimal point would be seen
        assert 0.005 < price.input_usd_per_mtok <= price.output_usd_per_mtok * 2
        assert (price.cached_input_usd_per_mtok or 0) <= price.input_usd_per_mtok
    readme = (PRICES / "README.md").read_text("utf-8")
    assert "api_prices.csv" in readme and "MIT" in readme and prices[0].as_of in readme
    shipped = {plain_name(path.stem) for path in LLAMA.parent.glob("*.json")}
    assert len(shipped & {price.llm_id for price in prices}) >= 12


def test_the_users_prices_come_first_then_the_providers() -> None:
    mine = table("meta-llama/Llama-3.1-8B-Instruct,deepinfra,7,8,", "m,deepinfra,1,1,")
    name = LLAMA.stem

    def found(given):
        return {
            listed.price.provider: listed.price.input_usd_per_mtok
            for listed in find_api_prices(given, name)
        }

    assert found(mine) == {"deepinfra": 7}
    both = found("nebius,deepinfra,mine.csv")
    assert both.keys() == {"deepinfra", "nebius"} and both["deepinfra"] == 7 > both["nebius"]
    assert found("mine.csv,all") == found("all") | {"deepinfra": 7}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("m,a,0,1,", "line 2, field 'input_usd_per_mtok'.*above 0"),
        ("m,a,1,-1,", "line 2, field 'output_usd_per_mtok'.*above 0"),
        ("m,a,1,cheap,", "line 2, field 'output_usd_per_mtok'.*valid number"),
        ("m,a,1,,", "line 2, field 'output_usd_per_mtok': it is missing.*above 0"),
        ("m,a,1,1,-0.1", "line 2, field 'cached_input_usd_per_mtok'.*as other input"),
        ("m,,1,1,", "line 2, field 'provider': it is missing.*e.g. deepinfra"),
        ("m,b,1,1,\norg/M-FP8,b,2,2,", "line 3, field 'llm_id': b has a price of .* in line 2"),
        ("m,a,1,1,1.2", "line 2, field 'cached_input_usd_per_mtok': 1.2 is above .* input, 1"),
        ("m,a,1,1,,more", "line 2: 6 cells under 5 columns"),
    ],
)
def test_a_wrong_row_is_one_error_with_its_place_and_fix(row, said) -> None:
    with pytest.raises(InputError, match=rf"mine\.csv, {said}"):
        find_api_prices(table(row), "m")


@pytest.mark.parametrize(
    ("given", "llm_id", "said"),
    [
        ("nope", "m", "^nope, field '--api-prices': neither.*all, or one.*nebius"),
        ("", "m", "^field '--api-prices': a part of it is empty. Fix: name"),
        ("all,", "m", "^field '--api-prices': a part of it is empty. Fix: name"),
        ("all", "m", r"no price of m\..*a table with a row of it"),
        ("ovhcloud", "Qwen__Qwen3-14B", "ovhcloud has no price of qwen3-14b.*some of deepinfra"),
    ],
)
def test_what_nobody_sells_is_an_error(given, llm_id, said) -> None:
    with pytest.raises(InputError, match=said):
        find_api_prices(given, llm_id)


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (1 / 24, "1 hour: without nights and weekends."),
        (3, "3 days: not of a whole week."),
        (6.99, "6.99 days: nights and weekends included."),
    ],
)
def test_the_mean_of_a_trace_says_which_hours_it_is_of(days, said) -> None:
    tokens = np.array([10, 30])
    drawn = RequestStream("d", np.array([0.0, 1.0]), tokens, tokens, days * DAY_S)
    assert Billed.of(drawn, 0.3) == Billed(2 / drawn.duration_s, 20, 20, 0.3, MEAN_NOTE)
    # Half of the second request's input repeats the first one's: 15 of 40 tokens.
    prefixes = Prefixes(np.array([0, 0]), np.array([10, 15]))
    trace = replace(drawn, prefixes=prefixes, origin=TraceOrigin(is_trace=True))
    found = Billed.of(trace, 0.3)
    assert found[1:4] == (20.0, 20.0, 0.25) and found.note.endswith(said)


def test_of_a_long_trace_all_requests_are_billed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sextant.workload.requests.MOST_SIMULATED", 22)
    arrival_s = np.sort([*np.arange(0, 100, 5.0), *(60 + np.arange(1, 20) / 2)])
    tokens = np.where((arrival_s >= 60) & (arrival_s < 70), 100, 10)
    file = trace_file(tmp_path / "t.parquet", arrival_s, input_tokens=[*map(int, tokens)])
    found = demand_of_trace(file, window_s=10, factor=2.0).busiest_part(10.0)
    assert found.input_tokens.mean() > tokens.mean()
    billed = Billed.of(found, 0.0)
    assert (billed.input_tokens, billed.output_tokens) == (pytest.approx(tokens.mean()), 5.0)
    assert billed.rate_rps == pytest.approx(2 * len(arrival_s) / 95)


def test_a_recommendation_compares_with_an_api() -> None:
    mine = table("llama-3.1-8b-instruct,cheap,0.01,0.02,0.001", "llama-3.1-8b-instruct,dear,2,3,")
    load = ("--request-rate", 8, "--prefix-hit-rate", 0.5, "--api-prices", mine)
    found = json.loads(sextant("recommend", *ASKED, *LENGTHS, *load, "--format", "json"))
    api, cost = found["api"], found["cost"]
    assert [row["provider"] for row in api["providers"]] == ["cheap", "dear"]
    assert (api["rate_rps"], api["cached_share"]) == (8.0, 0.5)
    assert api["own_usd_per_month"] == pytest.approx(730 * found["usd_per_hour"])
    assert api["rate_rps"] / api["own_most_rps"] == pytest.approx(cost["utilisation"])
    cheap, dear = api["providers"]
    assert cheap["usd_per_month"] == pytest.approx(8 * 3600 * 730 * 1500 * 0.0055e-6 + 105.12)
    # One replica is enough with the answer's own probability, and a dear bill pays for many.
    assert cheap["probability_own_is_cheaper"] == 0.0
    assert dear["probability_own_is_cheaper"] >= found["probability_met"]
    said = found["text"]
    assert "\nOwn GPUs or an API:\n  cheap bills" in said
    assert "input tokens (50 % of them cached)" in said and MEAN_NOTE in said
    assert "with probability < 0.01 the replicas that are needed cost less than the API." in said
    assert "Prices: mine.csv (no date)." in said
    with pytest.raises(InputError, match=r"nope, field '--api-prices'"):
        sextant("recommend", *ASKED, *LENGTHS, "--users", 8, "--api-prices", "nope")


def test_users_are_billed_at_the_rate_that_they_reach(tmp_path) -> None:
    load, page = ("--users", 64, "--api-prices", "deepinfra,oci"), tmp_path / "page.html"
    ask = partial(sextant, "recommend", *ASKED, *LENGTHS, "--tpot-ms", 40)
    found = json.loads(ask(*load, "--format", "json"))
    api, latency = found["api"], found["latency"]
    assert api["rate_rps"] == pytest.approx(found["cost"]["requests_per_s"])
    # Twice the users do not send twice the requests: each waits longer.
    grown = latency["users_median"] / latency["users"]
    assert 1 < api["own_most_rps"] / api["rate_rps"] < grown
    assert [row["as_of"] for row in api["providers"]] == ["2026-11-12"] * 2
    ask(*load, "--format", "html", "--out", page)
    assert "Own GPUs or an API" in Page(page.read_text("utf-8")).text


def test_what_was_measured_is_compared_too() -> None:
    mine = table("llama-7b,a,1,1,")
    asked = ("--llm", "llama-7b", "--source", "archive:llm-pilot", "--users", 64, "--itl-ms", 60)
    found = json.loads(sextant("recommend", *asked, "--api-prices", mine, "--format", "json"))
    (row,) = found["api"]["providers"]
    assert found["basis"] == "measured"
    assert found["api"]["rate_rps"] == pytest.approx(found["headroom"]["requests_per_s"])
    assert found["api"]["own_most_rps"] >= found["api"]["rate_rps"]
    # LLM-Pilot published no intervals, so that no probability is known.
    assert row["probability_own_is_cheaper"] is None
    assert "of what they can serve).\n" in found["text"]


def test_capacity_compares_with_an_api() -> None:
    sample = ROOT / "resources" / "traces" / "azure-2023-conv-sample.csv"
    sextant("ingest", sample, "--format", "sextant", "--out", "t.parquet")
    mine = table("llama-3.1-8b-instruct,a,2,3,")
    how = ("--window", "60s", "--draws", 10, "--traffic", 4, "--slot", "1min", "--startup", "1s")
    asked = ("--trace", "t.parquet", *ASKED, *how, "--api-prices", f"{mine},nebius")
    found = json.loads(sextant("capacity", *asked, "--format", "json"))
    api, demand, (nebius, own) = found["api"], found["demand"], found["api"]["providers"]
    assert (nebius["provider"], own["provider"]) == ("nebius", "a")
    assert api["rate_rps"] == pytest.approx(demand["rate_rps"])
    per_request = (2 * demand["mean_input_tokens"] + 3 * demand["mean_output_tokens"]) / 1e6
    assert own["usd_per_request"] == pytest.approx(per_request)
    most = found["replicas"] * found["rate_at_slo_rps"]
    assert api["own_most_rps"] == pytest.approx(most)
    assert own["probability_own_is_cheaper"] >= found["probability_met"]
    if found["schedule"]["saved"] > 0:
        saved = 1 - api["own_scheduled_usd_per_month"] / api["own_usd_per_month"]
        assert saved == pytest.approx(found["schedule"]["saved"])
    assert "6.08 minutes: without nights and weekends." in found["text"]
    assert found["text"].index("Own GPUs or an API") < found["text"].index("GPU profiles:")


def test_providers_that_the_text_leaves_out_are_counted() -> None:
    load = ("--request-rate", 8, "--api-prices", "all")
    found = json.loads(sextant("recommend", *ASKED, *LENGTHS, *load, "--format", "json"))
    n_more = len(found["api"]["providers"]) - 6
    assert n_more > 0
    assert f" {n_more} more providers, each dearer, in JSON and on the page." in found["text"]
