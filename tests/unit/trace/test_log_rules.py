"""General rules by which logs are read: formulas, conditions, nulls, words, dates, refusals."""

import json
from typing import Any

import pytest
from test_ingest_input import ingest
from typer.testing import CliRunner

from sextant.base.errors import InputError
from sextant.cli.app import app
from sextant.trace import documents
from sextant.trace.date_forms import is_day_first, moment_of
from sextant.trace.formula import Condition, Formula, Term, is_error_name
from sextant.trace.report_lines import ingest_lines

COLUMNS = "arrival=ts,input_tokens=in,output_tokens=out"


def _table(*rows: str, head: str = "ts,in,out,status") -> str:
    return "\n".join([head, *rows]) + "\n"


def _read(tmp_path: Any, text: str, extra: str = ",status=status", **options: Any) -> tuple:
    return ingest(tmp_path, text, "columns", columns=COLUMNS + extra, **options)


def test_a_formula_is_alternatives_of_sums_with_factors():
    formula = Formula.parse("a.b + c*1000|d", below=["x"])
    assert formula.alternatives[0] == (Term("a.b"), Term("c", 1000.0))
    assert formula.names == ["a.b", "c", "x.a.b", "x.c", "d", "x.d"]
    assert formula.column is None and Formula.parse("a b").column == "a b"
    assert formula.among(["x.c", "d"]).names == ["x.c", "d"]
    pattern = Formula.parse("u.*input*")
    assert pattern.matching(["u.input", "u.cache_input", "u.output"]) == [
        "u.input",
        "u.cache_input",
    ]
    # A column that is called so is meant.
    assert Formula.parse("a|b").in_source(["a|b"]).column == "a|b"


def test_sums_alternatives_and_factors_of_a_table(tmp_path):
    text = _table("0,5,7,2,,0.5", "1,5,,2,,", "2,,,2,9,0.25", head="ts,in,cached,out,other,took")
    columns = "arrival=ts,input_tokens=in+cached|other,output_tokens=out,e2e_ms=took*1000"
    trace, _, _ = ingest(tmp_path, text, "columns", columns=columns)
    assert trace["input_tokens"].tolist() == [12, 5, 9]
    assert trace["e2e_ms"].tolist()[::2] == [500, 250] and trace["e2e_ms"].isna()[1]
    _, rejected, _ = ingest(tmp_path, text.replace(",7,", ",x,"), "columns", columns=columns)
    assert rejected["reason"].tolist() == ["in+cached|other: not a number"]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_conditions_leave_out_and_count(tmp_path, ending):
    kinds = ["chat", "embed", "Chat", "rerank", None]
    rows = [{"ts": i, "in": 3, "out": 4, "kind": kind} for i, kind in enumerate(kinds)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if ending == "csv":
        lines = (",".join(str(cell) for cell in row.values()) for row in rows)
        text = _table(*lines, head="ts,in,out,kind")
    source = (tmp_path, text, "columns", f"t.{ending}")
    trace, _, report = ingest(*source, columns=COLUMNS, where="kind=chat")
    assert len(trace) == 2 and report["n_read"] == 5 and report["n_rejected"] == 0
    assert report["n_left_out_by_value"] == {"no kind": 1, "kind=embed": 1, "kind=rerank": 1}
    assert report["provenance"]["where"] == "kind=chat"
    # A null is none of the values that are excluded.
    trace, _, _ = ingest(*source, columns=COLUMNS, where="kind!=embed|re*")
    assert len(trace) == 3
    with pytest.raises(InputError, match=r"all 5 are left out \(1 × kind=Chat.*no kind"):
        ingest(*source, columns=COLUMNS, where="kind=completion")
    with pytest.raises(InputError, match=r"field 'king': column missing.*the source has ts, in"):
        ingest(*source, columns=COLUMNS, where="king=chat")
    with pytest.raises(InputError, match=r"'kind' is no condition.*COLUMN=VALUE"):
        Condition.parse("kind")


@pytest.mark.parametrize("null", ["null", "NULL", r"\N", "None", "NaN", ""])
def test_texts_that_say_null(tmp_path, null):
    rows = [f"0,5,2,{null},{null}", f"1,{null},{null},error,a", f"{null},5,2,ok,b"]
    text = _table(*rows, head="ts,in,out,status,llm")
    trace, rejected, _ = _read(tmp_path, text, ",status=status,llm=llm")
    assert trace["status"].tolist() == ["ok", "failed"] and trace["llm"].isna()[0]
    assert rejected["reason"].tolist() == ["ts: missing value"]


OK = "stop length tool_calls function_call end_turn max_tokens incomplete STOP content_filter 200"
FAILED = "abort aborted canceled cancelled expired error timeout 499 429 errored deadline_exceeded"


@pytest.mark.parametrize(("words", "status"), [(OK, "ok"), (FAILED, "failed")])
def test_words_of_engines_and_apis(tmp_path, words, status):
    rows = [f"{number},5,2,{word}" for number, word in enumerate(words.split())]
    rows += [f"{len(rows)},5,2,{words.split()[0].replace('_', ' ').title()}"]
    trace, rejected, _ = _read(tmp_path, _table(*rows))
    assert rejected.empty and set(trace["status"]) == {status}


def test_a_list_of_answers_has_failed_where_one_did(tmp_path):
    reasons = [["stop", "length"], ["stop", "abort"], [], None]
    rows = [{"ts": i, "in": 1, "out": 2, "why": why} for i, why in enumerate(reasons)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    trace, _, _ = ingest(tmp_path, text, "columns", "t.jsonl", columns=f"{COLUMNS},status=why")
    assert trace["status"].tolist() == ["ok", "failed", "ok", "ok"]


def test_unknown_words_are_counted_and_the_fix_works(tmp_path):
    text = _table("0,5,2,ok", "1,5,2,lost", "2,5,2,lost", "3,5,2,partial")
    with pytest.raises(InputError) as error:
        _read(tmp_path, text, max_rejected_fraction=0.0)
    message = str(error.value)
    assert "line 3: status: neither ok nor failed ('lost')" in message
    assert "'lost' 2 times, 'partial' 1 times" in message
    assert "--status-words 'lost=failed,partial=failed'" in message
    trace, _, report = _read(tmp_path, text, status_words="lost=failed,partial=ok")
    assert trace["status"].tolist() == ["ok", "failed", "failed", "ok"]
    assert report["provenance"]["status_words"] == "lost=failed,partial=ok"
    with pytest.raises(InputError, match="'lost=bad' says neither"):
        _read(tmp_path, text, status_words="lost=bad")
    mapping = tmp_path / "m.yaml"
    mapping.write_text(
        "columns: {arrival: ts, input_tokens: in, output_tokens: out, status: status}\n"
        "status_words: {lost: failed, Partial: ok}\n"
    )
    trace, _, _ = ingest(tmp_path, text, "columns", columns=str(mapping))
    assert trace["status"].tolist() == ["ok", "failed", "failed", "ok"]


def test_a_column_of_errors_says_which_requests_failed(tmp_path):
    assert all(
        map(is_error_name, ["error", "error.code", "a.error.type", "error_code", "errorType"])
    )
    assert not any(
        map(is_error_name, ["metrics.error_isl.value", "error_count", "terror", "stderr_x"])
    )
    rows = [
        {"ts": 0, "in": 5, "out": 2, "error": None},
        {"ts": 1, "error": {"code": "rate_limit_exceeded", "message": "x"}},
        {"ts": 2, "in": 5, "out": 2, "error": ""},
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    trace, _, report = ingest(tmp_path, text, "columns", "t.jsonl", columns=COLUMNS)
    assert trace["status"].tolist() == ["ok", "failed", "ok"] and report["ignored_columns"] == []
    table = _table("0,5,2,", "1,,,503", head="ts,in,out,error_code")
    trace, _, _ = ingest(tmp_path, table, "columns", columns=COLUMNS)
    assert trace["status"].tolist() == ["ok", "failed"]


def test_failures_are_not_hidden_by_a_fix(tmp_path):
    rows = [f"{number},5,2,200" for number in range(97)] + [f"{97 + n},,,500" for n in range(3)]
    text = _table(*rows, head="ts,in,out,http_status")
    with pytest.raises(InputError, match=r"status=COLUMN, here http_status\).*neither as served"):
        ingest(tmp_path, text, "columns", columns=COLUMNS, max_rejected_fraction=0.01)
    columns = f"{COLUMNS},status=http_status"
    _, _, report = ingest(tmp_path, text, "columns", columns=columns, max_rejected_fraction=0.01)
    assert (report["n_failed"], report["n_rejected"]) == (3, 0)


def test_rows_that_generate_nothing_are_left_out_by_the_fix(tmp_path):
    rows = ["0,5,2,ok,chat", "1,5,0,ok,embedding"]
    text = _table(*rows, head="ts,in,out,status,route")
    with pytest.raises(InputError, match=r"--where COLUMN!=VALUE, here route"):
        _read(tmp_path, text, max_rejected_fraction=0.01)
    trace, _, _ = _read(tmp_path, text, where="route!=embedding", max_rejected_fraction=0.0)
    assert len(trace) == 1


def test_a_failed_request_without_a_time_has_that_of_its_neighbour(tmp_path):
    rows = [",,,500", "10,5,2,200", ",,,429", "12,5,2,200", "14,,,503"]
    trace, rejected, report = _read(tmp_path, _table(*rows))
    assert rejected.empty and report["n_placed"] == 2
    assert trace["arrival_s"].tolist() == [0, 0, 0, 2, 4]


def test_e2e_of_two_dates_and_arrivals_of_an_end(tmp_path):
    head = "start,end,in,out"
    rows = ["2026-08-06 14:00:00,2026-08-06 14:00:02.500,5,2", "2026-08-06 14:00:01,,5,2"]
    rows.append("2026-08-06 14:00:02,2026-08-06 14:00:02,5,2")
    rows.append("2026-08-06 14:00:09,2026-08-06 14:00:03,5,2")
    columns = "arrival=start,end=end,input_tokens=in,output_tokens=out"
    trace, rejected, _ = ingest(tmp_path, _table(*rows, head=head), "columns", columns=columns)
    assert trace["e2e_ms"].tolist()[0] == 2500 and trace["e2e_ms"].isna().tolist()[1:] == [
        True,
        True,
    ]
    assert rejected["reason"].tolist() == ["end: before the arrival"]
    columns = "end=end,e2e_ms=took,input_tokens=in,output_tokens=out"
    text = _table("100,250,5,2", "101,500,5,2", head="end,took,in,out")
    trace, _, _ = ingest(tmp_path, text, "columns", columns=columns)
    assert trace["arrival_s"].tolist() == [0, 0.75]


def test_ids_that_repeat_are_counted(tmp_path):
    text = _table("0,5,2,a", "0,5,3,a", "1,5,2,b", head="ts,in,out,id")
    _, _, report = _read(tmp_path, text, ",request_id=id")
    assert (report["n_accepted"], report["n_ids"]) == (3, 2)
    lines = ingest_lines(report, tmp_path / "t", tmp_path / "r")
    assert any(line.startswith("ids repeat: 3 requests, 2 ids") for line in lines)
    _, _, report = _read(tmp_path, text, "")
    assert report["n_ids"] is None


NOON_NS = 1_786_017_600 * 10**9  # 2026-08-06T12:00:00Z


@pytest.mark.parametrize(
    "text",
    [
        "2026-08-06 12:00:00",
        "2026/8/6 12:00",
        "2026-08-06T12:00:00.+00:00",
        "2026-08-06 12:00:00,000",
        "8/6/2026, 12:00:00 PM",
        "8/6/2026 12:00:00.000 p.m.",
        "8/6/2026 12:00",
        "8/6/2026, 12:00:00\u202fPM",
        "2026-08-06 12:00 PM",
        "06/Aug/2026:14:00:00 +0200",
        "[06/Aug/2026:12:00:00 +0000]",
        "Thu, 06 Aug 2026 12:00:00 GMT",
        "Aug 6, 2026 @ 12:00:00.000",
        "6 August 2026 12:00",
        "August 6, 2026, 12:00:00 PM",
    ],
)
def test_forms_of_a_date_time(text):
    assert moment_of(text, day_first=False)[0] == NOON_NS


def test_no_date_times():
    for text in ("8/6/2026 13:00 PM", "8/6/2026 0:30 AM", "13/6/2026 12:00", "6 Foo 2026", "12:00"):
        assert moment_of(text, day_first=False)[0] is None
    assert moment_of("8/6/2026 12:00")[0] is None and moment_of("8/6/2026 12:00 AM", False)[0]
    assert moment_of("12/6/2026 12:00 AM", day_first=True)[0] == moment_of("2026-06-12")[0]


@pytest.mark.parametrize(
    ("stamps", "unit", "start"),
    [
        (["06/08/2026 14:00:00", "13/08/2026 14:00:00"], "dmy", "2026-08-06T14:00:00"),
        (["08/06/2026 14:00:00", "08/13/2026 14:00:00"], "mdy", "2026-08-06T14:00:00"),
        (["6.8.2026 14:00", "7.8.2026 14:00"], "dmy", "2026-08-06T14:00:00"),
        (["8/6/2026 2:00:00 PM", "8/6/2026 2:00:01 PM"], "mdy", "2026-08-06T14:00:00"),
    ],
)
@pytest.mark.parametrize("stated", [None, "iso"])
def test_one_date_tells_the_order_of_all(tmp_path, stamps, unit, start, stated):
    text = _table(*(f"{stamp},5,2,ok" for stamp in stamps))
    _, rejected, report = _read(tmp_path, text, time_unit=stated)
    assert rejected.empty and report["read_time_unit"] == unit
    assert report["start_time"].startswith(start)
    lines = ingest_lines(report, tmp_path / "t", tmp_path / "r")
    assert any("first; --time-unit" in line for line in lines)


def test_an_order_that_nothing_tells_is_refused_with_the_fix(tmp_path):
    text = _table("06/08/2026 14:00:00,5,2,ok", "07/08/2026 14:00:00,5,2,ok")
    with pytest.raises(InputError, match=r"'ts': of '06/08/2026 14:00:00' .* --time-unit dmy"):
        _read(tmp_path, text)
    _, _, report = _read(tmp_path, text, time_unit="dmy")
    assert report["duration_s"] == 86_400 and report["start_time"].startswith("2026-08-06")
    with pytest.raises(InputError, match="unclear"):
        is_day_first(["1/2/2026"])


@pytest.mark.parametrize("per_s", [1, 1000, 10**6, 10**9])
def test_the_first_number_since_1970_tells_the_unit(tmp_path, per_s):
    stamps = [1_786_024_800 * per_s, 1_786_024_801 * per_s]
    _, _, report = _read(tmp_path, _table(*(f"{stamp},5,2,ok" for stamp in stamps)))
    assert report["duration_s"] == pytest.approx(1) and report["start_time"].startswith(
        "2026-08-06"
    )


def test_documents_hold_lists_of_requests(tmp_path):
    rows = [{"ts": i, "in": 5, "out": 2, "tags": [{"a": 1}]} for i in range(3)]
    documents = [rows, {"data": rows, "total": 3}, {"hits": {"total": 3, "hits": rows}}]
    documents += [{"pages": [{"items": rows[:1]}, {"items": rows[1:]}]}]
    for document in documents:
        for indent in (None, 1):
            text = json.dumps(document, indent=indent)
            trace, _, _ = ingest(tmp_path, text, "columns", "t.json", columns=COLUMNS)
            assert trace["arrival_s"].tolist() == [0, 1, 2]
    with pytest.raises(InputError, match="after 2 JSON values no JSON follows, or it is cut short"):
        text = json.dumps(rows)[:-30]
        ingest(tmp_path, text, "columns", "t.json", columns=COLUMNS)


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "own.csv",
            "when,tokens_in,tokens_out,model_name\n1,2,3,m\n",
            ["tokens_in,output_tokens="],
        ),
        ("own.csv", "startTime,prompt_tokens,completion_tokens\n1,2,3\n", ["--format litellm"]),
        ("own.csv", "x,y\n1,2\n", ["columns are x, y", "which column is arrival, input_tokens"]),
        ("own.json", '{"data": [{"ts": 1, "usage": {"prompt_tokens": 1}}]}', ["ts, usage.prompt"]),
        ("gone.csv", None, ["there is no such file"]),
    ],
)
def test_a_log_without_columns_is_shown_its_header_and_the_likely_mapping(
    tmp_path, name, text, says
):
    if text is not None:
        (tmp_path / name).write_text(text)
    arguments = ["ingest", str(tmp_path / name), "--out", str(tmp_path / "t.parquet")]
    message = str(CliRunner().invoke(app, arguments).exception)
    assert all(word in message for word in says), message


@pytest.mark.parametrize("delimiter", ["\t", ";", "|", ","])
@pytest.mark.parametrize("block_bytes", [20, 4 << 20])
def test_tables_with_other_delimiters_and_cells_over_several_lines(
    tmp_path, monkeypatch, delimiter, block_bytes
):
    monkeypatch.setattr(documents, "BLOCK_BYTES", block_bytes)
    prompt = '"a ""long"" prompt,\nof ; three\t|\n\nlines"'
    rows = [["ts", "in", "prompt", "out", "status"], ["0", "5", prompt, "2", "ok"]]
    rows += [["1", "6", '"one line"', "3", "ok"], ["2", "7", "plain", "4", "error"]]
    text = "".join(delimiter.join(row) + "\n" for row in rows)
    trace, rejected, _ = _read(tmp_path, text)
    assert rejected.empty and trace["input_tokens"].tolist() == [5, 6, 7]
    assert trace["output_tokens"].tolist() == [2, 3, 4]
    # A quote that is never closed spoils its own row.
    broken = text.replace('"one line"', '"one line')
    trace, rejected, _ = _read(tmp_path, broken)
    assert trace["input_tokens"].tolist() == [5, 7] and len(rejected) == 1


def test_columns_of_a_status_that_are_true_where_a_request_failed(tmp_path):
    for name, values in (
        ("cancelled", ["false", "true", ""]),
        ("a.error.code", ["", "quota", ""]),
    ):
        rows = [f"{number},5,2,{value}" for number, value in enumerate(values)]
        text = _table(*rows, head=f"ts,in,out,{name}")
        trace, rejected, _ = _read(tmp_path, text, f",status={name}")
        assert rejected.empty and trace["status"].tolist() == ["ok", "failed", "ok"]
    text = _table("0,5,2,,stop", "1,5,2,TRUE,", head="ts,in,out,was_cancelled,why")
    trace, _, _ = _read(tmp_path, text, ",status=was_cancelled|why")
    assert trace["status"].tolist() == ["ok", "failed"]


@pytest.mark.parametrize("block_bytes", [8, 16, 4 << 20])
def test_a_header_that_repeats_is_no_row(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(documents, "BLOCK_BYTES", block_bytes)
    text = _table("0,5,2,ok", "1,5,2,ok", "ts,in,out,status", "2,5,2,ok")
    trace, rejected, report = _read(tmp_path, text)
    assert rejected.empty and trace["arrival_s"].tolist() == [0, 1, 2]
    assert trace["request_id"].tolist() == ["2", "3", "5"] and report["n_blank_lines"] == 1


def test_a_text_that_holds_json_is_read_as_the_object(tmp_path):
    inner = [json.dumps({"ts": i, "usage": {"in": 5, "out": 2}}) + "\n" for i in range(3)]
    lines = "".join(json.dumps({"log": text, "stream": "stdout"}) + "\n" for text in inner)
    columns = "arrival=log.ts,input_tokens=log.usage.in,output_tokens=log.usage.out"
    trace, _, report = ingest(tmp_path, lines, "columns", "t.jsonl", columns=columns)
    assert trace["arrival_s"].tolist() == [0, 1, 2] and report["ignored_columns"] == ["stream"]
    (tmp_path / "own.jsonl").write_text(lines)
    arguments = ["ingest", str(tmp_path / "own.jsonl"), "--out", str(tmp_path / "t.parquet")]
    assert "arrival=log.ts" in str(CliRunner().invoke(app, arguments).exception)


def test_cached_tokens_beside_a_formats_input_are_named(tmp_path):
    usage = {"gen_ai.usage.input_tokens": 10, "gen_ai.usage.output_tokens": 2}
    usage |= {"gen_ai.usage.cache_read_input_tokens": 5000}
    times = {"start_time": "2026-08-06T14:00:00Z", "end_time": "2026-08-06T14:00:01Z"}
    _, _, report = ingest(tmp_path, json.dumps(times | {"attributes": usage}), "otel", "t.jsonl")
    (facts,) = report["tokens_left_out"].values()
    name = "attributes.gen_ai.usage"
    assert facts["formula"] == f"{name}.input_tokens+{name}.cache_read_input_tokens"


def test_a_time_that_is_none_is_refused_with_what_is_read(tmp_path):
    text = _table("14:00:03,5,2,ok", "14:00:04,5,2,ok")
    with pytest.raises(
        InputError, match=r"ts: not a date and time \('14:00:03'\).*YYYY-MM-DD HH:MM"
    ):
        _read(tmp_path, text, max_rejected_fraction=0.0)


def test_an_input_of_nothing_but_cached_tokens_has_the_sum_as_its_fix(tmp_path):
    text = _table("0,0,900,2", "1,5,0,2", head="ts,in,cache_read_input_tokens,out")
    with pytest.raises(InputError, match=r"input_tokens=in\+cache_read_input_tokens adds them"):
        _read(tmp_path, text, "", max_rejected_fraction=0.0)
    columns = COLUMNS.replace("=in,", "=in+cache_read_input_tokens,")
    trace, _, _ = ingest(tmp_path, text, "columns", columns=columns)
    assert trace["input_tokens"].tolist() == [900, 5]


def test_a_mapping_may_name_the_list_in_which_requests_lie(tmp_path):
    rows = [{"ts": i, "usage": {"in": 5, "out": 2}} for i in range(3)]
    text = json.dumps({"data": rows, "total": 3})
    columns = "arrival=data[].ts,input_tokens=data[].usage.in,output_tokens=data[].usage.out"
    trace, _, _ = ingest(tmp_path, text, "columns", "t.json", columns=columns)
    assert trace["arrival_s"].tolist() == [0, 1, 2]


def test_a_cell_that_holds_a_literal_of_python_is_read(tmp_path):
    text = _table("0,\"{'in': 5, 'out': None}\",2", "1,\"{'in': 6}\",3", head="ts,usage,out")
    columns = "arrival=ts,input_tokens=usage.in,output_tokens=out"
    trace, _, _ = ingest(tmp_path, text, "columns", columns=columns)
    assert trace["input_tokens"].tolist() == [5, 6]


def test_flat_lines_of_an_access_log_have_their_http_code(tmp_path):
    row = {
        "start_time": "2026-08-06T14:00:00.1Z",
        "response_code": 200,
        "gen_ai.request.model": "m",
    }
    row |= {"gen_ai.usage.input_tokens": "10", "gen_ai.usage.output_tokens": "4"}
    failed = row | {"response_code": 503, "gen_ai.usage.output_tokens": "0"}
    text = json.dumps(row) + "\n" + json.dumps(failed) + "\n"
    trace, _, _ = ingest(tmp_path, text, "otel", "access.log")
    assert trace["status"].tolist() == ["ok", "failed"]


@pytest.mark.parametrize("status", ["", ",status=status"])
def test_requests_without_status_and_tokens_fail_if_one_says_so(tmp_path, status):
    rows = [f"{number},5,2,stop" for number in range(90)]
    rows += [f"{90 + number},,,null" for number in range(10)]
    with pytest.raises(InputError, match=r"tokens failed, --status-words null=failed"):
        _read(tmp_path, _table(*rows), status, max_rejected_fraction=0.01)
    options = {"status_words": "null=failed", "max_rejected_fraction": 0.0}
    trace, _, report = _read(tmp_path, _table(*rows), status, **options)
    assert (report["n_failed"], report["n_rejected"], len(trace)) == (10, 0, 100)


def test_a_number_with_commas_is_refused_with_how_it_is_written(tmp_path):
    text = _table('0,"1,234",2,ok')
    with pytest.raises(InputError, match=r"in: not a number \('1,234'\).*a number is written 1234"):
        _read(tmp_path, text, max_rejected_fraction=0.0)
