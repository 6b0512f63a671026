"""Ingest: every format, every kind of bad row, and outputs that are whole or absent."""

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sextant.base.errors import InputError
from sextant.base.files import read_provenance, sha256_file
from sextant.trace.job import IngestSettings, ingest_trace
from sextant.trace.trace_format import TRACE_COLUMNS

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.0000000,374,44
2023-11-16 18:15:46.0000003,396,109
2023-11-16 18:15:47.5000000,879,0
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,0,1087,API log
"""
MOONCAKE = """{"timestamp": 1000, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1]}
{"timestamp": 1000, "input_length": 7322, "output_length": 490, "hash_ids": [0, 14]}
{"timestamp": 4001, "input_length": 7236, "output_length": 794, "hash_ids": [0, 28]}
"""
SEXTANT = "arrival_s,input_tokens,output_tokens"


def _ingest(
    source: Path, trace_format: str, **options: Any
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    out = source.parent / "out"
    paths = (out / "t.parquet", out / "r.parquet", out / "report.json")
    report = ingest_trace(source, trace_format, *paths, IngestSettings(**options))
    assert json.loads((out / "report.json").read_text()) == report
    return pd.read_parquet(out / "t.parquet"), pd.read_parquet(out / "r.parquet"), report


def _write(tmp_path: Path, text: str, name: str = "trace.csv") -> Path:
    (tmp_path / name).write_bytes(text.encode())
    return tmp_path / name


def _sextant_rows(*rows: str, n_good: int = 200) -> str:
    """Return a trace of `n_good` good rows, one a second, followed by `rows`."""
    good = [f"{second},10,5" for second in range(n_good)]
    return "\n".join([SEXTANT, *good, *rows]) + "\n"


def test_schema_is_the_trace_contract_with_provenance(tmp_path):
    source = _write(tmp_path, AZURE)
    _, _, report = _ingest(source, "azure")
    schema = pq.read_schema(tmp_path / "out" / "t.parquet")
    assert schema.names == list(TRACE_COLUMNS)
    assert schema.field("arrival_s").type == pa.float64()
    assert {schema.field(name).type for name in ("input_tokens", "output_tokens")} == {pa.int32()}
    for name in ("t.parquet", "r.parquet"):
        origin = read_provenance(tmp_path / "out" / name)
        assert origin == report["provenance"]
        assert origin["inputs_sha256"] == {"source": sha256_file(source)}
        assert origin["trace_format"] == "azure"
    compression = pq.ParquetFile(tmp_path / "out" / "t.parquet").metadata.row_group(0).column(0)
    assert compression.compression == "ZSTD"


def test_burstgpt_reads_both_headers_by_name(tmp_path):
    old, _, _ = _ingest(_write(tmp_path, BURSTGPT), "burstgpt")
    assert old["arrival_s"].tolist() == [0.0, 40.5]
    assert old["status"].tolist() == ["ok", "failed"]
    assert old["llm"].tolist() == ["ChatGPT", "GPT-4"]
    assert old["service"].tolist() == ["Conversation log", "API log"]
    header = "Session ID,Timestamp,Elapsed time,Log Type,Model"
    newer = f"""{header},Total tokens,Response tokens,Request tokens
7,5,1.25,"Conversation log","Chat""GPT"", 4",490,18,472
,45.5,,API log,GPT-4,1087,0,1087
"""
    new, _, _ = _ingest(_write(tmp_path, newer), "burstgpt")
    assert new["input_tokens"].tolist() == old["input_tokens"].tolist() == [472, 1087]
    assert new["output_tokens"].tolist() == old["output_tokens"].tolist() == [18, 0]
    assert new.loc[0, ["session_id", "e2e_ms", "llm"]].tolist() == ["7", 1250.0, 'Chat"GPT", 4']
    assert new.loc[1, ["session_id", "e2e_ms"]].isna().all()


BAD_ROWS = {
    "201,x,5": "input_tokens: not a number",
    '201,"1,5",5': "input_tokens: not a number",
    **{f"201,{n},5": "input_tokens: not finite" for n in ("NaN", "1e999", "1" + "0" * 400)},
    **{f"201,{n},5": "input_tokens: below 1" for n in (0, -3)},
    "201,10,-1": "output_tokens: below 0",
    "201,10.5,5": "input_tokens: not a whole number",
    "201,2147483648,5": "input_tokens: above the 32-bit range",
    "201,,5": "input_tokens: missing value",
    "201,10,": "output_tokens: missing value",
    ",10,5": "arrival_s: missing value",
    "nan,10,5": "arrival_s: not finite",
    "later,10,5": "arrival_s: not a number",
    "201,10": "wrong number of columns",
    "201,10,5,1": "wrong number of columns",
    '201,10,"5': "malformed quotes",
    "201,10,\x015": "output_tokens: not a number",
}
BAD_CELLS = {
    "temperature": ("-0.1", "temperature: below 0"),
    "top_k": ("-2", "top_k: below -1"),
    "is_greedy": ("perhaps", "is_greedy: neither true nor false"),
    "batch_size": ("0", "batch_size: below 1"),
    "status": ("lost", "status: neither ok nor failed"),
}
BAD_LINES = {
    '{"timestamp": 5000, "input_length": 3': "no JSON object",
    "[5000, 3, 4]": "no JSON object",
    "[" * 9_999: "no JSON object",
    '{"timestamp": 5000, "output_length": 3}': "input_length: missing value",
    '{"timestamp": 5000, "input_length": null, "output_length": 3}': "input_length: missing value",
    '{"timestamp": 5000, "input_length": "many", "output_length": 3}': "input_length: not a number",
    '{"timestamp": 5000, "input_length": [], "output_length": 3}': "input_length: not a number",
    '{"timestamp": 1%s, "input_length": 1, "output_length": 3}' % ("0" * 400): "timestamp: not",
    '{"timestamp": NaN, "input_length": 1, "output_length": 3}': "timestamp: not finite",
    '{"timestamp": 5, "input_length": 1, "output_length": 3, "x": "\\ud800"}': "no JSON object",
}
BAD_STAMPS = {
    "2023-13-16 18:15:48": "TIMESTAMP: not a date and time",
    "infinity": "TIMESTAMP: not a date and time",
    "": "TIMESTAMP: missing value",
}


@pytest.mark.parametrize(
    ("trace_format", "name", "head", "bad"),
    [
        ("sextant", "t.csv", _sextant_rows(), BAD_ROWS),
        ("mooncake", "t.jsonl", MOONCAKE, BAD_LINES),
        ("azure", "t.csv", AZURE, {f"{stamp},1,1": why for stamp, why in BAD_STAMPS.items()}),
        *(
            ("sextant", "t.csv", f"{SEXTANT},{name}\n0,10,5,\n", {f"1,10,5,{cell}": why})
            for name, (cell, why) in BAD_CELLS.items()
        ),
    ],
)
def test_bad_rows_are_put_aside_with_their_lines(tmp_path, trace_format, name, head, bad):
    source = _write(tmp_path, head + "\n".join(bad) + "\n", name)
    trace, rejected, report = _ingest(source, trace_format, max_rejected_fraction=1.0)
    first = head.count("\n") + 1
    assert rejected["line"].tolist() == list(range(first, first + len(bad)))
    assert rejected["raw"].tolist() == [*bad]
    for found, reason in zip(rejected["reason"], bad.values(), strict=True):
        assert found.startswith(reason)
    assert report["n_read"] == len(trace) + len(bad) and len(trace) == first - 1 - (".csv" in name)
    assert sum(report["n_rejected_by_reason"].values()) == len(bad)


def test_bound_on_bad_rows_is_inclusive_and_leaves_no_output(tmp_path):
    at_bound = _write(tmp_path, _sextant_rows("300,x,1", "301,,1", n_good=198))
    assert _ingest(at_bound, "sextant")[2]["n_rejected"] == 2
    for path in (tmp_path / "out").iterdir():
        path.unlink()
    above = _write(tmp_path, _sextant_rows("300,x,1", "301,,1", n_good=197))
    message = (
        r"2 of 199 rows are malformed \(line 199: .*: not a number \('x'\); line 200: .*: miss"
    )
    with pytest.raises(InputError, match=message):
        _ingest(above, "sextant")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("trace_format", "text", "message"),
    [
        ("azure", "TIMESTAMP,ContextTokens\n", r"field 'GeneratedTokens': column missing.*needs"),
        ("azure", AZURE.replace("Tokens\n", "Tokens,Extra\n", 1), "field 'Extra': unknown column"),
        ("sextant", f"{SEXTANT},arrival_s\n1,1,1,1\n", "field 'arrival_s': column twice"),
        ("sextant", AZURE, r"field 'arrival_s': column missing.*it may have request_id"),
        ("mooncake", '{"timestamp": 1}\n', "field 'input_length': column missing"),
        ("mooncake", "timestamp\n", "line 1: no JSON object"),
        ("csv", AZURE, "field 'format': unknown trace format 'csv'. Fix: use one of azure"),
    ],
)
def test_wrong_columns_and_formats(tmp_path, trace_format, text, message):
    with pytest.raises(InputError, match=message):
        _ingest(_write(tmp_path, text), trace_format)
    assert not (tmp_path / "out" / "t.parquet").exists()


TIMES = st.floats(0, 1e7).map(lambda value: round(value, 6))
OK = st.tuples(st.just("ok"), *[st.integers(1, 2**31 - 1)] * 2)
FAILED = st.tuples(st.just("failed"), *[st.integers(0, 9)] * 2)
NAMES = st.sampled_from([None, "GPT-4", 'é, "x"'])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(TIMES, OK | FAILED, NAMES), min_size=1, max_size=9))
def test_a_trace_that_is_written_and_ingested_again_is_the_same(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("again")
    rows = sorted(rows, key=lambda row: row[0])
    frame = pd.DataFrame({"arrival_s": [row[0] - rows[0][0] for row in rows]})
    frame[["status", "input_tokens", "output_tokens"]] = [row[1] for row in rows]
    frame["llm"] = pd.Series([row[2] for row in rows], dtype=object)
    frame.to_csv(folder / "t.csv", index=False)
    trace, rejected, report = _ingest(folder / "t.csv", "sextant", max_rate_rps=np.inf)
    trace.to_parquet(folder / "t.parquet")
    again, _, _ = _ingest(folder / "t.parquet", "sextant", max_rate_rps=np.inf)
    pd.testing.assert_frame_equal(trace, again)
    assert rejected.empty and report["n_read"] == len(rows)
    for name in frame:
        assert trace[name].fillna("").tolist() == frame[name].fillna("").tolist()


def test_parquet_rows_are_checked_too(tmp_path):
    # pandas would store its NaN as null.
    nan = "SELECT 'nan'::DOUBLE AS arrival_s, 1 AS input_tokens, 1 AS output_tokens"
    duckdb.sql(nan).write_parquet(str(tmp_path / "nan.parquet"))
    with pytest.raises(InputError, match="line 1: arrival_s: not finite"):
        _ingest(tmp_path / "nan.parquet", "sextant")
    frame = pd.DataFrame({"arrival_s": [0.0, np.nan, 1.0], "input_tokens": [1.0, 1, 2.5]})
    frame.assign(output_tokens=1).to_parquet(tmp_path / "t.parquet")
    _, rejected, _ = _ingest(tmp_path / "t.parquet", "sextant", max_rejected_fraction=1.0)
    assert rejected["line"].tolist() == [2, 3]
    reasons = ["arrival_s: missing value", "input_tokens: not a whole number"]
    assert rejected["reason"].tolist() == reasons


def test_ok_request_without_output_contradicts_itself(tmp_path):
    rows = f"{SEXTANT},status\n0,10,5,ok\n1,10,0,ok\n2,10,0,failed\n3,10,4,failed\n4,10,0,\n"
    trace, rejected, _ = _ingest(_write(tmp_path, rows), "sextant", max_rejected_fraction=0.5)
    assert rejected["line"].tolist() == [3]
    assert trace["status"].tolist() == ["ok", "failed", "failed", "failed"]


ROWS = st.tuples(st.integers(0, 10**8), st.integers(-1, 3), st.integers(-1, 2**31), st.booleans())


@settings(max_examples=15, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=60))
def test_every_row_is_accepted_or_rejected_once(tmp_path_factory, rows):
    folder = tmp_path_factory.mktemp("rows")
    lines = [f"{ms},{i},{o}" + (",1" if wide else "") for ms, i, o, wide in rows]
    source = _write(folder, "\n".join([SEXTANT, "0,1,1", *lines]))
    trace, rejected, report = _ingest(source, "sextant", max_rejected_fraction=1.0)
    seen = sorted([*map(int, trace["request_id"]), *rejected["line"]])
    assert seen == list(range(2, len(rows) + 3))
    assert (np.diff(trace["arrival_s"]) >= 0).all()
    assert report["n_accepted"] == len(trace) and report["n_rejected"] == len(rejected)
    for line, raw in zip(rejected["line"], rejected["raw"], strict=True):
        assert raw == lines[line - 3]
