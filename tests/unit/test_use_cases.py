"""The four shipped use cases keep their published figures, and the finding they are there for."""

import numpy as np
import pytest

from sextant.base.errors import InputError
from sextant.workload.published import load_use_case, use_case_names

NAMES = ["text-generation", "question-answering", "summarization", "conversation"]


def mean(name: str, parameter: str) -> float:
    model = load_use_case(name).model
    return float(np.average(model.frame[parameter], weights=model.weights))


def quantile(name: str, parameter: str, share: float) -> float:
    return float(load_use_case(name).model.sample(200_000, seed=0)[parameter].quantile(share))


def test_summarization_and_conversation_have_the_long_inputs():
    # Papaioannou & Doudali, sections 3 and 4.
    assert use_case_names() == NAMES
    short = [mean(name, "input_tokens") for name in NAMES[:2]]
    long = [mean(name, "input_tokens") for name in NAMES[2:]]
    assert min(long) > 10 * max(short)


def test_means_are_those_published():
    # vLLM, Fig. 11: 19.31 and 58.45 tokens; ELI5, Table 1: 42.2 and 130.6 words of 4/3 tokens.
    assert mean("text-generation", "input_tokens") == pytest.approx(19.31, rel=0.01)
    assert mean("text-generation", "output_tokens") == pytest.approx(58.45, rel=0.01)
    assert mean("question-answering", "input_tokens") == pytest.approx(42.2 * 4 / 3, rel=0.01)
    assert mean("question-answering", "output_tokens") == pytest.approx(130.6 * 4 / 3, rel=0.01)


@pytest.mark.parametrize(
    ("name", "parameter", "median", "p90"),
    [
        ("summarization", "input_tokens", 7059, 12985),
        ("summarization", "output_tokens", 208, 371),
        ("conversation", "input_tokens", 1730, 5696),
        ("conversation", "output_tokens", 415, 834),
    ],
)
def test_quantiles_are_those_published(name, parameter, median, p90):
    # Sarathi-Serve, Table 2; a bin of 1/64 of the requests is as close as it gets.
    assert quantile(name, parameter, 0.5) == pytest.approx(median, rel=0.025)
    assert quantile(name, parameter, 0.9) == pytest.approx(p90, rel=0.025)


@pytest.mark.parametrize("name", NAMES)
def test_a_use_case_is_a_small_model_with_sources(name):
    case = load_use_case(name)
    assert case.sources and all(len(text) > 40 for text in case.sources)
    assert case.model.parameters == ["input_tokens", "output_tokens"]
    assert 1000 < len(case.model.frame) <= 64 * 64
    assert case.model.weights.sum() == pytest.approx(1)
    assert case.model.frame[["input_tokens", "output_tokens"]].min().min() >= 1
    assert case.model.frame.equals(load_use_case(name).model.frame)


def test_an_unknown_name_is_an_error():
    with pytest.raises(InputError, match=r"no use case 'chat'.*use one of text-generation"):
        load_use_case("chat")
