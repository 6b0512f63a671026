"""Logs of anybody: columns that the user names, nested ones, units of time, unknown columns."""

import io
import json
from typing import Any, get_args, get_type_hints

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ingest_input import AZURE, MOONCAKE, ingest
from typer.testing import CliRunner

from sextant.base.errors import InputError
from sextant.base.sheets import load_sheet
from sextant.cli.app import app
from sextant.experiment.sheets import TraceRow
from sextant.trace.mapping import named_format
from sextant.trace.metrics_trace import PROMETHEUS
from sextant.trace.trace_format import MAPPED, published_formats
from sextant.trace.trace_format import NUMBER_UNITS as TIME_UNITS

OPENAI = (
    "arrival=created,input_tokens=usage.prompt_tokens,output_tokens=usage.completion_tokens,"
    "llm=model,request_id=id"
)


def _records(n: int = 4, step: float = 0.5) -> list[dict[str, Any]]:
    about = {"model": "m", "choices": [{"text": "…"}]}
    return [
        {"id": f"chatcmpl-{number}", "created": 1_700_000_000 + number * step, **about}
        | {"usage": {"prompt_tokens": 10 + number, "completion_tokens": number % 3}}
        for number in range(n)
    ]


def _lines(records: list[dict[str, Any]]) -> str:
    return "\n".join(json.dumps(record) for record in records)


def test_usage_records_of_a_gateway_are_read_by_the_names_the_user_gives(tmp_path):
    trace, _, report = ingest(tmp_path, _lines(_records()), "columns", "t.jsonl", columns=OPENAI)
    assert trace["arrival_s"].tolist() == [0, 0.5, 1, 1.5]
    assert trace["input_tokens"].tolist() == [10, 11, 12, 13]
    assert trace["status"].tolist() == ["failed", "ok", "ok", "failed"]
    assert (trace["llm"][0], trace["request_id"][3]) == ("m", "chatcmpl-3")
    assert report["ignored_columns"] == ["choices"]
    assert report["provenance"]["columns"] == OPENAI
    # Seconds since 1970 tell the date.
    assert report["start_time"] == "2023-11-14T22:13:20+00:00"


def test_responses_of_an_openai_api_are_read_as_they_are(tmp_path):
    text = _lines([{"error": "timeout"}, *_records(step=1)])
    trace, rejected, report = ingest(tmp_path, text, "openai", "t.jsonl")
    # The failed request, which has no time, has that of its neighbour.
    assert trace["arrival_s"].tolist() == [0, 0, 1, 2, 3] and rejected.empty
    assert trace["output_tokens"].tolist() == [0, 0, 1, 2, 0] and set(trace["llm"][1:]) == {"m"}
    assert (report["n_failed"], report["n_placed"]) == (3, 1)
    assert report["start_time"] == "2023-11-14T22:13:20+00:00"


def test_payloads_of_litellm_are_read_as_they_are_failures_too(tmp_path):
    payload = {"id": "a", "startTime": 1_700_000_000.25, "model": "m", "metadata": {"user": "x"}}
    ok = payload | {"prompt_tokens": 9, "completion_tokens": 4, "status": "success"}
    failed = ok | {"startTime": 1_700_000_000.0, "completion_tokens": 0, "status": "failure"}
    trace, _, report = ingest(tmp_path, _lines([ok, failed]), "litellm", "t.jsonl")
    assert trace["status"].tolist() == ["failed", "ok"] and report["n_moved"] == 1
    assert trace["arrival_s"].tolist() == [0, 0.25]
    assert report["ignored_columns"] == ["metadata.user"]
    # Its database and exports have date-times.
    times = [{"startTime": f"2023-11-14T22:13:2{at}Z"} for at in (0.25, 0.0)]
    dated = [ok | times[0], failed | times[1]]
    text = _lines([{"note": "no time"}, *dated])
    again, _, report = ingest(tmp_path, text, "litellm", "t.jsonl", max_rejected_fraction=0.5)
    assert again["arrival_s"].tolist() == [0, 0.25]
    assert report["start_time"] == "2023-11-14T22:13:20+00:00"


def test_a_log_is_csv_or_json_whatever_its_ending_and_needs_no_unit_for_date_times(tmp_path):
    """LiteLLM's spend log as a table was "no JSON object", JSON lines in a `.log` no columns."""
    rows = ["success,7,2026-06-01 09:00:00.500,9,x", "failure,,2026-06-01 09:00:01.500,9,y"]
    table = "\n".join(["status,completion_tokens,startTime,prompt_tokens,user", *rows])
    named = "arrival=startTime,input_tokens=prompt_tokens,output_tokens=completion_tokens"
    for form, columns in (("litellm", None), (MAPPED, f"{named},status=status")):
        trace, _, report = ingest(tmp_path, table, form, columns=columns)
        assert trace["arrival_s"].tolist() == [0, 1] and report["ignored_columns"] == ["user"]
        assert trace["status"].tolist() == ["ok", "failed"]
    trace, _, _ = ingest(tmp_path, _lines(_records()), MAPPED, "gateway.log", columns=OPENAI)
    assert trace["arrival_s"].tolist() == [0, 0.5, 1, 1.5]
    trace, _, _ = ingest(tmp_path, table.replace(",", ";"), "litellm", "t.csv")
    assert trace["arrival_s"].tolist() == [0, 1]
    with pytest.raises(InputError, match=r"Fix: put commas between .* in place of ';'"):
        ingest(tmp_path, f"{AZURE};x".replace(",", ";") + "\n", "azure", "t.csv")


def test_an_object_that_is_null_in_some_lines_is_not_left_out(tmp_path):
    records = [*_records(), _records()[0] | {"usage": None, "status": 503}]
    columns = f"{OPENAI},status=status"
    trace, _, report = ingest(tmp_path, _lines(records), MAPPED, "t.jsonl", columns=columns)
    assert report["ignored_columns"] == ["choices"] and len(trace) == 5


def test_bailian_and_azures_second_trace_are_read(tmp_path):
    row = '{"chat_id": %d, "parent_chat_id": -1, "timestamp": %s, "input_length": 521, '
    row += '"output_length": 132, "type": "text", "turn": 1, "hash_ids": [1, 2]}\n'
    text = row % (159, "61.114") + row % (160, "62.5")
    trace, _, _ = ingest(tmp_path, text, "qwen-bailian", "t.jsonl")
    assert trace["arrival_s"].tolist() == pytest.approx([0, 1.386])
    assert trace["request_id"].tolist() == ["159", "160"] and set(trace["service"]) == {"text"}
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
    trace, _, report = ingest(tmp_path, text + "2024-05-10 00:00:01+00:00,2399,6\n", "azure")
    assert trace["arrival_s"].tolist() == pytest.approx([0, 0.99007])
    assert report["start_time"] == "2024-05-10T00:00:00.00993+00:00"


@pytest.mark.parametrize(
    ("unit", "stamps"),
    [
        *[("s", [5, 5.25]), ("ms", [5000, 5250]), ("us", [5e6, 5.25e6])],
        ("ns", [5_000_000_000, 5_250_000_000]),
        ("iso", ["2024-05-10T00:00:05Z", "2024-05-10 00:00:05.25+00:00"]),
    ],
)
def test_units_of_time(tmp_path, unit, stamps):
    rows = "".join(f"{stamp},7,8,x\n" for stamp in stamps)
    columns = "arrival=when,input_tokens=in.tokens,output_tokens=out"
    text = f"when,in.tokens,out,other\n{rows}"
    trace, _, report = ingest(tmp_path, text, "columns", columns=columns, time_unit=unit)
    assert trace["arrival_s"].tolist() == [0, 0.25] and trace["input_tokens"].tolist() == [7, 7]
    assert report["ignored_columns"] == ["other"]
    assert (report["start_time"] is None) == (unit != "iso")


def test_parquet_with_structs_and_stamps(tmp_path):
    frame = pd.DataFrame(_records()).drop(columns="choices")
    frame["created"] = pd.to_datetime(frame["created"], unit="s", utc=True)
    content = io.BytesIO()
    frame.to_parquet(content)
    source = (content.getvalue(), "columns", "t.parquet")
    trace, _, report = ingest(tmp_path, *source, columns=OPENAI, time_unit="iso")
    assert trace["arrival_s"].tolist() == [0, 0.5, 1, 1.5]
    assert trace["output_tokens"].tolist() == [0, 1, 2, 0] and report["ignored_columns"] == []


MAPPING = """columns:
  arrival: created
  input_tokens: usage.prompt_tokens
  output_tokens: usage.completion_tokens
"""


def test_a_mapping_file_says_columns_unit_and_what_of_the_others(tmp_path):
    file = tmp_path / "gateway.yaml"
    file.write_text(f"{MAPPING}  llm: model\ntime_unit: ms\n")
    in_ms = [each | {"created": 1000 * each["created"]} for each in _records(step=0.5)]
    text = _lines(in_ms)
    trace, _, report = ingest(tmp_path, text, "columns", "t.jsonl", columns=str(file))
    assert trace["arrival_s"].tolist() == [0, 0.5, 1, 1.5] and set(trace["llm"]) == {"m"}
    assert report["ignored_columns"] == ["id", "choices"]
    assert report["provenance"]["columns"]["time_unit"] == "ms"
    file.write_text(f"{MAPPING}ignore_unknown: false\n")
    with pytest.raises(InputError, match="field 'id': unknown column"):
        ingest(tmp_path, text, "columns", "t.jsonl", columns=str(file))
    none = str(tmp_path / "none.yaml")
    with pytest.raises(InputError, match=r"none\.yaml: cannot be read"):
        ingest(tmp_path, text, "columns", "t.jsonl", columns=none)
    with pytest.raises(InputError, match="field 'time_unit': a mapping file has its own"):
        ingest(tmp_path, text, "columns", "t.jsonl", columns=str(file), time_unit="s")


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ("arrival=created", "input_tokens is missing"),
        ("arrival=created,tokens=x", "'tokens=x' names no column"),
        ("arrival=,input_tokens=a", "'arrival=' names no column"),
        ("arrival=a,arrival=b", "'arrival=b' is there twice"),
        ("arrival=a,input_tokens=a", "'input_tokens=a' is there twice"),
        (f"{OPENAI},e2e_ms=latency", "field 'latency': column missing.*the source has id, created"),
        # Contents of a file.
        ("", "field 'columns': it is missing"),
        ("- arrival", "no keys and values"),
        (MAPPING + "units: s", "field 'units': unknown field.*time_unit"),
        (MAPPING + "time_unit: min", "field 'time_unit': 'min' should be"),
        (MAPPING + "ignore_unknown: 3", "field 'ignore_unknown': 3 should be a valid boolean"),
        (MAPPING + "  llm: 5", "field 'columns.llm': 5 should be a valid string.*quotes"),
        (MAPPING + "  lm: model", "field 'columns': 'lm: model' names no column"),
        (MAPPING + "  arrival: ts", "the key 'arrival' is already in line 2"),
        ("columns: {arrival: a, arrival: b}", "the key 'arrival' is already in line 1"),
        ("columns: {arrival: ts}", "field 'columns': input_tokens is missing"),
    ],
)
def test_each_thing_wrong_in_a_mapping_is_one_error(tmp_path, columns, problem):
    if "=" not in columns:
        (tmp_path / "gateway.yml").write_text(columns)
        columns, problem = str(tmp_path / "gateway.yml"), rf"gateway\.yml.*{problem}"
    with pytest.raises(InputError, match=problem):
        ingest(tmp_path, _lines(_records()), "columns", "t.jsonl", columns=columns)


def test_what_belongs_to_a_mapping_alone_is_refused_elsewhere(tmp_path):
    columns = "arrival=t,input_tokens=in,output_tokens=out,status=s"
    with pytest.raises(InputError, match=r"s: neither ok nor failed.*HTTP codes \(2xx is ok\), ok"):
        ingest(tmp_path, "t,in,out,s\n0,1,1,lost\n", "columns", columns=columns)
    with pytest.raises(InputError, match="field 'columns': the format mooncake has its own"):
        ingest(tmp_path, MOONCAKE, "mooncake", "t.jsonl", columns=OPENAI)
    with pytest.raises(InputError, match="unknown unit 'min'"):
        ingest(tmp_path, "a\n", "columns", columns=OPENAI, time_unit="min")


def test_unknown_columns_are_named_or_left_out(tmp_path):
    text = MOONCAKE.replace("{", '{"region": {"name": "x"}, ')
    with pytest.raises(InputError, match=r"field 'region.name': unknown column.*--ignore-unknown"):
        ingest(tmp_path, text, "mooncake", "t.jsonl")
    trace, _, report = ingest(tmp_path, text, "mooncake", "t.jsonl", ignore_unknown=True)
    assert len(trace) == 1 and report["ignored_columns"] == ["region.name"]


@pytest.mark.parametrize("n_rows", [1, 3, 40])
@pytest.mark.parametrize("read_in", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("written_in", ["s", "ms", "us", "ns"])
def test_stamps_read_in_another_unit_are_refused_with_theirs(tmp_path, written_in, read_in, n_rows):
    # Milliseconds read as seconds gave the year 55,840 and 30 requests an hour for 8.3 a second.
    stamps = [int((1_700_000_000 + 0.12 * row) * TIME_UNITS[written_in]) for row in range(n_rows)]
    text = _lines([{"t": stamp, "in": 5, "out": 2} for stamp in stamps])
    source = (tmp_path, text, "columns", "t.jsonl")
    columns = {"columns": "arrival=t,input_tokens=in,output_tokens=out", "time_unit": read_in}
    if written_in == read_in:
        assert ingest(*source, **columns)[2]["start_time"].startswith("2023-11-14T22:13:20")
        return
    with pytest.raises(InputError, match=rf"of the year [\d,]+\. Fix: .*--time-unit {written_in} "):
        ingest(*source, **columns)


def test_rates_and_durations_that_no_service_has_are_asked_about(tmp_path):
    def of(step):
        text = "".join(f"{number * step},7,8\n" for number in range(40))
        return tmp_path, f"t,in,out\n{text}", "columns"

    columns = {"columns": "arrival=t,input_tokens=in,output_tokens=out"}
    with pytest.raises(InputError, match=r"2,051 requests per second on average .* the unit"):
        ingest(*of(0.5), **columns, time_unit="ms")
    assert ingest(*of(0.5), **columns, time_unit="ms", max_rate_rps=1e4)[2]["n_accepted"] == 40
    with pytest.raises(InputError, match=r"the requests are of 12.4 years. Fix: correct the unit"):
        ingest(*of(10_000_000), **columns)


def test_failed_requests_without_tokens_need_their_status(tmp_path):
    text = "t,in,out,code\n0,5,2,200\n1,,,429\n2,7,3,200\n"
    columns = "arrival=t,input_tokens=in,output_tokens=out"
    with pytest.raises(InputError, match=r"1 of 3 rows are malformed .*status=COLUMN"):
        ingest(tmp_path, text, "columns", columns=columns, max_rejected_fraction=0.1)
    assert ingest(tmp_path, text, "columns", columns=f"{columns},status=code")[2]["n_failed"] == 1


OK_WORDS = ["200", "201", "204.0", "ok", "SUCCESS", "completed", "true", "True"]
FAILED_WORDS = ["429", "500", "503.0", "302", "499", "error", "Failed", "timeout", "false"]


WORDS = st.sampled_from([*OK_WORDS, *FAILED_WORDS, "lost", "0", "", None])
TOKENS = (st.sampled_from([None, 0, 3]), st.sampled_from([None, 0, 5]))


@given(st.lists(st.tuples(WORDS, *TOKENS), min_size=1, max_size=40))
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_every_request_is_ok_failed_or_malformed_by_its_status(tmp_path_factory, ending, rows):
    rows = [("200", 3, 5), *rows]
    if ending == "csv":
        lines = [",".join(str("" if cell is None else cell) for cell in row) for row in rows]
        named = [f"{number},{line}" for number, line in enumerate(lines)]
        text = "\n".join(["ts,response.status,usage.in,usage.out", *named]) + "\n"
    else:
        records = []
        for number, (word, read, wrote) in enumerate(rows):
            status = {"status": int(word) if (word or "").isdigit() else word}
            usage = {} if read is wrote is None else {"usage": {"in": read, "out": wrote}}
            records.append({"ts": number, "response": status, **usage})
        text = _lines(records)
    columns = "arrival=ts,input_tokens=usage.in,output_tokens=usage.out,status=response.status"
    folder = tmp_path_factory.mktemp("statuses")
    source = (folder, text, "columns", f"t.{ending}")
    trace, rejected, report = ingest(*source, columns=columns, max_rejected_fraction=1.0)
    n_failed = sum(word in FAILED_WORDS or (not word and wrote == 0) for word, _, wrote in rows)
    n_ok = sum(
        (word in OK_WORDS or not word) and bool(read) and bool(wrote) for word, read, wrote in rows
    )
    assert report["n_read"] == len(rows) == len(trace) + len(rejected)
    assert (trace["status"] == "failed").sum() == report["n_failed"] == n_failed
    assert (trace["status"] == "ok").sum() == n_ok


def test_the_command_line_says_what_was_sorted_and_left_out(tmp_path):
    records = _records()
    (tmp_path / "log.ndjson").write_text(_lines([records[2], *records[:2], records[3]]))
    source, out = str(tmp_path / "log.ndjson"), ["--out", str(tmp_path / "t.parquet")]
    result = CliRunner().invoke(app, ["ingest", source, "--columns", OPENAI, *out])
    assert result.exit_code == 0, result.output
    assert "sorted by time: 2 rows were late, by up to 1 s" in result.output
    assert "columns left out (1): choices" in result.output
    result = CliRunner().invoke(app, ["ingest", source, *out])
    assert "its columns are id, created, model, choices, usage.prompt_tokens" in str(
        result.exception
    )
    assert "it looks like --format openai" in str(result.exception)
    assert "likely --columns 'arrival=created,input_tokens=usage.prompt_t" in str(result.exception)


def test_a_row_of_the_sheet_may_name_the_columns_of_a_log(tmp_path):
    sheet = tmp_path / "traces.tsv"
    names = ["trace_id", "dataset", "format", "columns", "time_unit", "ignore_unknown"]
    rows = [names, ["own", "log.jsonl", "columns", OPENAI, "ms", "true"]]
    sheet.write_text("\n".join("\t".join(row) for row in rows) + "\n")
    (row,) = load_sheet(sheet, TraceRow)
    assert [row[name] for name in names] == rows[1]
    form = named_format(row["format"], row["dataset"], row["columns"], row["time_unit"])
    assert form.units_per_s == 1000 and form.is_jsonl and form.ignores_unknown
    # Every format of the library may stand there.
    assert get_args(get_type_hints(TraceRow)["format"]) == (
        *published_formats(),
        PROMETHEUS,
        MAPPED,
    )
