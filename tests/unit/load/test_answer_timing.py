"""Answers of a known timing, however a server tells them: 12 tokens, 51 ms and then each 10 ms."""

import json

import numpy as np
import pytest

from sextant.load import answer
from sextant.load.client import Exchange, ExchangeTimes
from sextant.load.source import Form, Text, prepare

N, TTFT_MS, ITL_MS = 12, 51, 10
DONE = "data: [DONE]\n\n"
SENT_NS = 5_000_000_000


def read(events: list[str], end: str = DONE, n: int = N, times_ms=None, **form) -> Exchange:
    """Read events of a known time, and the end with the last."""
    prompt = Text("a" * 8, 8) if form.pop("is_text", False) else np.arange(8)
    times = ExchangeTimes(scheduled_ns=SENT_NS, ready_ns=SENT_NS, sent_ns=SENT_NS)
    exchange = Exchange(prepare("m", "r", prompt, n, form=Form(**form)), 0, times)
    exchange.head.http_status = 200
    times_ms = times_ms or [TTFT_MS + ITL_MS * place for place in range(len(events))]
    times_ns = [SENT_NS + at_ms * 1_000_000 for at_ms in [*times_ms, times_ms[-1]]]
    texts = [text.encode() for text in [*events, end]]
    for at_ns, text in zip(times_ns, texts, strict=True):
        exchange.reader.feed(text, at_ns)
    exchange.reader.finish()
    answer.judge(exchange)
    return exchange


def event(text: str = "a", n_output: int | None = None, n_input: int = 8, **choice) -> str:
    body: dict = {"choices": [{"index": 0, "text": text, **choice}], "usage": None}
    if n_output is not None:
        body["usage"] = {"prompt_tokens": n_input, "completion_tokens": n_output}
    return f"data: {json.dumps(body)}\n\n"


def counted(*counts: int | None, n_input: int = 8) -> list[str]:
    return [event("a", count, n_input) for count in counts]


def total(n_output: int = N, n_input: int = 8) -> str:
    usage = {"prompt_tokens": n_input, "completion_tokens": n_output}
    return f"data: {json.dumps({'choices': [], 'usage': usage})}\n\n"


SILENT = [None] * (N - 2)
RISING, UNTOLD = counted(*range(1, N + 1)), counted(*[None] * N)
TOLD = total() + DONE
WELL = {
    "usage rises with each event": (RISING, TOLD),
    "usage at the end": (UNTOLD, TOLD),
    "usage with the last event": (counted(*[None] * (N - 1), N), DONE),
    "0 in the first, all at the end": (counted(0, *SILENT, N), DONE),
    "1 in the first, all at the end": (counted(1, *SILENT, N), DONE),
    "all in every event": (counted(*[N] * N), DONE),
    "each tenth event": (counted(*[None] * 9, 10, None, 12), DONE),
    "what was told is told again": (counted(*[0] * 9, 10, 10, 12), DONE),
    "a comment": ([': "completion_tokens": 99\n\n' + e for e in RISING], DONE),
    "another field": (["id: 9\nretry: 7\n" + e for e in RISING], DONE),
    "a byte order mark": (["\ufeff" + event(n_output=1), *RISING[1:]], DONE),
    "data lines": ([e.replace('"usage"', '\ndata: "usage"') for e in RISING], DONE),
    "data lines, usage at the end": (
        [e.replace('"choices"', '\ndata:"choices"') for e in UNTOLD],
        TOLD.replace('"usage"', '\ndata: "usage"'),
    ),
    "no blank lines": ([e[:-1] for e in RISING], DONE),
    "CR LF": ([e.replace("\n", "\r\n") for e in UNTOLD], TOLD.replace("\n", "\r\n")),
    "much after the end": (RISING, DONE + ": bye\n\n" * 99),
    "an event that says only why it ended": (UNTOLD, event("", finish_reason="length") + TOLD),
    "no text, for want of a tokenizer": ([event("") for _ in range(N)], TOLD),
    "text like usage": ([event(f'"usage": 9}}\n\n{DONE}', n + 1) for n in range(N)], DONE),
}


@pytest.mark.parametrize("told", WELL)
def test_the_times_are_the_tokens_however_they_are_told(told):
    events, end = WELL[told]
    exchange = read(events, end)
    assert (exchange.status, exchange.error, exchange.oddities) == ("ok", None, [])
    assert exchange.token_offsets_ms.tolist() == [TTFT_MS + ITL_MS * place for place in range(N)]
    assert (exchange.output_tokens, exchange.input_tokens) == (N, 8)
    assert exchange.times.first_token_ns == SENT_NS + 51_000_000
    assert exchange.times.last_token_ns == SENT_NS + 161_000_000


@pytest.mark.parametrize("counts", [[None] * N, range(1, N + 1)])
def test_events_that_come_twice_are_spread_and_told(counts):
    twice = [e for e in counted(*counts) for _ in range(2)]
    times_ms = [TTFT_MS + ITL_MS * (place // 2) for place in range(2 * N)]
    exchange = read(twice, total() + DONE, times_ms=times_ms)
    assert exchange.status == "ok" and exchange.oddities == [answer.MORE_EVENTS]
    assert exchange.token_offsets_ms.tolist() == [TTFT_MS + ITL_MS * place for place in range(N)]


def test_two_tokens_in_an_event():
    exchange = read(counted(1, 3, 5))
    assert (exchange.status, exchange.error) == ("incomplete", "5 of 12 output tokens")
    assert exchange.token_offsets_ms.tolist() == [51, 61, 61, 71, 71]
    timed = read(counted(None, None, None), total(5) + DONE, n=5)
    assert timed.status == "ok" and timed.oddities == [answer.FEWER_EVENTS]
    assert timed.token_offsets_ms.tolist() == [51, 61, 71]


def test_an_answer_that_a_proxy_held_back():
    exchange = read(RISING, times_ms=[165] * N)
    assert exchange.status == "ok" and exchange.oddities == [answer.AT_ONCE]
    in_one_event = read(counted(N))
    assert in_one_event.oddities == [answer.FEWER_EVENTS]
    assert in_one_event.token_offsets_ms.tolist() == [51]


@pytest.mark.parametrize("n_input", [0, 4, 9, -1, 10**12])
def test_an_input_other_than_was_sent(n_input):
    exchange = read(counted(*range(1, N + 1), n_input=n_input))
    assert exchange.status == "ok" and exchange.oddities == [answer.OTHER_INPUT]
    assert exchange.input_tokens == 8  # so many ids were sent


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ('data: {"error": {"message": "EngineCore died"}}\n\n' + DONE, "EngineCore died"),
        ('data: {"id": 1, "error": "CUDA error"}\n\n' + DONE, "CUDA error"),
        ('data: {"object": "error", "message": "gone"}\n\n' + DONE, "gone"),
        (event("", finish_reason="error") + DONE, "finish_reason error"),
        ("data: {half an event\n\n" + DONE, "not JSON: {half"),
        ("data: 7\n\n" + DONE, "Expected `object`, got `int`): 7"),
        ('event: error\ndata: {"code": 5}\n\n' + DONE, 'broke off: {"code": 5}'),
        (DONE + "event: error\n\n", "event 'error'"),
        (event("b", finish_reason="stop") + event("c") + DONE, "a second answer"),
        (DONE + event("c"), "a second answer"),
    ],
)
def test_what_breaks_off_after_the_last_token_has_failed(end, said):
    exchange = read(RISING, end)
    assert exchange.status == "incomplete" and said in exchange.error


def chat(n_output: int | None = None, **delta) -> str:
    return event(n_output=n_output).replace('"text": "a"', f'"delta": {json.dumps(delta)}')


@pytest.mark.parametrize(
    "first",
    [
        {"role": "assistant", "content": ""},
        {"role": "assistant", "content": "", "refusal": None, "name": "x", "id": 1},
        {"content": "", "service_tier": "default"},
        {"reasoning_content": "", "tool_calls": [], "annotations": ["x"]},
    ],
)
@pytest.mark.parametrize("is_counted", [True, False])
def test_an_opening_event_of_a_chat_is_no_token(first, is_counted):
    opening = chat(0 if is_counted else None, **first)
    tokens = [chat(n if is_counted else None, content="a") for n in range(1, N)]
    thought = chat(N if is_counted else None, reasoning_content="hm")
    times_ms = [3, *(TTFT_MS + ITL_MS * place for place in range(N))]
    exchange = read([opening, *tokens, thought], total() + DONE, times_ms=times_ms)
    assert (exchange.status, exchange.oddities) == ("ok", [])
    assert exchange.token_offsets_ms.tolist() == times_ms[1:]


def test_the_input_of_a_text_is_what_the_server_counts():
    exchange = read(counted(*range(1, N + 1), n_input=9), is_text=True)
    assert exchange.status == "ok" and exchange.oddities == [answer.OTHER_TEXT]
    assert exchange.input_tokens == 9
    untold = read(counted(*range(1, N + 1), n_input=0), is_text=True)
    assert untold.status == "incomplete" and "no usage" in untold.error


def test_an_answer_that_stops_early_has_failed_unless_it_may():
    events, end = counted(*[None] * 7), total(7) + DONE
    assert read(events, end).error == "7 of 12 output tokens"
    exchange = read(events, end, may_stop=True)
    assert (exchange.status, exchange.oddities) == ("ok", [answer.STOPPED])
    assert (exchange.output_tokens, len(exchange.token_offsets_ms)) == (7, 7)
    assert read([""], total(0) + DONE, may_stop=True).status == "incomplete"


@pytest.mark.parametrize(
    "choices", ['{"text": "a", "index": 1}', '{"text": "a"}, {"text": "b", "index": 1}']
)
def test_a_second_choice_was_not_asked_for(choices):
    other = f'data: {{"choices": [{choices}]}}\n\n'
    exchange = read([other, *RISING])
    assert exchange.status == "incomplete" and "a second answer" in exchange.error
