"""Logs of gateways, observability tools, engines and load tools, in the shapes that they have."""

import io
import json
from typing import Any

import pandas as pd
import pytest
from test_ingest_input import ingest

from sextant.base.errors import InputError
from sextant.trace.trace_format import published_formats

T0_S = 1_786_024_800  # 2026-08-06T14:00:00Z
T0_NS = T0_S * 10**9


def _lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def _attribute(key: str, value: Any) -> dict[str, Any]:
    kind = {str: "stringValue", int: "intValue", float: "doubleValue"}.get(type(value))
    if kind is None:
        values = [{"stringValue": one} for one in value]
        return {"key": key, "value": {"arrayValue": {"values": values}}}
    # OTLP JSON writes 64-bit integers as texts.
    return {"key": key, "value": {kind: str(value) if kind == "intValue" else value}}


def _span(number: int, code: int = 0, **attributes: Any) -> dict[str, Any]:
    named = {name.replace("__", "."): value for name, value in attributes.items()}
    return {
        "traceId": "ab" * 16,
        "spanId": f"{number:016x}",
        "name": "chat",
        "kind": 3,
        "startTimeUnixNano": str(T0_NS + number * 10**9),
        "endTimeUnixNano": str(T0_NS + number * 10**9 + 250_000_000),
        "attributes": [_attribute(key, value) for key, value in named.items()],
        "status": {"code": code} if code else {},
    }


def _otlp(*spans: dict[str, Any]) -> dict[str, Any]:
    resource = {"attributes": [_attribute("service.name", "chat-api")]}
    scope = {"scope": {"name": "opentelemetry.instrumentation.openai"}, "spans": [*spans]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [scope]}]}


CHAT = {"gen_ai__operation__name": "chat", "gen_ai__request__model": "qwen3"}
USED = {"gen_ai__usage__input_tokens": 100, "gen_ai__usage__output_tokens": 20}
OLD = {"gen_ai__usage__prompt_tokens": 70, "gen_ai__usage__completion_tokens": 7}
TRACELOOP = {"llm__usage__prompt_tokens": 60, "llm__usage__completion_tokens": 6}
SPANS = [
    _span(0, **CHAT, **USED, gen_ai__response__finish_reasons=["stop"]),
    _span(1, code=2, **CHAT, error__type="timeout"),
    _span(2, gen_ai__system="openai", **OLD),
    _span(3, llm__request__type="chat", **TRACELOOP),
    _span(4, http__request__method="GET"),
    _span(5, gen_ai__operation__name="invoke_agent", **USED),
    _span(6, gen_ai__operation__name="embeddings", gen_ai__usage__input_tokens=9),
]


def _document(pretty: bool) -> str:
    return json.dumps(_otlp(*SPANS), indent=2 if pretty else None)


@pytest.mark.parametrize(
    "text",
    [
        _document(pretty=True),
        _document(pretty=False),
        _lines(_otlp(*SPANS[:2]), _otlp(*SPANS[2:])),  # the collector's file exporter
        "".join(json.dumps(_otlp(span), indent=1) + "\n" for span in SPANS),
    ],
    ids=["pretty", "one line", "lines", "pretty values"],
)
def test_spans_in_otlp_json(tmp_path, text):
    trace, rejected, report = ingest(tmp_path, text, "otel", "spans.json")
    assert rejected.empty
    assert trace["arrival_s"].tolist() == [0, 1, 2, 3]
    assert trace["input_tokens"].tolist() == [100, 0, 70, 60]
    assert trace["output_tokens"].tolist() == [20, 0, 7, 6]
    assert trace["status"].tolist() == ["ok", "failed", "ok", "ok"]
    assert trace["e2e_ms"].tolist() == pytest.approx([250] * 4, abs=1e-3)
    assert set(trace["service"]) == {"chat-api"} and trace["llm"].tolist()[:2] == ["qwen3"] * 2
    assert report["n_left_out"] == 3 and report["n_read"] == 7
    assert report["n_left_out_by_value"]["gen_ai.operation.name=invoke_agent"] == 1
    assert report["start_time"] == "2026-08-06T14:00:00+00:00"


def test_spans_with_flat_keys_as_the_console_clickhouse_and_phoenix_write_them(tmp_path):
    flat = {"gen_ai.request.model": "m", "gen_ai.usage.input_tokens": 5}
    flat |= {"gen_ai.usage.output_tokens": 3}
    times = {"start_time": "2026-08-06T14:00:00.5Z", "end_time": "2026-08-06T14:00:01Z"}
    console = {"name": "chat m", "context": {"span_id": "0x1"}, **times}
    console |= {"status": {"status_code": "UNSET"}, "attributes": flat}
    later = console | {"start_time": "2026-08-06T14:00:02.5Z", "end_time": "2026-08-06T14:00:03Z"}
    text = json.dumps(console, indent=4) + "\n" + json.dumps(later, indent=4) + "\n"
    trace, _, _ = ingest(tmp_path, text, "otel", "console.log")
    assert trace["arrival_s"].tolist() == [0, 2] and trace["e2e_ms"].tolist() == [500, 500]

    row = {"Timestamp": "2026-08-06 14:00:00.250000000", "SpanId": "1", "Duration": 1_500_000_000}
    row |= {"ServiceName": "api", "StatusCode": "Error", "SpanAttributes": flat}
    trace, _, _ = ingest(tmp_path, _lines(row, row), "otel", "clickhouse.jsonl")
    assert trace["e2e_ms"].tolist() == [1500] * 2 and set(trace["service"]) == {"api"}
    assert set(trace["status"]) == {"failed"}

    table = "start_time,end_time,span_id,openinference.span.kind,llm.token_count.prompt,"
    table += "llm.token_count.completion,llm.model_name,status_code\n"
    table += "2026-08-06T14:00:00Z,2026-08-06T14:00:02Z,a,LLM,11,4,m,OK\n"
    table += "2026-08-06T14:00:00Z,2026-08-06T14:00:03Z,b,CHAIN,11,4,,OK\n"
    trace, _, report = ingest(tmp_path, table, "otel", "phoenix.csv")
    assert trace["input_tokens"].tolist() == [11] and trace["e2e_ms"].tolist() == [2000]
    assert report["n_left_out_by_value"] == {"openinference.span.kind=CHAIN": 1}


def test_vllms_spans_have_n_answers_and_epoch_times(tmp_path):
    span = _span(0, **OLD, gen_ai__request__n=2, gen_ai__latency__e2e=0.2)
    span["name"] = "llm_request"
    trace, _, report = ingest(tmp_path, _lines(_otlp(span)), "otel", "t.jsonl")
    assert trace["output_tokens"].tolist() == [4, 3] and trace["input_tokens"].tolist() == [70, 70]
    assert trace["request_id"].tolist() == ["0" * 16, "0" * 16 + "/2"]
    assert trace["e2e_ms"].tolist() == [200, 200]
    assert (report["n_accepted"], report["n_further_answers"], report["n_read"]) == (2, 1, 1)


def _generation(number: int, **more: Any) -> dict[str, Any]:
    times = {"startTime": f"2026-08-06T14:00:0{number}.000Z"}
    times |= {"endTime": f"2026-08-06T14:00:0{number}.800Z"}
    return (
        {"id": f"o{number}", "type": "GENERATION", "model": "m", "level": "DEFAULT"} | times | more
    )


def test_langfuse_by_api_and_in_older_and_newer_exports(tmp_path):
    buckets = {"input": 10, "input_cached_tokens": 500, "cache_read_input_tokens": 4}
    buckets |= {"output": 7, "output_reasoning_tokens": 3, "total": 524}
    rows = [
        _generation(0, usageDetails=buckets),
        _generation(1, usageDetails={}, level="ERROR", statusMessage="429"),
        _generation(2, usage={"input": 9, "output": 2, "total": 11, "unit": "TOKENS"}),
        _generation(3, promptTokens=8, completionTokens=1),
        _generation(4, type="SPAN"),
    ]
    answer = {"data": rows, "meta": {"page": 1, "totalItems": 5}}
    trace, rejected, report = ingest(tmp_path, json.dumps(answer), "langfuse", "t.json")
    assert rejected.empty and trace["input_tokens"].tolist() == [514, 0, 9, 8]
    assert trace["output_tokens"].tolist() == [10, 0, 2, 1]
    assert trace["status"].tolist() == ["ok", "failed", "ok", "ok"]
    assert trace["e2e_ms"].tolist() == pytest.approx([800] * 4)
    assert report["n_left_out_by_value"] == {"type=SPAN": 1}

    # The table of an export to blob storage has the usage as JSON in a cell.
    cell = json.dumps(buckets).replace('"', '""')
    head = "id,type,start_time,end_time,provided_model_name,usage_details,level\n"
    line = (
        f'o1,GENERATION,2026-08-06 14:00:00.100000,2026-08-06 14:00:01.100000,m,"{cell}",DEFAULT\n'
    )
    trace, _, report = ingest(tmp_path, head + line, "langfuse", "observations.csv")
    assert trace["input_tokens"].tolist() == [514] and trace["output_tokens"].tolist() == [10]
    assert trace["e2e_ms"].tolist() == [1000] and trace["llm"].tolist() == ["m"]


def test_exclusive_buckets_that_are_not_added_are_named(tmp_path):
    rows = [
        _generation(i, usageDetails={"input": 10, "input_cached_tokens": 500 * i, "output": 2})
        for i in range(3)
    ]
    columns = "arrival=startTime,input_tokens=usageDetails.input,output_tokens=usageDetails.output"
    _, _, report = ingest(tmp_path, _lines(*rows), "columns", "t.jsonl", columns=columns)
    facts = report["tokens_left_out"]["usageDetails.input_cached_tokens"]
    assert (facts["n_larger"], facts["mean_tokens"]) == (2, 500)
    added = columns.replace("usageDetails.input,", facts["formula"] + ",")
    trace, _, report = ingest(tmp_path, _lines(*rows), "columns", "t.jsonl", columns=added)
    assert trace["input_tokens"].tolist() == [10, 510, 1010] and report["tokens_left_out"] == {}


def _message(**more: Any) -> dict[str, Any]:
    usage = {"input_tokens": 3, "cache_creation_input_tokens": 20, "output_tokens": 8}
    usage |= {"cache_read_input_tokens": 400}
    about = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude"}
    return about | {"stop_reason": "end_turn", "usage": usage} | more


def test_anthropics_messages_in_a_log_and_a_transcript(tmp_path):
    logged = [
        {"timestamp": T0_S, "response": _message()},
        {"timestamp": T0_S + 1, "response": _message(stop_reason="max_tokens")},
        {
            "timestamp": T0_S + 2,
            "response": {"type": "error", "error": {"type": "overloaded_error"}},
        },
    ]
    trace, _, _ = ingest(tmp_path, _lines(*logged), "anthropic", "t.jsonl")
    assert trace["input_tokens"].tolist() == [423, 423, 0]
    assert trace["status"].tolist() == ["ok", "ok", "failed"]

    about = {"sessionId": "s", "requestId": "r", "timestamp": "2026-08-06T14:00:00.000Z"}
    lines = [about | {"type": "user", "message": {"role": "user", "content": "hi"}}]
    lines += [about | {"type": "assistant", "message": _message()}]
    trace, _, report = ingest(tmp_path, _lines(*lines), "anthropic", "t.jsonl")
    assert trace["session_id"].tolist() == ["s"] and report["n_left_out"] == 1


def test_results_of_message_batches_have_no_times(tmp_path):
    results = [
        {"custom_id": "a", "result": {"type": "succeeded", "message": _message()}},
        {
            "custom_id": "b",
            "result": {
                "type": "errored",
                "error": {"type": "error", "error": {"type": "invalid_request_error"}},
            },
        },
        {"custom_id": "c", "result": {"type": "expired"}},
        {"custom_id": "d", "result": {"type": "canceled"}},
    ]
    trace, _, report = ingest(tmp_path, _lines(*results), "anthropic", "results.jsonl")
    assert trace["status"].tolist() == ["ok", "failed", "failed", "failed"]
    assert trace["input_tokens"].tolist() == [423, 0, 0, 0] and set(trace["arrival_s"]) == {0}
    assert report["has_no_times"] and report["start_time"] is None


def test_openais_responses_and_batches(tmp_path):
    usage = {"input_tokens": 36, "input_tokens_details": {"cached_tokens": 30}, "output_tokens": 8}
    response = {"id": "resp_1", "object": "response", "created_at": T0_S, "model": "m"}
    response |= {"error": None, "incomplete_details": None, "usage": usage}
    statuses = ("completed", "incomplete", "failed", "cancelled")
    rows = [response | {"status": status} for status in statuses]
    rows[2] |= {"usage": None, "error": {"code": "server_error", "message": "x"}}
    rows[3] |= {"usage": None}
    trace, _, report = ingest(tmp_path, _lines(*rows), "openai", "t.jsonl")
    assert trace["status"].tolist() == ["ok", "ok", "failed", "failed"]
    assert trace["input_tokens"].tolist() == [36, 36, 0, 0] and report["tokens_left_out"] == {}

    body = {"created": T0_S, "model": "m", "usage": {"prompt_tokens": 9, "completion_tokens": 4}}
    batch = [
        {
            "id": "b0",
            "custom_id": "q0",
            "response": {"status_code": 200, "body": body},
            "error": None,
        },
        {"id": "b1", "custom_id": "q1", "response": None, "error": {"code": "batch_expired"}},
        {
            "id": "b2",
            "custom_id": "q2",
            "response": {"status_code": 200, "body": rows[0]},
            "error": None,
        },
    ]
    trace, _, report = ingest(tmp_path, _lines(*batch), "openai", "t.jsonl")
    assert trace["request_id"].tolist() == ["q0", "q1", "q2"]
    assert trace["status"].tolist() == ["ok", "failed", "ok"] and report["n_placed"] == 1
    assert trace["input_tokens"].tolist() == [9, 0, 36]


def test_several_answers_are_a_row_each(tmp_path):
    choices = [{"index": i, "finish_reason": "stop"} for i in range(3)]
    about = {"id": "c", "created": T0_S, "model": "m", "choices": choices}
    row = about | {"usage": {"prompt_tokens": 9, "completion_tokens": 10}}
    trace, _, report = ingest(
        tmp_path, _lines(row, row | {"choices": choices[:1]}), "openai", "t.jsonl"
    )
    assert trace["output_tokens"].tolist() == [4, 3, 3, 10] and report["n_further_answers"] == 2


def test_litellms_answers_of_its_cache_never_reached_the_llm(tmp_path):
    row = {"request_id": "a", "call_type": "acompletion", "model": "m", "status": "success"}
    row |= {"startTime": "2026-08-06T14:00:00.000Z", "endTime": "2026-08-06T14:00:02.500Z"}
    row |= {"prompt_tokens": 5, "completion_tokens": 6, "cache_hit": "False"}
    hit = row | {"cache_hit": "True", "prompt_tokens": 0, "completion_tokens": 0}
    failed = row | {
        "call_type": "",
        "status": "failure",
        "prompt_tokens": 0,
        "completion_tokens": 0,
    }
    trace, rejected, report = ingest(tmp_path, _lines(row, hit, hit, failed), "litellm", "t.jsonl")
    assert rejected.empty and report["n_left_out_by_value"] == {"cache_hit=True": 2}
    assert trace["status"].tolist() == ["ok", "failed"] and trace["e2e_ms"].tolist() == [2500] * 2


def test_sglangs_metrics_and_request_logs(tmp_path):
    meta = {"id": "r0", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 23}
    meta |= {"completion_tokens": 41, "cached_tokens": 16, "e2e_latency": 2.5}
    dated = {"request_received_ts": T0_S + 0.5, "response_sent_to_client_ts": T0_S + 3.0}
    aborted = {"finish_reason": {"type": "abort", "message": "x", "status_code": 503}}
    parameters = {"request_parameters": json.dumps({"rid": "r0"})}
    rows = [
        parameters | meta | dated,
        parameters | meta | dated | aborted | {"completion_tokens": 0},
    ]
    trace, _, _ = ingest(tmp_path, _lines(*rows), "sglang", "sglang-request-metrics-1.log")
    assert trace["status"].tolist() == ["ok", "failed"] and trace["e2e_ms"].tolist() == [2500] * 2
    assert trace["input_tokens"].tolist() == [23, 23]

    # Without metrics a record has the time at which it was sent, and how long it took.
    old = parameters | meta | {"response_sent_to_client_ts": T0_S + 3.0}
    trace, _, report = ingest(tmp_path, _lines(old, old), "sglang", "t.log")
    assert report["first_tick_s"] == T0_S + 0.5 and trace["arrival_s"].tolist() == [0, 0]

    lines = [
        {"timestamp": "2026-08-06T14:00:00.500000", "event": "request.received", "rid": "r0"},
        {"timestamp": "2026-08-06T14:00:03.000000", "event": "request.finished", "rid": "r0"}
        | {"obj": {"stream": True}, "out": {"meta_info": meta}},
    ]
    trace, _, report = ingest(tmp_path, _lines(*lines), "sglang", "t.log")
    assert report["start_time"] == "2026-08-06T14:00:00.5" and report["n_left_out"] == 1
    assert trace["request_id"].tolist() == ["r0"] and trace["e2e_ms"].tolist() == [2500]


def test_aiperfs_records_keep_requests_that_were_cancelled(tmp_path):
    metadata = {"session_num": 45, "x_request_id": "7609", "x_correlation_id": "32ee"}
    metadata |= {"conversation_id": "77aa", "turn_index": 0, "benchmark_phase": "profiling"}
    metadata |= {"request_start_ns": T0_NS, "request_end_ns": T0_NS + 297_525_228}
    metrics = {
        "input_sequence_length": {"value": 550, "unit": "tokens"},
        "output_sequence_length": {"value": 9, "unit": "tokens"},
        "inter_chunk_latency": {"value": [4.89, 5.31], "unit": "ms"},
        "request_latency": {"value": 297.52, "unit": "ms"},
    }
    ok = {"metadata": metadata, "metrics": metrics, "error": None}
    later = metadata | {"request_start_ns": T0_NS + 10**9, "request_end_ns": T0_NS + 2 * 10**9}
    failed = {"metadata": later, "metrics": {"error_isl": {"value": 550, "unit": "tokens"}}}
    failed |= {"error": {"code": 499, "type": "RequestCancellationError", "message": "x"}}
    warm = {"metadata": metadata | {"benchmark_phase": "warmup"}, "metrics": metrics, "error": None}
    trace, _, report = ingest(tmp_path, _lines(warm, ok, failed), "aiperf", "profile_export.jsonl")
    assert trace["status"].tolist() == ["ok", "failed"] and trace["arrival_s"].tolist() == [0, 1]
    assert trace["input_tokens"].tolist() == [550, 550] and trace["output_tokens"].tolist() == [
        9,
        0,
    ]
    assert trace["e2e_ms"].tolist()[0] == pytest.approx(297.525228, abs=1e-3)
    assert set(trace["session_id"]) == {"32ee"} and report["n_left_out"] == 1


def test_inference_perfs_requests_older_and_newer(tmp_path):
    times = {"start_time": 1000.5, "end_time": 1002.0, "request": "{}", "response": "{}"}
    old = times | {"info": {"input_tokens": 7, "output_tokens": 5, "output_token_times": [1.0]}}
    new = {"request_metrics": {"text": {"input_tokens": 8}}, "input_tokens": 8}
    new |= {"response_metrics": {"output_tokens": 12, "server_usage": {"completion_tokens": 6}}}
    failed = {"input_tokens": 0, "output_tokens": 0, "output_token_times": []}
    rows = [old | {"error": None}, times | {"info": new, "error": None}]
    rows.append(
        times | {"info": failed, "error": {"error_type": "HTTP Error 429", "error_msg": ""}}
    )
    text = json.dumps(rows, indent=2)
    trace, _, _ = ingest(tmp_path, text, "inference-perf", "per_request_lifecycle_metrics.json")
    assert trace["input_tokens"].tolist() == [7, 8, 0] and trace["output_tokens"].tolist() == [
        5,
        6,
        0,
    ]
    assert trace["status"].tolist() == ["ok", "ok", "failed"]
    assert trace["e2e_ms"].tolist() == [1500] * 3


def _weka(**more: Any) -> dict[str, Any]:
    asked = {"type": "s", "model": "claude", "in": 200, "out": 30, "api_time": 2.0, "ttft": 0.5}
    requests = [
        asked | {"t": 0.0, "hash_ids": [1, 2, 3], "stop": "tool_use"},
        {
            "t": 10.0,
            "type": "subagent",
            "agent_id": "agent_001",
            "requests": [asked | {"t": 1.0, "hash_ids": [9]}],
        },
        {"t": 20.0, "type": "subagent", "agent_id": "agent_002", "requests": [asked | {"t": 21.0}]},
        asked | {"t": 30.0, "hash_ids": [1, 2, 3, 4]},
    ]
    about = {"id": "s0", "models": ["claude"], "block_size": 64, "hash_id_scope": "local"}
    return about | {"requests": requests} | more


@pytest.mark.parametrize("indent", [None, 2])
def test_wekas_traces_as_a_file_for_each_session(tmp_path, indent):
    text = json.dumps(_weka(), indent=indent)
    trace, _, _ = ingest(tmp_path, text, "kv-cache-tester", "t.json")
    # Times of an agent count from its start, or, as some files have it, from the session's.
    assert trace["arrival_s"].tolist() == [0, 11, 21, 30]
    assert [len(ids) for ids in trace["hash_ids"]] == [3, 1, 0, 4]
    assert set(trace["session_id"]) == {"s0"} and set(trace["llm"]) == {"claude"}


def test_blocks_of_another_size_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"blocks of 128 tokens.*64"):
        ingest(tmp_path, json.dumps(_weka(block_size=128)), "kv-cache-tester", "t.json")


def test_a_session_of_absurd_size_is_set_aside(tmp_path):
    good = _lines(_weka())
    huge = {"t": 0, "in": 10**9, "out": 1, "model": "m", "api_time": 1, "hash_runs": [[0, 10**9]]}
    deep = '{"t": 0, "requests": [' * 900 + "]}" * 900
    text = good + _lines({"id": "x", "requests": [huge]}) + f'{{"id": "y", "requests": [{deep}]}}\n'
    text += '{"id": 1, "requests": ' + "[" * 100_000 + "\n"
    trace, rejected, _ = ingest(tmp_path, text, "kv-cache-tester", "t.jsonl")
    assert len(trace) == 4 and len(rejected) == 3


def test_a_session_of_many_huge_requests_is_set_aside(tmp_path):
    row = {"t": 0, "in": 9_999_999, "out": 1, "model": "m", "api_time": 1}
    row |= {"hash_runs": [[0, 156_000]]}
    text = _lines(_weka()) + _lines({"id": "x", "requests": [row] * 300})
    trace, rejected, _ = ingest(tmp_path, text, "kv-cache-tester", "t.jsonl")
    assert len(trace) == 4 and len(rejected) == 1


def test_a_log_in_parquet_has_objects_sums_and_nan(tmp_path):
    usage = [{"input": 5.0, "cached": 7.0}, {"input": 6.0, "cached": float("nan")}]
    frame = pd.DataFrame(
        {"ts": [1, 2], "usage": usage, "out": [3, 4], "code": [200.0, float("nan")]}
    )
    content = io.BytesIO()
    frame.to_parquet(content)
    columns = "arrival=ts,input_tokens=usage.input+usage.cached,output_tokens=out,status=code"
    trace, _, _ = ingest(tmp_path, content.getvalue(), "columns", "t.parquet", columns=columns)
    assert trace["input_tokens"].tolist() == [12, 6] and set(trace["status"]) == {"ok"}


def test_every_format_states_lengths_and_times():
    for name, form in published_formats().items():
        assert {"input_tokens", "output_tokens"} <= form.columns.keys(), name
        assert "arrival_s" in form.columns or "end_s" in form.columns, name
