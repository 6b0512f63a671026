"""The answer to a person: from measurements, from a prediction, as words, JSON and a page."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from answers import explained, recommended
from llm_configs import PUBLISHED
from sextant.answer.certainty import list_frontier
from sextant.answer.option import Option, split_beaten
from sextant.ask.case import Case
from sextant.ask.forecast import fit_predictor
from sextant.ask.question import Question
from sextant.ask.serving import find_llm
from sextant.ask.source import Source, find_source
from sextant.decide.decision import FAIR, LISTED, SAFE
from sextant.facts.slo import SLO
from sextant.law.roofline import Roofline
from sextant.pages.blocks import as_text
from sextant.pages.page import as_page
from sextant.pages.words import chance, odds, shown_chance
from sextant.points.frame import TARGETS
from sextant.predict.predictor import PREDICTORS, JointPredictor, Registration
from sextant.recommend.document import headline, recommendation_document
from sextant.recommend.options import (
    choose_option,
    cliff_notes,
    find_safest,
    list_changes,
    list_profiles,
    nearest_measurements,
    offered_options,
)
from sextant.recommend.recommend import recommend_llm
from sextant.recommend.recommendation import Interval
from sextant.recommend.weighing import Weighing, weigh_case, weighed_rows
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

MISTRAL = ROOT / "tests" / "hf_configs" / "mistral-7b" / "config.json"
LIMITS = SLO("asked", nttft_ms=100.0, itl_ms=50.0, percentile=50, users=200)
ASKED = Question(LIMITS, hf_config=MISTRAL)
MEASURED = replace(ASKED, hf_config=None, llm_id="llama-7b")
pytestmark = pytest.mark.usefixtures("without_a_store")


@pytest.fixture(scope="module")
def source() -> Source:
    return find_source(ASKED)


def case_of(question: Question, source: Source) -> Case:
    llm = find_llm(question, source.characterization)
    return Case(question, question, source, llm, source.characterization.profiles)


@pytest.fixture(scope="module")
def weighing(source) -> Weighing:
    case = case_of(ASKED, source)
    model = Roofline(LIMITS, source.characterization.profiles, 42)
    return weigh_case(fit_predictor(model, case, LIMITS).forecast(case, LIMITS))


def asked(weighing: Weighing, **changes) -> Weighing:
    """Return the same draws for a question with other fields; limits and load are its SLO."""
    case = weighing.case.varied(changes)
    forecast = replace(weighing.forecast, case=case, slo=case.question.slo)
    return Weighing(forecast)


@pytest.fixture(scope="module")
def answer() -> dict:
    return recommended(ASKED)


def test_a_measured_llm_is_answered_from_its_points() -> None:
    answer = recommended(MEASURED)
    # 32 users were measured to meet the limits on one A100, and seven replicas serve 200.
    assert (answer["basis"], answer["gpu_profile_id"]) == ("measured", "1xA100-40GB")
    assert (answer["replicas"], answer["users_per_replica"]) == (7, 32)
    assert answer["usd_per_hour"] == pytest.approx(7 * 4.09625)
    reasons = {row["gpu_profile_id"]: row["reason"] for row in answer["alternatives"]}
    # Its weights would fit there.
    assert reasons["1xV100-16GB"].startswith("omitted by the source")
    assert reasons["1xA10-24GB"] is None
    assert answer["text"].startswith("llama-7b: 7 replicas × 1xA100-40GB = 28.67 USD/h (measured)")
    json.dumps(answer, allow_nan=False)


def test_steps_that_a_load_test_had_prompts_wait_are_not_taken_for_the_engines() -> None:
    profile = "4xH200-141GB"
    asked = replace(ASKED, engine="trtllm", sources=("archive:inferencex-other-engines",))
    asked = replace(asked, requests=RequestLengths(Length(1024, 1024), Length(1024, 1024)))
    known = find_source(asked).characterization
    unsaid = replace(known, points=known.points.assign(wait_steps=np.nan))
    found = [
        explained(replace(asked, characterization=each), profile, 32) for each in (known, unsaid)
    ]
    waits = [{part["name"]: part["ms"] for part in each["nttft"]} for each in found]
    assert waits[0]["batching_ms"] < 0.5 * waits[1]["batching_ms"]


def test_prices_and_profiles_on_offer_change_a_measured_answer(tmp_path) -> None:
    prices = tmp_path / "prices.csv"
    prices.write_text("gpu_profile_id,usd_per_hour\n2xA100-40GB,5\n")
    answer = recommended(replace(MEASURED, prices=prices))
    assert (answer["gpu_profile_id"], answer["usd_per_hour"]) == ("2xA100-40GB", 20.0)
    assert {each["source"]: each["is_old"] for each in answer["prices"]} == {"prices.csv": False}
    assert any("prices.csv: 2xA100-40GB; `--prices" in each for each in answer["warnings"])
    old = "The prices are old: aws on demand, as LLM-Pilot published it, 2024."
    assert old in recommended(MEASURED)["text"]
    answer = recommended(replace(MEASURED, prices=Path("aws")))
    # Of p4d.24xlarge each replica pays an eighth.
    assert answer["usd_per_hour"] == pytest.approx(7 * 21.957642 / 8)
    assert "Prices: aws on demand, us-east-1 (2025-11 to 2026-11)." in answer["text"]
    assert not any("old" in line for line in answer["warnings"])
    assert "8 at a time as p4d.24xlarge, 1 of which cost 21.96 USD/h" in answer["text"]
    answer = recommended(replace(MEASURED, gpu_profile_ids=("1xA10-24GB",)))
    assert [row["gpu_profile_id"] for row in answer["alternatives"]] == ["1xA10-24GB"]


def test_a_prediction_has_all_that_a_person_needs(answer) -> None:
    assert (answer["basis"], answer["llm_id"]) == ("roofline", "mistral-7b")
    price = {row["gpu_profile_id"]: row for row in answer["alternatives"]}
    assert len(price) == 14
    assert 0 < answer["probability_met"] <= 1
    cost = answer["cost"]
    assert answer["headroom"]["requests_per_s"] == pytest.approx(cost["requests_per_s"])
    served = 3600 * cost["requests_per_s"]
    tokens = answer["serving"]["input_tokens"], answer["serving"]["output_tokens"]
    usd = [cost[f"usd_per_million_{side}_tokens"] * 1e-6 for side in ("input", "output")]
    assert np.dot(usd, tokens) * served == pytest.approx(answer["usd_per_hour"])
    assert cost["split"] == "time" and 0 < cost["utilisation"] <= 1.001
    assert answer["replicas"] * answer["users_per_replica"] >= 200
    assert any(each.startswith("No lengths were given: the ans") for each in answer["warnings"])
    latency = answer["latency"]
    assert latency["users"] == answer["users_per_replica"] <= latency["checked_at_users"]
    for target in ("nttft", "itl"):
        assert latency[f"{target}_lo_ms"] < latency[f"{target}_ms"] < latency[f"{target}_hi_ms"]
    assert latency["users_lo"] <= latency["users_median"] <= latency["users_hi"]
    binding = latency["binding_limit"]
    assert latency[f"{binding}_ratio"] == max(latency["nttft_ratio"], latency["itl_ratio"])
    assert answer["best_probe"] in price
    assert answer["llm"]["attention"] == "GQA"
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    text = answer["text"]
    option = f"{answer['replicas']} replicas × {answer['gpu_profile_id']}"
    assert text.startswith(f"mistral-7b: {option} = {answer['usd_per_hour']:.2f} USD/h; meets")
    for part in (
        "comes nearest to its limit",
        "90% interval",
        "Nearest measurements",
        "would tell most (--probe)",
    ):
        assert part in text
    assert "attention GQA, where MHA and MQA were measured" in text
    assert "archive:llm-pilot (ships with Sextant): 10 LLMs × 14 GPU profiles" in text


def test_a_doubtful_option_is_said_to_be_one_with_the_price_of_a_safe_one() -> None:
    answer = recommend_llm(ASKED)
    safe = Option("1xA100-40GB", 7, None, 28.68)

    def cautions(probability: float, safest: Option | None = safe, **changes) -> list[str]:
        """Return the warnings that begin the text, where the option has this probability."""
        chosen = answer.chosen._replace(probability_met=probability)
        findings = replace(answer.findings, safest=safest)
        doubtful = replace(answer, chosen=chosen, findings=findings, warnings=(), **changes)
        lines = as_text(recommendation_document(doubtful)).splitlines()[1:]
        return [line for line in lines if line.startswith("That is ")]

    only = "That is more likely than not; "
    safer = "0.9 takes 7 replicas × 1xA100-40GB = 28.68 USD/h"
    assert cautions(0.6) == [f"{only}{safer} (--risk 0.1)"]
    assert cautions(0.6, decision="paper") == [f"{only}{safer} (--decision utility --risk 0.1)"]
    (line,) = cautions(0.4, safest=None)
    assert line.startswith("That is less likely than not; no option reaches 0.9")
    assert cautions(0.9) == []
    assert "That is " not in recommended(MEASURED)["text"]


def test_a_new_gpu_is_predicted_and_flagged(tmp_path) -> None:
    prices = tmp_path / "prices.tsv"
    prices.write_text("gpu_profile_id\tusd_per_hour\n1xL40S-48GB\t1.8\n1xT4-16GB\t0.9\n")
    names = ("1xL40S-48GB", "1xT4-16GB")
    answer = recommended(replace(ASKED, gpu_profile_ids=names, prices=prices))
    assert answer["gpu_profile_id"] == "1xL40S-48GB"
    flags = {row["gpu_profile_id"]: row["is_gpu_measured"] for row in answer["alternatives"]}
    assert flags == {"1xL40S-48GB": False, "1xT4-16GB": True}
    assert "L40S-48GB, where A10-24GB, " in answer["warnings"][0]
    assert answer["evidence"] == []
    assert "1xL40S-48GB (GPU never measured)" in answer["text"]


def test_a_probe_moves_the_prediction_towards_it(weighing, tmp_path) -> None:
    path = tmp_path / "probe.csv"
    rows = [
        (users, 1.4 * weighing.forecast.latencies_at("2xA100-40GB", users)) for users in (1, 8, 32)
    ]
    lines = [f"2xA100-40GB,{n},{row['nttft_ms']},{row['itl_ms']}" for n, row in rows]
    path.write_text("\n".join(["gpu_profile_id,users,nttft_ms,itl_ms", *lines]))
    answer = recommended(replace(ASKED, probe=path, gpu_profile_ids=("2xA100-40GB",)))
    load = answer["latency"]["users"]
    predicted = weighing.forecast.latencies_at("2xA100-40GB", load)
    assert answer["latency"]["itl_ms"] > 1.15 * predicted["itl_ms"]
    assert "one more measurement, on" in answer["text"]


def test_gpus_on_which_its_kind_was_left_out_are_offered_only_if_named(source, weighing) -> None:
    assert "(paged) were omitted by the source" in weighing.case.excluded["1xV100-16GB"]
    wanted = case_of(replace(ASKED, gpu_profile_ids=("1xV100-16GB",)), source)
    assert "1xV100-16GB" in wanted.candidates and "2xV100-16GB" not in wanted.candidates
    # Of an encoder-decoder some were measured there.
    t5 = replace(
        wanted, question=ASKED, configured_llm=source.characterization.llms["google__flan-t5-xl"]
    )
    assert "1xV100-16GB" in t5.candidates


class Steady(JointPredictor):
    """Draws latencies that scatter around the mean of all points, whatever the LLM."""

    min_training_llms = 1

    def design(self, keys, facts):
        return keys

    def fit(self, training, references=None):
        self.mean_ms = training.y[TARGETS].mean().to_numpy()
        return self

    def sample(self, X):
        scatter = np.random.default_rng(self.seed).lognormal(0, 0.5, (200, 1, 2))
        return np.repeat(self.mean_ms * scatter, len(X), axis=1)


def test_any_predictor_that_draws_can_be_asked_for_a_risk(monkeypatch) -> None:
    monkeypatch.setitem(PREDICTORS, "steady", Registration("Steady", __name__))
    asked = replace(ASKED, slo=replace(LIMITS, nttft_ms=1e4, itl_ms=1e4), predictor="steady")
    answer = recommended(replace(asked, risk=0.1))
    assert (answer["basis"], answer["predictor"]) == ("steady", "steady")
    assert answer["probability_met"] >= 0.9
    assert "predicted by steady" in answer["text"]
    bolder = recommended(replace(asked, slo=replace(LIMITS, nttft_ms=1e4), risk=0.9))
    assert bolder["probability_met"] >= 0.1


def test_a_smaller_risk_never_costs_less(weighing) -> None:
    options = weighing.options()
    prices = []
    for risk in (0.5, 0.2, 0.1, 0.01):
        chosen = choose_option(asked(weighing, risk=risk), options)
        assert chosen.probability_met >= 1 - risk
        prices.append(chosen.usd_per_hour)
    assert prices == sorted(prices)


def test_a_probability_is_rounded_down_and_its_words_agree_with_it() -> None:
    shown = {0.899: "0.89", 0.9: "0.90", 0.29: "0.29", 0.996: "> 0.99", 0.009: "< 0.01"}
    assert {value: chance(value) for value in shown} == shown
    # Words change where decisions do.
    bounds = {SAFE: "very likely", FAIR: "more likely than not", LISTED: "less likely than not"}
    for bound, words in bounds.items():
        assert odds(bound) == words != odds(bound - 1e-9)
    assert odds(0.74) == odds(0.77)


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(1, 50).map(float),
            st.none() | st.integers(0, 20).map((0.05).__mul__),
        )
    )
)
def test_what_another_beats_is_not_listed(pairs) -> None:
    rows = [Option(None, None, None, usd, chance) for usd, chance in pairs]
    kept, beaten = split_beaten(rows)
    assert sorted(map(id, [*kept, *beaten])) == sorted(map(id, rows))

    def beats(one, other) -> bool:
        keys = [(-each.usd_per_hour, shown_chance(each.probability_met)) for each in (one, other)]
        return keys[0] != keys[1] and all(a >= b for a, b in zip(*keys, strict=True))

    known = [row for row in kept if None not in (row.usd_per_hour, row.probability_met)]
    assert not any(beats(one, other) for one in known for other in known)
    lowest = min((row.usd_per_hour for row in known), default=0)
    for row in beaten:
        is_far = row.probability_met <= FAIR and row.usd_per_hour >= 10 * lowest
        assert is_far or any(beats(one, row) for one in known)
    assert all(row.probability_met > FAIR or row.usd_per_hour < 10 * lowest for row in known)


def test_no_option_is_an_answer_of_its_own(weighing) -> None:
    impossible = asked(weighing, slo=replace(LIMITS, itl_ms=0.001), risk=0.1)
    options = impossible.options()
    chosen = choose_option(impossible, options)
    assert chosen.gpu_profile_id is None and chosen.probability_met is None
    answer = recommend_llm(impossible.case.question)
    assert headline(answer) == (
        "mistral-7b: no GPU profile meets both limits with probability 0.9 or more "
        "(predicted by roofline)"
    )
    rows = list_profiles(impossible, options, chosen)
    assert {row.status for row in rows} == {"too_slow", "does_not_fit"}
    slow = [row.misses for row in rows if row.status == "too_slow"]
    assert all(misses.limit_ratio == misses.ratios["itl"] > 1000 for misses in slow)
    assert (
        find_safest(options, chosen) is None
        and list_frontier(offered_options(weighed_rows(options))) == []
    )


def test_without_a_likely_option_none_is_recommended_and_the_nearest_is_said() -> None:
    requests = RequestLengths(Length(1500, 1500), Length(250, 250))
    config = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
    slo = SLO("s", ttft_ms=9, ttft_percentile=99, tpot_ms=1, percentile=50, request_rate_rps=20)
    profiles = ("1xH100-80GB", "8xH200-141GB", "1xB200-180GB")
    asked = Question(slo, hf_config=config, requests=requests, gpu_profile_ids=profiles)
    answer = recommended(asked)
    assert answer["gpu_profile_id"] is None
    miss = answer["nearest_miss"]
    limit = miss["binding_limit"]
    assert miss["probability_met"] < 0.5 and 1 < miss["fair_factor"] <= miss["safe_factor"]
    assert miss[f"{limit}_ms"] > asked.slo.limits[limit].limit_ms
    first, second, third = answer["text"].splitlines()[:3]
    assert first.endswith("no option is likely to meet both limits (predicted by roofline)")
    assert second.startswith("Nearest: ") and f"× {miss['gpu_profile_id']} = " in second
    assert "breaks its limit" in second and " ms, where " in second
    assert "longer run" not in answer["text"]  # no run makes limits that far off met
    assert "limits × 0.8: no option" in answer["text"]
    assert f"{miss['fair_factor']:.3g} times as high its probability is 0.5" in third
    # What is listed has a chance, at a load that its replicas may well serve.
    assert all(row["probability_met"] >= 0.2 for row in answer["options"])
    for row in answer["alternatives"]:
        assert row["status"] != "unsure" or row["probability_met"] >= 0.2
        assert row["status"] != "too_slow" or row["probability_met"] < 0.2
    mended = slo.scaled(limits=1.5 * miss["safe_factor"])
    assert recommended(replace(asked, slo=mended))["probability_met"] >= 0.5
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_on_the_frontier_more_money_buys_more_probability_and_nothing_is_overloaded(
    weighing,
) -> None:
    options = weighing.options()
    rows = list_frontier(offered_options(weighed_rows(options)))
    for cheaper, dearer in pairwise(rows):
        assert cheaper.usd_per_hour < dearer.usd_per_hour
        assert cheaper.probability_met < dearer.probability_met
    most = dict(zip(options["gpu_profile_id"], options["users_hi"], strict=True))
    for some in (options, options.assign(probability_met=0.9)):
        rows = list_frontier(offered_options(weighed_rows(some)))
        assert rows and all(row.users_per_replica <= most[row.gpu_profile_id] for row in rows)


@pytest.mark.parametrize("load", [{"users": 200}, {"users": None, "request_rate_rps": 20.0}])
def test_what_certainty_costs_is_said_with_the_measurement_that_would_tell(load) -> None:
    config = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
    slo = SLO("s", ttft_ms=1000, tpot_ms=20, percentile=95, **load)
    requests = RequestLengths(Length(1500, 1500), Length(250, 250))
    answer = recommended(Question(slo, hf_config=config, requests=requests))
    certainty = answer["certainty"]
    prices = {
        level: min(row["usd_per_hour"] for row in answer["options"] if row["probability_met"] >= p)
        for level, p in (("fair", FAIR), ("safe", SAFE))
    }
    assert {level: certainty[level]["usd_per_hour"] for level in prices} == prices
    assert certainty["factor"] == pytest.approx(prices["safe"] / prices["fair"])
    assert "Certainty: probability 0.9 costs " in answer["text"]
    cause = certainty["cause"]
    assert (cause is None) == (prices["safe"] == prices["fair"])
    if cause is not None:
        assert cause["gpu_profile_id"] == certainty["fair"]["gpu_profile_id"]
        assert 0 < cause["explained_share"] <= 1 and cause["users"] >= 1
        assert f"explains {cause['explained_share']:.0%}" in answer["text"]


def test_of_each_profile_the_cheapest_safe_option_is_shown(weighing) -> None:
    options = weighing.options()
    careful = asked(weighing, risk=0.1)
    rows = list_profiles(careful, options, choose_option(careful, options))
    meeting = [row for row in rows if row.status == "meets"]
    assert [row.usd_per_hour for row in meeting] == sorted(r.usd_per_hour for r in meeting)
    for row in meeting:
        own = options[options["gpu_profile_id"] == row.gpu_profile_id]
        safe = own[own["probability_met"] >= 0.9]
        assert row.usd_per_hour == safe["usd_per_hour"].min()
    # An answer of less certainty is in the list too, and is not beaten there.
    chosen = choose_option(asked(weighing, risk=0.5), options)
    kept, _ = split_beaten(list_profiles(weighing, options, chosen))
    assert chosen.probability_met < 0.9
    (own,) = (row for row in kept if row.gpu_profile_id == chosen.gpu_profile_id)
    assert own.option.replicas == chosen.replicas


def test_the_papers_decision_takes_medians_for_the_truth(weighing) -> None:
    chosen = choose_option(asked(weighing, decision="paper"), weighing.options())
    X, medians = weighing.draws.X, weighing.draws.summary()
    own = X["gpu_profile_id"] == chosen.gpu_profile_id
    meets = (medians["itl_ms"] <= 50) & (medians["nttft_ms"] <= 100) & own
    served = X.loc[meets, "users"].max()
    assert chosen.replicas == -(-200 // served)
    assert 0 < chosen.probability_met <= 1


def test_other_limits_and_loads_have_decisions_of_their_own(weighing) -> None:
    careful = asked(weighing, risk=0.1)
    chosen = choose_option(careful, careful.options())
    options = {change.name: change.option for change in list_changes(careful)}
    assert len(options) == 4
    assert options["twice the load"].usd_per_hour >= chosen.usd_per_hour
    assert options["limits × 1.25"].usd_per_hour <= chosen.usd_per_hour
    # What no SLO may ask for is left out.
    most = asked(weighing, slo=replace(LIMITS, users=10**8), decision="paper")
    assert "twice the load" not in {change.name for change in list_changes(most)}


def test_an_answer_says_where_looser_limits_halve_the_price(weighing) -> None:
    changes = list_changes(asked(weighing, risk=0.1))
    (change,) = [change for change in changes if change.name == "limits × 1.25"]
    usd = change.option.usd_per_hour
    (said,) = cliff_notes([change], change.option._replace(usd_per_hour=2 * usd))
    replicas = change.option.replicas
    assert said.startswith(f"Limits a quarter looser cost half or less: {replicas} × ")
    assert f" = {usd:.2f} USD/h, with probability " in said
    assert cliff_notes([change], change.option._replace(usd_per_hour=1.9 * usd)) == []
    assert cliff_notes([change], Option()) == []


def test_the_nearest_measurement_is_of_the_same_kind_and_size(weighing) -> None:
    first, second = nearest_measurements(weighing.case, "1xA100-40GB", LIMITS)
    assert (first.llm_id, first.users_per_replica) == ("llama-7b", 32)
    assert first.is_executed_alike and second.is_executed_alike
    # Of its kind nothing ran there.
    (only,) = nearest_measurements(weighing.case, "1xV100-16GB", LIMITS)
    assert only.llm_id == "google__flan-t5-xl" and not only.is_executed_alike


def test_what_lies_outside_is_named(source, tmp_path) -> None:
    path = tmp_path / "mixtral.json"
    path.write_text(json.dumps(PUBLISHED["Mixtral-8x7B"][0]))
    outside = recommended(replace(ASKED, hf_config=path, kv_dtype="fp8"))["outside"]
    for words in (
        "the KV cache in fp8, where",
        "attention GQA, where MHA and MQA were measured",
        "layers that are a mixture of experts, where",
        "86.99 GiB of weights, where",
    ):
        assert any(each.startswith(words) for each in outside), outside


def test_the_page_stands_alone_and_escapes_every_name() -> None:
    nasty = "<script>alert(1)</script>"
    answer = recommend_llm(ASKED)
    rows = [
        replace(row, option=row.option._replace(gpu_profile_id=nasty))
        for row in answer.alternatives
    ]
    page = as_page(recommendation_document(replace(answer, llm_id=nasty, alternatives=rows)))
    assert nasty not in page and "&lt;script&gt;" in page
    assert page.count("<script") == 1 == page.count("'sha256-")  # that of tables that sort
    # The namespaces of SVG are names, not links.
    assert "://" not in page.replace("http://www.w3.org/", "") and " src=" not in page
    assert "Nearest measurements" in page

    for itl_ms in (50.0, 0.001):
        measured = recommend_llm(replace(MEASURED, slo=replace(LIMITS, itl_ms=itl_ms)))
        page = as_page(recommendation_document(measured))
        assert ("no GPU profile meets both limits" in page) == (itl_ms < 1)


def test_the_terms_of_a_latency_add_up_to_it() -> None:
    told = explained(MEASURED, "1xA100-40GB", 64)
    assert told["measured"] == {"nttft_ms": pytest.approx(9.71, abs=0.01), "itl_ms": 59.0}
    step_ms = sum(term["ms"] for term in told["itl"])
    assert told["itl_ms"] == pytest.approx(step_ms * told["itl_factor"])
    first_ms = sum(term["ms"] for term in told["nttft"]) / told["mean_input_tokens"]
    assert told["nttft_ms"] == pytest.approx(first_ms * told["nttft_factor"])
    for terms in (told["itl"], told["nttft"]):
        assert sum(term["share"] for term in terms) == pytest.approx(1)
    # It was learned from, so it is known well.
    assert told["itl_ms"] == pytest.approx(59.0, rel=0.15)
    for words in ("reading the weights", "queueing", "(measured: 59 ms)"):
        assert words in told["text"]
    json.dumps(told, allow_nan=False)


def test_an_interval_of_draws_whose_queue_grows_without_end_has_no_upper_end() -> None:
    finite = Interval.of(np.arange(1.0, 101.0))
    assert (finite, finite.end_words()) == (Interval(50.0, 5.0, 95.0), "5 to 95")
    growing = Interval.of(np.where(np.arange(1.0, 101.0) > 90, np.inf, np.arange(1.0, 101.0)))
    assert growing == Interval(50.0, 5.0, np.inf)
    assert growing.end_words() == "5 or more"
