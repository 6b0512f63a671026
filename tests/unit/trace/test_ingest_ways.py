"""A block of CSV that Arrow parses at once, and one that is split line by line, give the same."""

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_ingest_input import BURSTGPT, ingest

from sextant.base.errors import InputError
from sextant.trace import documents, reading

NEWER = BURSTGPT.replace("Timestamp", "Session ID,Timestamp,Elapsed time")


def _both(folder: Path, text: bytes, trace_format: str, block_bytes: int = 4 << 20) -> list[tuple]:
    results = []
    for only_lines in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(documents, "BLOCK_BYTES", block_bytes)
            if only_lines:
                patch.setattr(reading, "parse_at_once", lambda *_: None)
            try:
                results.append(ingest(folder, text, trace_format))
            except InputError as error:
                results.append(str(error))
    return results


def _assert_same(one, other) -> None:
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
        return
    pd.testing.assert_frame_equal(one[0], other[0])
    pd.testing.assert_frame_equal(one[1], other[1])
    assert one[2] == other[2]


PLAIN = st.integers(1, 9).map(str)
ODD_NUMBERS = """5.0 5.5 +5 -3 -0 007 1e3 1E+2 .5 5. 1e400 nan NaN inf -inf 0x1F 1_000 1,5
    2147483647 2147483648 9007199254740993 0.1 0.30000000000000004 \u0663 x true"""
SPACED_NUMBERS = ["", " ", " 5", "5 ", "\t5", "5\t", '"5"', '" 5 "', '""', "5\u00a0", "5\x00"]
NUMBERS = st.one_of(
    PLAIN, PLAIN, st.sampled_from(ODD_NUMBERS.split()), st.sampled_from(SPACED_NUMBERS)
)
_TEXTS = '| |GPT-4| GPT-4|GPT-4 |"GPT-4"|"a,b"|"a""b"|a"b|é|\u3000x|\x01'
TEXTS = st.sampled_from(_TEXTS.split("|"))
ENDS = st.sampled_from(["\n"] * 9 + ["\r\n", "\n\n", "\r\r\n", "\r", "\n  \n"])


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.tuples(NUMBERS, TEXTS, NUMBERS, NUMBERS, NUMBERS, TEXTS, ENDS), max_size=12),
    has_bom=st.booleans(),
    block_bytes=st.sampled_from([16, 100, 1 << 20]),
)
def test_any_cells_come_out_the_same_both_ways(tmp_path_factory, rows, has_bom, block_bytes):
    lines = [BURSTGPT + "\n", "0,ChatGPT,1,1,2,API log\n"]
    lines += [",".join(cells) + end for *cells, end in rows]
    text = ("\ufeff" * has_bom + "".join(lines)).encode()
    _assert_same(*_both(tmp_path_factory.mktemp("ways"), text, "burstgpt", block_bytes))


_MOMENTS = (
    "2023-11-16 18:15:46.1234567|2023-11-16T18:15:46|2023-11-16 18:15:46Z|"
    "2023-11-16 18:15:46.5+02:00|2023-11-16 18:15:46-0230|2023-11-16 18:15:46 +02|"
    "2023-11-16 18:15:46 UTC|2023-11-16 18:15|2023-11-16 18:15+02:00|2023-11-16 18|"
    "2023-11-16 18Z|2023-11-16|2023-1-6 8:15:46|2023/11/16 18:15:46|2023-11-16 24:00:00|"
    "2023-11-16 18:15:60|2023-11-16 18:15:46.1234567891|2023-11-16 18:15:46 Europe/Berlin|"
    "1650-01-01 00:00:00|2250-01-01 00:00:00|9999-01-01 00:00:00|44-03-15 (BC) 12:00:00|"
    "epoch|infinity|"
)
MOMENTS = st.sampled_from(_MOMENTS.split("|"))


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(moments=st.lists(MOMENTS, max_size=8), block_bytes=st.sampled_from([16, 1 << 20]))
def test_any_date_times_come_out_the_same_both_ways(tmp_path_factory, moments, block_bytes):
    lines = ["TIMESTAMP,ContextTokens,GeneratedTokens", *(f"{text},5,5" for text in moments)]
    text = "\n".join(lines).encode()
    _assert_same(*_both(tmp_path_factory.mktemp("ways"), text, "azure", block_bytes))


@pytest.mark.parametrize(
    ("trace_format", "text"),
    [
        ("burstgpt", f"{BURSTGPT}\n5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,7,0,7,\n"),
        ("burstgpt", f"\ufeff{BURSTGPT}\r\n5,ChatGPT,4.0,18,22,API log\r\n5,é,4,0,22,API log"),
        ("burstgpt", f"{NEWER}\n7,5,1.25,GPT-4,472,18,490,API log\n,45.5,,GPT-4,9,0,9,API log\n"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n"),
        ("burstgpt", f'{BURSTGPT}\n"5","a,b","4",18,22,"API log"\n5,"","4",0,,"é"\n'),
        ("sextant", "arrival_s,input_tokens,output_tokens,status\n0,1,5,failed\n1.5,1,1,ok\n"),
    ],
)
def test_plain_files_are_parsed_at_once_to_the_same_rows(tmp_path, monkeypatch, trace_format, text):
    at_once, by_line = _both(tmp_path, text.encode(), trace_format)
    _assert_same(at_once, by_line)
    assert at_once[1].empty
    # Arrow has parsed it.
    monkeypatch.setattr(reading, "_block_of", lambda *_: 1 / 0)
    ingest(tmp_path, text.encode(), trace_format)


def test_one_unclear_row_has_only_its_block_split_line_by_line(tmp_path, monkeypatch):
    rows = [f"{second},ChatGPT,{second % 7 + 1},5,9,API log" for second in range(2_000)]
    rows[1_234] = '1234,Chat"GPT,1,5,9,API log'
    text = "\n".join([BURSTGPT, *rows]).encode()
    monkeypatch.setattr(documents, "BLOCK_BYTES", 4_000)
    split = []
    read_lines = reading._block_of
    monkeypatch.setattr(reading, "_block_of", lambda *args: split.append(args) or read_lines(*args))
    trace, rejected, _ = ingest(tmp_path, text, "burstgpt")
    assert len(split) == 1
    assert rejected["line"].tolist() == [1_236]
    assert trace["request_id"].tolist() == [str(i + 2) for i in range(2_000) if i != 1_234]
    assert trace["arrival_s"].tolist() == [i for i in range(2_000) if i != 1_234]
