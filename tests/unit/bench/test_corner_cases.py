"""The batches at the extremes of a batch weight, and how servers that fail them are told."""

import json

import pandas as pd
import pytest

from fake_servers import CPU, SETTINGS
from sextant.bench import tuning
from sextant.bench.tuning import CornerCase, corner_cases
from sextant.engine.protocol import ServerError
from sextant.engine.vllm import VLLMServer
from sextant.workload.prompts import RandomTokens
from sextant.workload.request_model import RequestModel

LENGTHS = (10, 100, 500), (20, 50, 100)
PROMPTS = RandomTokens(1000)


def test_cases_are_what_the_weight_allows():
    cases = corner_cases(10_000, *LENGTHS, max_num_seqs=256)
    assert [(case.n_requests, case.input_tokens, case.output_tokens) for case in cases] == [
        (1, 500, 100),
        (256, 10, 20),  # 333 would fit
        (19, 500, 20),  # 19 · 520 = 9,880
        (90, 10, 100),  # 90 · 110 = 9,900
        (66, 100, 50),  # 66 · 150 = 9,900
    ]
    assert len({case.name for case in cases}) == 5


def test_outputs_last_until_all_requests_have_begun():
    short = (10, 100, 500), (1, 2, 100)
    assert [case.output_tokens for case in corner_cases(10_000, *short, 256)] == [100, 4, 4, 100, 2]
    one = (10, 100, 500), (1, 1, 1)
    assert {case.output_tokens for case in corner_cases(10_000, *one, 256)} == {1}


def test_lengths_are_those_of_bins_and_caps():
    frame = pd.DataFrame({"input_tokens": [7.6, 40, 900], "output_tokens": [2, 0.4, 300]})
    frame["count"] = [6, 3, 1]
    model = RequestModel(frame)
    # Inputs: (6 · 7.6 + 3 · 40 + 900) / 10 = 106.6; outputs: (6 · 2 + 3 · 0.4 + 300) / 10 = 31.3.
    assert tuning.probe_lengths(model, "input_tokens", 512) == (8, 107, 512)
    assert tuning.probe_lengths(model, "output_tokens", 128) == (1, 31, 128)


@pytest.fixture
def servers(tmp_path):
    """Two fake servers, which are not started yet."""
    return [VLLMServer(CPU, SETTINGS, tmp_path / f"server-{number}.log") for number in range(2)]


def check(servers: list[VLLMServer], *cases: CornerCase) -> None:
    tuning.check_corner_cases(servers, cases, PROMPTS, seed=1, timeout_s=SETTINGS.request_timeout_s)


def test_every_replica_gets_the_whole_case(servers, monkeypatch):
    monkeypatch.setenv("FAKE_FAIL_AT", "4")
    with servers[0], servers[1]:
        check(servers, CornerCase("three", 3, 10, 4), CornerCase("one", 1, 20, 2))
    # The text of requests is nowhere in the log.
    prompt = json.dumps(PROMPTS.prompts([10], 1)[0].tolist())[1:-1]
    assert prompt not in servers[0]._log_text()
    monkeypatch.setenv("FAKE_CRASH", "torch.OutOfMemoryError: CUDA out of memory.")
    failing = pytest.raises(ServerError, match="corner case 'four' failed")
    with failing as caught, servers[0], servers[1]:
        check(servers, CornerCase("three", 3, 10, 4), CornerCase("four", 4, 10, 4))
    assert caught.value.is_out_of_memory


@pytest.mark.parametrize(
    ("message", "is_out_of_memory"), [("std::bad_alloc", True), ("unknown kernel", False)]
)
def test_an_engine_that_ends_tells_why(servers, monkeypatch, message, is_out_of_memory):
    monkeypatch.setenv("FAKE_CRASH", message)
    monkeypatch.setenv("FAKE_FAIL_AT", "2")
    monkeypatch.setenv("FAKE_LIVES_ON", "1")
    with pytest.raises(ServerError, match="HTTP 500") as caught, servers[0]:
        check(servers[:1], CornerCase("two", 2, 10, 4))
    assert caught.value.is_out_of_memory == is_out_of_memory
    assert message in str(caught.value)


def test_a_slow_server_lacks_no_memory(servers):
    with servers[0], pytest.raises(ServerError, match=r"no end within 0\.2 s") as caught:
        tuning.check_corner_cases(servers[:1], [CornerCase("long", 1, 10, 90)], PROMPTS, 1, 0.2)
    assert not caught.value.is_out_of_memory
    assert "Fix: raise engine.request_timeout_s" in str(caught.value)
