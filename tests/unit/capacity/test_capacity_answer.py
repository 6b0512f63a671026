"""The answer of `sextant capacity`: on the shipped trace, from the shipped measurements."""

import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest

from command import sextant
from html_page import Page, figure_texts
from sextant.api.capacity import SearchOptions
from sextant.api.question_options import CaseOptions, LengthOptions
from sextant.api.traffic import TrafficOptions
from sextant.ask.traffic import DrawnTraffic
from sextant.base.errors import InputError
from sextant.capacity.answer import (
    AloneResults,
    CapacityOutcome,
    Growth,
    Slot,
    WindowsSummary,
    facts_of,
)
from sextant.capacity.document import missed_words, outcome_cells
from sextant.facts.slo import SLO
from sextant.pages.words import chance, percent
from sextant.workload.requests import RequestStream
from sextant.workload.trace_arrivals import arrivals_at_rate
from support import ROOT

SAMPLE = ROOT / "resources" / "traces" / "azure-2023-conv-sample.csv"
LLM = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
ASKED = ("--hf-config", LLM, "--gpu-profiles", "1xH100-80GB,1xH200-141GB", "--draws", 10)
LIMITS = ("--ttft-ms", "p95:1000", "--itl-ms", "p95:50", "--window", "60s")
LENGTHS = ("--input-tokens", "p50:900,p99:4000", "--output-tokens", "p50:150,p99:700")
pytestmark = pytest.mark.usefixtures("without_a_store")


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    out = tmp_path_factory.mktemp("trace") / "azure.parquet"
    sextant("ingest", SAMPLE, "--format", "sextant", "--out", out)
    return out


@pytest.fixture(scope="module")
def answer(trace):
    """At eight times the traffic, so that one replica is not enough."""
    how = ("--traffic", 8, "--slot", "15s", "--startup", "5s", "--format", "json")
    return json.loads(sextant("capacity", "--trace", trace, *LIMITS, *ASKED, *how))


def test_capacity_lists_price_against_probability_as_recommend_does() -> None:
    asked = ("--hf-config", LLM, "--request-rate", 20, "--input-tokens", 1500)
    asked += ("--output-tokens", 250, "--ttft-ms", "p95:1000", "--tpot-ms", "p95:20")
    asked += ("--gpu-profiles", "1xH100-80GB,1xH200-141GB,2xH100-80GB", "--format", "json")
    capacity, recommended = (
        json.loads(sextant(command, *asked)) for command in ("capacity", "recommend")
    )
    assert capacity["options"] == recommended["options"] and len(capacity["options"]) > 1
    assert capacity["certainty"] == recommended["certainty"]
    words = " ".join(capacity["text"].split())
    for row in capacity["options"][:6]:
        price = f"{row['usd_per_hour']:.2f} USD/h {chance(row['probability_met'])}"
        assert f"{price} {row['replicas']} × {row['gpu_profile_id']}" in words
    assert "Price against probability:" in capacity["text"]
    assert "Certainty: probability 0.9 costs " in capacity["text"]
    unsure = json.loads(sextant("capacity", *asked, "--draws", 0))
    assert unsure["options"] == [] and unsure["certainty"] is None
    assert "Price against probability" not in unsure["text"]


def test_the_cheapest_profile_that_meets_every_window_is_first(answer) -> None:
    rows = answer["alternatives"]
    assert [row["status"] for row in rows] == ["meets", "meets"]
    assert rows[0]["usd_per_hour"] <= rows[1]["usd_per_hour"]
    assert all(answer[name] == rows[0][name] for name in ("gpu_profile_id", "replicas"))
    assert answer["replicas"] > 1 and answer["probability_met"] >= 0.9
    assert answer["demand"]["n_requests"] == 16_000
    assert answer["rate_at_slo_rps"] > 0
    assert answer["slo"]["window_s"] == 60 and answer["slo"]["max_failed"] == 0.01
    assert [each["source"] for each in answer["prices"]] == ["runpod on demand, all regions"]
    assert "Prices: runpod on demand, all regions (2026-" in answer["text"]


def test_the_answer_says_what_would_change_it(answer) -> None:
    fewer, same, more = answer["neighbours"]
    assert (fewer["replicas"], more["replicas"]) == (same["replicas"] - 1, same["replicas"] + 1)
    assert fewer["probability_met"] < same["probability_met"] <= more["probability_met"]
    assert same["n_windows_missed"] == 0 == answer["fixed"]["n_windows_missed"]
    assert answer["growth"]["replicas_needed"] >= answer["replicas"]
    assert answer["failure"]["back_s"] - answer["failure"]["at_s"] == 5
    schedule, timeline = answer["schedule"], answer["timeline"]
    assert max(schedule["replicas"]) <= answer["replicas"]
    assert timeline["scheduled_replicas"] == schedule["replicas"]
    # The text has a row where the number changes.
    rows = [f"  {r['slot']}" for r in schedule["by_slot"]]
    assert ("\nSchedule:\n  From" in answer["text"]) == (len(set(schedule["replicas"])) > 1)
    assert rows[0] in answer["text"] or len(set(schedule["replicas"])) == 1
    assert len(timeline["fixed"]["ttft_ms"]) == len(timeline["fixed"]["is_met"])
    assert sum(timeline["request_rate_rps"]) * timeline["bucket_s"] == pytest.approx(16_000)
    for line in (
        "a replica just meets the SLO at a mean of",
        "a replica fails",
        "traffic × 1.5",
        "by 15",
    ):
        assert line in answer["text"]


def test_recommend_with_a_trace_is_answered_by_capacity(trace, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sextant.api.capacity.SearchOptions", partial(SearchOptions, draws=10))
    offer = ASKED[:-2]
    page = tmp_path / "page.html"
    how = ("--format", "html", "--out", page)
    said = sextant("recommend", "--trace", trace, *LIMITS[:4], *offer, *how)
    assert "(simulated)" in said
    html = page.read_text("utf-8")
    assert "the answer is that of sextant capacity" in " ".join(Page(html).text.split())
    assert not [link for link in Page(html).links if not link.startswith("#")]
    texts = figure_texts(html)
    # What stays as it is all the time is said, not drawn.
    assert "Requests/s" in texts and "Failed (%)" not in texts
    assert "Not drawn: " in Page(html).text and "no request fails" in Page(html).text
    with pytest.raises(InputError, match="two loads are given"):
        sextant("recommend", "--trace", trace, "--users", 5, *LIMITS[:4], *offer)


def test_a_limit_that_one_request_alone_breaks_is_said_with_by_how_much(trace) -> None:
    said = sextant("capacity", "--trace", trace, "--ttft-ms", "p95:5", *ASKED, exit_code=3)
    assert "no GPU profile meets the SLO" in said
    assert "TTFT of requests alone is" in said and "times its limit" in said


def test_a_profile_that_another_beats_is_named_with_its_price(trace) -> None:
    offer = (*ASKED, "--ttft-ms", "p95:1000", "--draws", 10)
    offer = (*offer, "--gpu-profiles", "1xH100-80GB,2xH100-80GB")
    text = sextant("capacity", "--trace", trace, *offer)
    beaten = r"an option above costs no more .*: 2xH100-80GB \("
    assert re.search(beaten, text) and "× 2xH100-80GB" not in text


def test_a_goodput_that_requests_alone_miss_is_not_blamed_on_a_limit(trace) -> None:
    given = ("--ttft-ms", "p50:60", "--goodput", 1, "--draws", 0)
    text = sextant("capacity", "--trace", trace, *ASKED, *given, exit_code=3)
    assert "too few requests alone are within all limits (--goodput)" in text
    assert "the best estimate alone (--draws 0): it has no probability" in text


def test_requests_beyond_the_context_are_counted(trace) -> None:
    limits = (*LIMITS, "--max-model-len", 2048)
    said = sextant("capacity", "--trace", trace, *limits, *ASKED, exit_code=3)
    assert "292 of 2,000 requests have more than 2,048 tokens" in said
    assert "292 requests (up to " in said and "beyond its context" in said
    assert "raise --max-failed, --max-model-len" in said
    borne = sextant("capacity", "--trace", trace, *limits, "--max-failed", 0.5, *ASKED)
    assert "14.6 % of the requests fail" in borne


def test_arrivals_at_a_rate_need_no_trace() -> None:
    lengths = ("--input-tokens", "p50:900,p99:4000", "--output-tokens", 200)
    rate = ("--request-rate", 40, "--burstiness", 0.3, "--duration", "3min")
    how = ("--prefix-hit-rate", 0.5, "--format", "json")
    found = json.loads(sextant("capacity", *rate, *lengths, *LIMITS, *ASKED, *how))
    assert found["demand"]["rate_rps"] == pytest.approx(40, rel=0.1)
    assert found["demand"]["gap_cv"] == pytest.approx(0.3**-0.5, rel=0.1)
    assert 1000 < found["demand"]["mean_input_tokens"] < 1300 and found["replicas"] >= 1
    assert found["demand"]["name"] == "given lengths with Gamma gaps of shape 0.3"


@pytest.mark.parametrize(
    ("rate", "requests"), [(40, LENGTHS), (4, ("--workload", "summarization"))]
)
def test_recommend_and_capacity_give_a_rate_the_same_answer(rate, requests) -> None:
    given = ("--request-rate", rate, *requests, "--ttft-ms", "p95:3000", "--tpot-ms", "p50:40")
    given = (*given, *ASKED[:4], "--format", "json")
    quick, whole = (json.loads(sextant(name, *given)) for name in ("recommend", "capacity"))
    assert quick["arrivals"] == "poisson" and "Requests arrive at random" in quick["text"]
    same = ("gpu_profile_id", "replicas", "usd_per_hour", "probability_met")
    assert [quick[name] for name in same] == [whole[name] for name in same]
    of_quick, of_whole = (
        {tuple(row[name] for name in same) for row in each["alternatives"]}
        for each in (quick, whole)
    )
    assert of_quick == of_whole
    shown = chance(quick["probability_met"]), f"{quick['replicas']} × {quick['gpu_profile_id']}"
    option = rf"  {quick['usd_per_hour']:.2f} USD/h +{shown[0]} +{shown[1]}\n"
    assert re.search(option, quick["text"])
    # Neither the other candidates nor who asks changes it.
    alone = json.loads(sextant("recommend", *given, "--gpu-profiles", whole["gpu_profile_id"]))
    assert [alone[name] for name in same] == [whole[name] for name in same]
    (twice,) = [row for row in quick["sensitivity"] if row["change"] == "twice the load"]
    asked = json.loads(sextant("recommend", *given, "--request-rate", 2 * rate))
    assert [twice[name] for name in same] == [asked[name] for name in same]
    paper = json.loads(sextant("recommend", *given, "--decision", "paper"))
    assert paper["replicas"] and paper["usd_per_hour"] <= quick["usd_per_hour"]


def test_a_workload_at_a_rate_has_its_traces_arrivals(trace, tmp_path) -> None:
    folder = tmp_path / "azure"
    sextant("fit", trace, "--out", folder)

    def drawn(workload: object, **given: float) -> RequestStream:
        options = TrafficOptions(request_rate=20.0, duration="5min", **given)
        case = CaseOptions(requests=LengthOptions(workload=str(workload)))
        return options.of(case, None).drawn(1)

    own, gamma = drawn(folder), drawn(folder, burstiness=0.5)
    model = json.loads((folder / "arrivals.json").read_text())["model"]
    assert own.name == f"azure with its trace's arrivals ({model})"
    assert own.rate_rps == pytest.approx(20, rel=0.15)
    _, seed = np.random.SeedSequence(43).spawn(2)
    times = arrivals_at_rate(folder, "fitted", 20.0).times(duration_s=300, seed=seed)
    assert own.arrival_s == pytest.approx(times)
    assert gamma.name == "azure with Gamma gaps of shape 0.5"
    assert gamma.facts()["gap_cv"] == pytest.approx(2**0.5, rel=0.1)
    assert drawn("summarization").name == "summarization with Poisson arrivals"


@pytest.mark.parametrize(
    ("rate_rps", "given", "lasts_s"), [(5.0, None, 3600), (1000.0, None, 200), (100.0, "1h", 3600)]
)
def test_a_high_rate_lasts_for_200_000_requests_by_default(rate_rps, given, lasts_s) -> None:
    asked = CaseOptions(requests=LengthOptions(input_tokens="9", output_tokens="9"))
    traffic = TrafficOptions(request_rate=rate_rps, duration=given).of(asked, None)
    assert isinstance(traffic, DrawnTraffic) and traffic.duration_s == lasts_s


LENGTHS = ("--input-tokens", 9, "--output-tokens", 9)
BAD = [
    ((), "there is no traffic", "--trace, --request-rate"),
    (("--request-rate", 0, *LENGTHS), "0 is not a rate", "--request-rate"),
    (("--request-rate", 1e5, "--duration", "1min", *LENGTHS), "6,000,000 requ", "--duration"),
    (("--trace", "T", "--request-rate", 5), "the trace has its own", "--request-rate"),
    (("--trace", "T", "--traffic", 0), "not a factor", "--traffic"),
    (("--trace", "T", "--window", "0s"), "not a time", "--window"),
    (("--trace", "T", "--goodput", 1.5), "not a share", "--goodput"),
    (("--trace", "T", "--max-failed", -0.1), "-0.1 should be", "--max-failed"),
    (("--trace", "T", "--risk", 1), "not a risk", "--risk"),
    (("--trace", "T", "--draws", 0, "--risk", 0.1), "no probability, and no risk", "--risk"),
    (("--trace", "T", "--max-num-seqs", 0), "not above 0", "--max-num-seqs"),
    (("--trace", "T", "--draws", 8, "--risk", 0.01), "8 draws.*risk.*--draws 100 or", "--draws"),
    (("--trace", "T", "--llm-in-trace", "gpt"), "no request of the LLM 'gpt'", "--llm-in-trace"),
]


@pytest.mark.parametrize(("given", "problem", "field"), BAD, ids=lambda it: str(it))
def test_what_makes_no_sense_is_one_error_with_its_option(trace, given, problem, field) -> None:
    given = [trace if part == "T" else part for part in given]
    with pytest.raises(InputError, match=problem) as error:
        sextant("capacity", *LIMITS[:2], *ASKED, *given)
    assert error.value.field == field and error.value.fix


def test_points_of_servers_without_cuda_graphs_have_no_law_of_a_step(trace) -> None:
    with pytest.raises(InputError, match="no step can be simulated"):
        source = ("--source", "archive:llm-pilot", "--gpu-profiles", "1xH100-80GB")
        sextant("capacity", "--trace", trace, *LIMITS, *ASKED, *source)


def test_only_an_slo_with_arrivals_has_windows() -> None:
    slo = SLO("x", ttft_ms=100.0, percentile=95, trace_id="t", window_s=0.0, goodput=0.9)
    assert slo.facts()["trace_id"] == "t"
    for more in ({}, {"users": 3, "trace_id": "t"}, {"request_rate_rps": 3.0, "trace_id": "t"}):
        with pytest.raises(InputError, match="load"):
            SLO("x", ttft_ms=100.0, percentile=95, **more)
    for name in ("goodput", "window_s"):
        with pytest.raises(InputError, match="no arrivals to simulate") as error:
            SLO("x", ttft_ms=100.0, percentile=95, users=3, **{name: 0.5})
        assert error.value.field == name
    assert SLO("x", ttft_ms=9.0, percentile=95, request_rate_rps=3.0, window_s=60.0).window_s == 60


def test_a_part_of_an_answer_is_written_as_its_fields() -> None:
    growth = Growth(1.5, None, None, WindowsSummary(3, 1, 0.0, 2.0, "ttft"))
    assert facts_of([growth]) == [
        {
            "factor": 1.5,
            "replicas_needed": None,
            "usd_per_hour": None,
            "n_windows": 3,
            "n_windows_missed": 1,
            "failed_fraction": 0.0,
            "worst_ratio": 2.0,
            "worst_limit": "ttft",
        }
    ]
    assert facts_of(Slot("08:00", 2)) == {"slot": "08:00", "replicas": 2}


def test_one_window_and_one_request_are_written_as_one() -> None:
    assert missed_words(WindowsSummary(1, 0, 0.0, 0.5, None)) == "the only window met"
    assert missed_words(WindowsSummary(1, 1, 0.0, 0.5, None)) == "the only window missed"
    assert missed_words(WindowsSummary(3, 1, 0.0, 0.5, None)) == "1 of 3 windows missed"
    refused = CapacityOutcome(
        gpu_profile_id="1xg",
        status="refused",
        is_gpu_measured=True,
        alone=AloneResults(n_refused=1, refused_share=0.5),
    )
    said = outcome_cells(refused)[-1]
    assert "1 request (up to 50 % of the requests of a window)" in said
    one = replace(refused, status="meets", replicas=1, replicas_lo=1, replicas_hi=1)
    one = replace(one, usd_per_hour=1.0, probability_met=0.9)
    assert outcome_cells(one)[-1].endswith("at any mean rate; 90% interval 1 replica")


def test_of_a_long_day_the_peak_needs_more_than_the_night_and_holes_are_named(
    tmp_path, monkeypatch
) -> None:
    """A schedule once gave hours that were not simulated all replicas, and the peak fewer."""
    rates = np.array([1.0, 1.0, 10.0, 1.0])
    hours = [np.arange(0, 3600, 1 / rate) + 3600 * hour for hour, rate in enumerate(rates)]
    day = pd.DataFrame({"arrival_s": np.concatenate(hours), "input_tokens": 800})
    day.assign(output_tokens=150).to_csv(tmp_path / "day.csv", index=False)
    out = tmp_path / "day.parquet"
    sextant("ingest", tmp_path / "day.csv", "--format", "sextant", "--out", out)
    monkeypatch.setattr("sextant.workload.requests.MOST_SIMULATED", 40_000)
    asked = ("--hf-config", LLM, "--gpu-profiles", "1xH100-80GB", "--draws", 0, "--slot", "30min")
    asked += ("--trace", out, "--traffic", 4, "--ttft-ms", "p95:1000", "--tpot-ms", "p95:50")
    found = json.loads(sextant("capacity", *asked, "--format", "json"))

    n_requests = int(4 * sum(map(len, hours)))
    demand = found["demand"]
    assert demand["n_requests"] == n_requests > 40_000 >= demand["n_simulated"]
    assert demand["rate_rps"] == pytest.approx(n_requests / found["demand"]["duration_s"])
    by_slot = [slot["replicas"] for slot in found["schedule"]["by_slot"]]
    assert None in by_slot
    at_peak = [count for count in by_slot[4:6] if count is not None]
    quiet = [count for count in (*by_slot[:4], *by_slot[6:]) if count is not None]
    assert max(at_peak) == found["replicas"] > max(quiet)
    assert found["timeline"]["scheduled_replicas"] == by_slot == found["schedule"]["replicas"]
    assert all(rate > 0 for rate in found["timeline"]["request_rate_rps"][:-1])
    n_judged = sum(met is not None for met in found["timeline"]["fixed"]["is_met"])
    assert found["fixed"]["n_windows"] == n_judged < 48

    words = f"the busiest {n_judged} of 48 windows of 5 minutes"
    assert words in found["text"] and "not simulated" in found["text"]
    unknown = f"{by_slot.count(None)} slots not simulated, counted with all replicas"
    assert unknown in found["text"]
    sextant("capacity", *asked, "--format", "html", "--out", tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text("utf-8")
    assert unknown in " ".join(Page(html).text.split())


@pytest.mark.parametrize("llm", [("--llm", "openai__gpt-oss-120b"), ("--hf-config", LLM)])
def test_without_lengths_every_command_takes_the_same_and_says_so(llm) -> None:
    """`recommend` took those of the points, `capacity` and `simulate` refused the question."""
    asked = (*llm, "--source", "archive:inferencex", "--request-rate", 0.5, "--format", "json")
    asked += ("--ttft-ms", "9000")
    profiles = ("--gpu-profiles", "8xH200-141GB")
    recommended = json.loads(sextant("recommend", *asked, *profiles))
    sized = json.loads(sextant("capacity", *asked, *profiles, "--draws", 0))
    lasting = json.loads(sextant("capacity", *asked, *profiles, "--draws", 0, "--duration", "5min"))
    simulated = json.loads(
        sextant(
            "simulate", *asked, "--gpu-profile", "8xH200-141GB", "--draws", 0, "--duration", "5min"
        )
    )
    (note,) = (text for text in recommended["warnings"] if text.startswith("No lengths were given"))
    assert all(note in answer["warnings"] for answer in (sized, lasting, simulated))
    lengths = [float(word) for word in re.findall(r"\d+", note.partition(", those")[0])]
    for demand in (sized["demand"], lasting["demand"], simulated["load"]):
        means = demand["mean_input_tokens"], demand["mean_output_tokens"]
        assert means == pytest.approx(lengths, abs=1)
    serving = recommended["serving"]
    assert serving == sized["serving"] == lasting["serving"] == simulated["serving"]


def test_without_lengths_and_a_source_both_commands_ask_for_them() -> None:
    with pytest.raises(InputError, match="no step can be simulated") as error:
        sextant("capacity", *ASKED, "--request-rate", 5, "--ttft-ms", "p95:1000")
    assert "--input-tokens and --output-tokens" in error.value.fix


def test_text_and_json_say_how_a_replica_lies_on_its_gpus(answer) -> None:
    assert answer["tensor_parallel"] == 1
    assert answer["kv_tokens"] == answer["alternatives"][0]["kv_tokens"]
    said = f"tensor parallel 1, KV cache for {answer['kv_tokens']:,} tokens. Memory of a GPU"
    assert said in answer["text"]


def test_utilisation_is_one_figure_and_busy_another(answer) -> None:
    """`recommend` said 23 % and `simulate` 91.6 % of one deployment, both by the same name."""
    most_rps = answer["replicas"] * answer["rate_at_slo_rps"]
    assert answer["utilisation"] == pytest.approx(answer["demand"]["rate_rps"] / most_rps)
    assert f"utilisation {percent(answer['utilisation'])}" in answer["text"]
    assert "a replica serves" not in answer["text"]

    load = (*LENGTHS, "--request-rate", 6, "--format", "json")
    asked = ("--hf-config", LLM, "--gpu-profiles", "1xH100-80GB", *LIMITS[:4], *load)
    recommended = json.loads(sextant("recommend", *asked))
    sized = json.loads(sextant("capacity", *asked, "--draws", 0))
    assert recommended["replicas"] == sized["replicas"]
    used = recommended["cost"]["utilisation"]
    assert used == pytest.approx(sized["utilisation"], rel=0.1)

    profile = ("--gpu-profile", "1xH100-80GB", "--replicas", sized["replicas"], "--draws", 0)
    simulated = json.loads(sextant("simulate", "--hf-config", LLM, *profile, *load))
    assert "utilisation" not in simulated and simulated["busy_share"] > 1.5 * used
    glossary = (ROOT / "docs" / "glossary.md").read_text("utf-8")
    assert "| utilisation | The load over the most load" in glossary and "| busy | " in glossary
