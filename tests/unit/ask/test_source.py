"""What an answer rests on: all that ships of today's engines, unless a source is named."""

import numpy as np
import pytest

from answers import recommended
from sextant.ask.case import Case, read_case
from sextant.ask.forecast import MEDIANS, Forecast, fit_predictor, make_predictor
from sextant.ask.question import Question
from sextant.ask.source import find_source, todays_sources
from sextant.facts.slo import SLO
from sextant.points.characterization import CHAT_SOURCE
from sextant.points.folder import shipped_sources
from sextant.workload.lengths import Length, RequestLengths
from support import ROOT

LLMS = ROOT / "resources" / "llms"
LLAMA = LLMS / "meta-llama__Llama-3.1-8B-Instruct.json"
REQUESTS = RequestLengths(Length(1500, 1500), Length(250, 250))
LIMITS = SLO("asked", ttft_ms=1000, itl_ms=50.0, percentile=50, users=16)
ASKED = Question(LIMITS, hf_config=LLAMA, requests=REQUESTS, gpu_profile_ids=("1xH100-80GB",))
NAMED = ("archive:inferencex",)


def of(question: Question) -> Case:
    return read_case(question, need_prices=False)


def fitted(question: Question) -> Forecast:
    """Return the forecast of a question at medians."""
    case = of(question)
    model = make_predictor(question, case.source.characterization.profiles)
    return fit_predictor(model, case, MEDIANS).forecast(case, question.slo)


def test_all_that_ships_of_todays_engines_counts_unless_a_source_is_named() -> None:
    parts = set(shipped_sources()) - {CHAT_SOURCE}
    assert len(parts) >= 4
    assert set(find_source(ASKED).names) == parts
    assert find_source(Question(LIMITS, hf_config=LLAMA)).names == [CHAT_SOURCE]
    assert set(todays_sources().points["source"]) == parts
    named = find_source(Question(LIMITS, hf_config=LLAMA, requests=REQUESTS, sources=NAMED))
    assert named.names == [*NAMED] and set(named.characterization.points["engine"]) == {"vllm"}


@pytest.mark.parametrize(
    ("change", "is_chat"),
    [
        ({"engine": "tgis"}, True),
        ({"engine": "sglang"}, False),
        ({"gpu_profile_ids": ("1xA10-24GB",)}, True),
        ({"gpu_profile_ids": ("1xA10-24GB", "1xH200-141GB")}, False),
        ({"gpu_profile_ids": ("1xL4-24GB",)}, False),
    ],
)
def test_tgis_answers_what_it_alone_covers(change, is_chat) -> None:
    question = Question(LIMITS, hf_config=LLAMA, requests=REQUESTS, **change)
    assert (find_source(question).names == [CHAT_SOURCE]) == is_chat


def test_an_engines_own_points_count_and_its_source_is_the_harness() -> None:
    case = of(Question(LIMITS, hf_config=LLAMA, requests=REQUESTS, engine="sglang"))
    points = case.source.characterization.points
    main = points[points["engine"] == "sglang"]["source"].mode()[0]
    assert main != points["source"].mode()[0]
    assert case.serving.engine_version in set(points["engine_version"])
    question = case.question
    forecast = fitted(question)
    names = forecast.model.posterior_.names
    assert ("itl_offset", "engine sglang") in names
    row = case.rows_at(forecast.model, [8], ["1xH100-80GB"])
    assert (row["source"] == main).all() and (row["engine"] == "sglang").all()
    only_vllm = fitted(Question(LIMITS, hf_config=LLAMA, requests=REQUESTS, sources=NAMED))
    assert ("itl_offset", "engine sglang") not in only_vllm.model.posterior_.names


@pytest.mark.parametrize(
    ("llm", "profile_id", "users"),
    [
        (LLAMA.stem, "1xH100-80GB", 16),
        ("meta-llama__Llama-3.1-70B-Instruct", "4xH100-80GB", 32),
        ("openai__gpt-oss-120b", "2xH200-141GB", 64),
        ("Qwen__Qwen3-32B", "1xB200-180GB", 8),
    ],
)
def test_more_sources_never_move_an_answer_beyond_its_interval(llm, profile_id, users) -> None:
    names = [f"{name}_{end}ms" for name in ("ttft", "itl") for end in ("lo_", "", "hi_")]
    found = []
    for sources in (NAMED, ()):
        question = Question(
            LIMITS, hf_config=LLMS / f"{llm}.json", requests=REQUESTS, sources=sources
        )
        found.append(fitted(question).latencies_at(profile_id, users)[names].to_numpy(float))
    (low, before, high), (now_low, after, now_high) = np.reshape(found, (2, 2, 3)).swapaxes(1, 2)
    assert (low < after).all() and (after < high).all(), (before, after)
    assert (now_low < before).all() and (before < now_high).all(), (before, after)


def test_an_answer_says_in_one_line_what_it_learned_from() -> None:
    answer = recommended(ASKED)
    names = find_source(ASKED).names
    assert answer["source"] == " + ".join(names)
    (line,) = [line for line in answer["text"].splitlines() if line.startswith("From ")]
    assert all(name in line for name in names)
    assert not any("left out as wrong" in warning for warning in answer["warnings"])
    facts = answer["characterization"]
    assert any("left out as wrong" in sentence for sentence in facts["left_out"])
    assert len(facts["attributions"]) == len(names) and facts["note"] is None
    outside = [warning for warning in answer["warnings"] if warning.startswith("Outside of")]
    assert all(f"{len(names)} sources measured" in warning for warning in outside)
