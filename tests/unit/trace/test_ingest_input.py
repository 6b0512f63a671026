"""Bad input of every kind, and the moment a trace begins."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from sextant.base.errors import InputError
from sextant.base.files import read_provenance
from sextant.trace import documents
from sextant.trace.job import IngestSettings, ingest_trace
from support import wait_for

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens"
BURSTGPT = "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type"
MOONCAKE = '{"timestamp": 1500, "input_length": 6758, "output_length": 500}\n'


def ingest(
    folder: Path, content: str | bytes, trace_format: str, name: str = "t.csv", **options: Any
) -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
    source = folder / name
    source.write_bytes(content.encode() if isinstance(content, str) else content)
    paths = [folder / "out" / name for name in ("t.parquet", "r.parquet", "report.json")]
    options.setdefault("max_rejected_fraction", 1.0)
    report = ingest_trace(source, trace_format, *paths, IngestSettings(**options))
    assert json.loads(paths[2].read_text()) == report
    return pd.read_parquet(paths[0]), pd.read_parquet(paths[1]), report


def _zstd(content: bytes, folder: Path) -> bytes:
    with pa.CompressedOutputStream(str(folder / "packed"), "zstd") as stream:
        stream.write(content)
    return (folder / "packed").read_bytes()


def _azure(*moments: str) -> str:
    return "\n".join([AZURE, *(f"{moment},10,5" for moment in moments)]) + "\n"


@pytest.mark.parametrize("block_bytes", [8, 4 << 20])
def test_rows_that_are_late_are_sorted_and_counted(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(documents, "BLOCK_BYTES", block_bytes)
    rows = ["3,1,1", "12,2,1", "7,3,1", "12,x,1", "2,4,0", "12,5,1", "13,6,1"]
    text = "\n".join(["arrival_s,input_tokens,output_tokens", *rows])
    trace, rejected, report = ingest(tmp_path, text, "sextant")
    # The two of one time stay as they stood, and times count from the earliest.
    assert trace["arrival_s"].tolist() == [0, 1, 5, 10, 10, 11]
    assert trace["input_tokens"].tolist() == [4, 1, 3, 2, 5, 6]
    assert rejected["line"].tolist() == [5]
    assert (report["n_moved"], report["most_late_s"], report["n_failed"]) == (2, 10.0, 1)
    assert (report["first_tick_s"], report["duration_s"]) == (2.0, 11.0)
    assert len([*(tmp_path / "out").iterdir()]) == 3


@pytest.mark.parametrize("stamp", ["4102444800", "0"])
def test_one_stamp_of_a_wrong_clock_is_set_aside_and_spoils_nothing(tmp_path, stamp):
    rows = [f"{second},1,1" for second in range(10**9, 10**9 + 500)]
    rows.insert(250, f"{stamp},7,0")
    text = "\n".join(["arrival_s,input_tokens,output_tokens", *rows])
    trace, rejected, report = ingest(tmp_path, text, "sextant")
    assert trace["arrival_s"].tolist() == list(range(500))
    assert rejected["reason"].tolist() == ["arrival: far in time from all other rows"]
    assert '"input_tokens":7' in rejected["raw"][0]
    assert (report["n_accepted"], report["n_failed"], report["n_moved"]) == (500, 0, 0)


def test_offsets_are_converted_to_utc(tmp_path):
    moments = ["T10:00:00+02:00", " 08:00:01Z", " 04:30:02-0330", " 08:00:03 UTC"]
    text = _azure(*(f"2023-11-16{each}" for each in (*moments, " 18:00:04.5 +10")))
    trace, rejected, report = ingest(tmp_path, text, "azure")
    assert trace["arrival_s"].tolist() == [0, 1, 2, 3, 4.5]
    assert rejected.empty
    assert report["start_time"] == "2023-11-16T08:00:00+00:00"


@pytest.mark.parametrize("block_bytes", [30, 4 << 20])
@pytest.mark.parametrize(
    ("first", "other", "reason"),
    [("", "Z", "has a time zone, the first row's has none"), ("Z", "", "has no time zone, the f")],
)
def test_time_zones_mixed_are_set_aside(tmp_path, monkeypatch, first, other, reason, block_bytes):
    monkeypatch.setattr(documents, "BLOCK_BYTES", block_bytes)
    moments = [f"2023-11-16 10:00:00{zone}" for zone in (first, other) * 2]
    trace, rejected, _ = ingest(tmp_path, _azure("not a time", *moments), "azure")
    unreadable, *mixed = rejected["reason"]
    assert unreadable == "TIMESTAMP: not a date and time" and len(mixed) == 2
    assert all(each.startswith(f"TIMESTAMP: {reason}") for each in mixed)
    assert trace["request_id"].tolist() == ["3", "5"]


def test_header_in_another_order_in_any_dress(tmp_path):
    header = "GeneratedTokens, ContextTokens ,TIMESTAMP"
    text = f"{header}\n44,374,2023-11-16 18:15:46\n0,9,2023-11-16 18:15:48\n"
    expected, _, _ = ingest(tmp_path, text, "azure")
    assert expected["input_tokens"].tolist() == [374, 9]
    assert expected["output_tokens"].tolist() == [44, 0]
    dressed = ("\ufeff" + text.replace("\n", "\r\n")).encode()
    half = len(dressed) // 2
    members = gzip.compress(dressed[:half]) + gzip.compress(dressed[half:])
    packed = {"t.gz": gzip.compress(dressed), "u.gz": members, "t.zst": _zstd(dressed, tmp_path)}
    for name, content in packed.items():
        trace, _, _ = ingest(tmp_path, content, "azure", name)
        pd.testing.assert_frame_equal(trace, expected)


@pytest.mark.parametrize("kept", [0.001, 0.5, 0.999, -9, -1])
@pytest.mark.parametrize("ending", ["gz", "zst", "parquet"])
def test_packed_file_cut_anywhere_is_refused(tmp_path, kept, ending):
    text = "\n".join([BURSTGPT, *(f"{second},a,7,1,8,x" for second in range(5_000))]).encode()
    pd.DataFrame({"arrival_s": range(5_000)}).to_parquet(tmp_path / "whole")
    whole = {"gz": gzip.compress(text), "zst": _zstd(text, tmp_path)}
    packed = whole.get(ending) or (tmp_path / "whole").read_bytes()
    cut = packed[:kept] if kept < 0 else packed[: max(1, int(len(packed) * kept))]
    with pytest.raises(InputError, match=rf"t\.{ending}: cannot be read"):
        ingest(tmp_path, cut, "burstgpt", f"t.{ending}")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "the file is empty"),
        ("\ufeff", "the file is empty"),
        ("\ufeff" + AZURE + "\r\n", "the trace has no rows"),
        (AZURE + "\n\n  \n", "the trace has no rows"),
    ],
)
def test_empty_traces_packed_too(tmp_path, content, problem):
    data = content.encode()
    packed = {"t.csv": data, "t.gz": gzip.compress(data), "t.zst": _zstd(data, tmp_path)}
    for name, each in packed.items():
        with pytest.raises(InputError, match=problem):
            ingest(tmp_path, each, "azure", name)


def test_bytes_that_are_no_utf8_are_found_in_any_block_and_column(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_BYTES", 64)
    rows = [f"{second},a,7,1,8,x".encode() for second in range(50)]
    rows[30] = b"30,a,7,1,\xe9,x"  # "Total tokens", of which nothing is taken
    with pytest.raises(InputError, match=r"Line: 32.*utf-8"):
        ingest(tmp_path, b"\n".join([BURSTGPT.encode(), *rows]), "burstgpt")
    with pytest.raises(InputError, match=r"Line: 1.*utf-8"):
        ingest(tmp_path, b"\xff\xfe" + AZURE.encode("utf-16-le"), "azure")


def test_nul_bytes_and_endless_lines(tmp_path, monkeypatch):
    _, rejected, _ = ingest(tmp_path, _azure("2023-11-16 10:00:00", "\0"), "azure")
    assert rejected["line"].tolist() == [3]
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 1 << 20)
    with pytest.raises(InputError, match="a line is longer than 1 MiB"):
        ingest(tmp_path, AZURE + "\n" + "1" * (6 << 20), "azure")


@pytest.mark.parametrize(
    ("start_time", "expected"),
    [
        (None, None),
        ("2023-05-01T00:00:00", "2023-05-01T00:00:05.5"),
        ("2023-05-01", "2023-05-01T00:00:05.5"),
        ("2023-05-01T00:00:00+08:00", "2023-04-30T16:00:05.5+00:00"),
        ("2023-04-30T23:59:54.5Z", "2023-05-01T00:00:00+00:00"),
    ],
)
def test_start_of_a_trace_with_a_clock_of_its_own(tmp_path, start_time, expected):
    text = f"{BURSTGPT}\n4,a,0,1,8,x\n5.5,a,7,1,8,x\n8,a,7,1,8,x\n"
    trace, _, report = ingest(tmp_path, text, "burstgpt", start_time=start_time)
    assert trace["arrival_s"].tolist() == [0, 2.5]
    assert (report["start_time"], report["first_tick_s"]) == (expected, 5.5)
    origin = read_provenance(tmp_path / "out" / "t.parquet")
    assert (origin["start_time"], origin["first_tick_s"]) == (expected, 5.5)


@pytest.mark.parametrize(
    ("trace_format", "start_time", "message"),
    [
        ("azure", "2023-11-16", "field 'start_time': the format has date-times of its own"),
        ("burstgpt", "yesterday", "field 'start_time': 'yesterday' is not a date-time. Fix: give"),
        ("burstgpt", "", "field 'start_time': '' is not a date-time"),
        ("burstgpt", "2023-13-01", "is not a date-time"),
        ("burstgpt", "0001-01-01", "'0001-01-01' is not in the years 1700 to 2199. Fix: give"),
        ("burstgpt", "9999-12-31T23:00:00Z", "field 'start_time': .* not in the years 1700 to"),
        ("burstgpt", "2023-11-16", "field 'start_time': the first row is 1e.12 s later"),
    ],
)
def test_start_time_that_is_none_or_not_needed(tmp_path, trace_format, start_time, message):
    with pytest.raises(InputError, match=message):
        ingest(tmp_path, f"{BURSTGPT}\n1e12,a,7,1,8,x\n", trace_format, start_time=start_time)


@pytest.mark.parametrize("fraction", [float("nan"), -0.1, 1.01, float("inf")])
def test_a_share_that_is_none_is_refused(tmp_path, fraction):
    with pytest.raises(InputError, match=r"field 'max_rejected_fraction': a share of .* 0 to 1"):
        ingest(tmp_path, MOONCAKE, "mooncake", "t.jsonl", max_rejected_fraction=fraction)


def test_no_output_takes_the_place_of_the_source_or_of_another(tmp_path, monkeypatch):
    source = tmp_path / "t.parquet"
    rows = pd.DataFrame({"arrival_s": [7.0], "input_tokens": [7], "output_tokens": [7]})
    rows.to_parquet(source)
    content = source.read_bytes()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"t.parquet: the output would replace the source. Fix"):
        ingest_trace(source, "sextant", "t.parquet", "r.parquet", "report.json")
    with pytest.raises(InputError, match=r"x.parquet: the output would replace another output"):
        ingest_trace(source, "sextant", "x.parquet", tmp_path / "x.parquet", "report.json")
    assert source.read_bytes() == content and [*tmp_path.iterdir()] == [source]


GOOD = "".join(f'{{"ts": {1_700_000_000 + n}, "in": 7, "out": 8}}\n' for n in range(50))
MAPPED = {"columns": "arrival=ts,input_tokens=in,output_tokens=out"}


@pytest.mark.parametrize("depth", [900, 990, 5_000])
@pytest.mark.parametrize("is_first", [True, False])
def test_nested_lines_are_set_aside_or_left_out_wherever_they_stand(tmp_path, depth, is_first):
    deep = '{"a":' * depth + "1" + "}" * depth + "\n"
    text = deep + GOOD if is_first else GOOD + deep
    trace, rejected, _ = ingest(tmp_path, text, "columns", "t.jsonl", **MAPPED)
    assert (len(trace), len(rejected)) == (50, 1)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (f"{BURSTGPT}\r5,a,7,1,8,x\r", "line 1: lines end with a carriage return alone. Fix"),
        ("a" * 200_000 + "\n1\n", "line 1: no header .field larger"),
        ("[]\n", "the file is empty"),
        (
            f"[{GOOD.strip().replace(chr(10), ',')}",
            "after 50 JSON values no JSON follows, or it is",
        ),
        ("null\n", "line 1: no JSON object"),
        (GOOD.encode() + b'{"ts": 1700000099, "m": "\xe9"}\n', "Line: 51: 'utf-8'"),
        (b"\xff\xfe" + GOOD.encode("utf-16-le"), "cannot be read .'utf-8'"),
        (GOOD.replace("1700000049", "5"), "the requests are of 53.9 years"),
        (GOOD.replace('"ts": 17', '"ts": 1' + "0" * 30 + "7"), r"of the year 3.17e\+31"),
    ],
)
def test_what_is_no_log_is_one_error(tmp_path, content, problem):
    is_table = content[:1] in ("T", "a")
    how = ("burstgpt", "t.csv") if is_table else ("columns", "t.jsonl")
    with pytest.raises(InputError, match=problem):
        ingest(tmp_path, content, *how, **({} if is_table else MAPPED))
    assert not [*(tmp_path / "out").glob("*")]


def test_what_is_not_a_file_is_said(tmp_path):
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    for name in ("folder.csv", "pipe.csv"):
        with pytest.raises(InputError, match=rf"{name}: is not a file"):
            ingest_trace(tmp_path / name, "azure", *(tmp_path / each for each in "abc"))


def test_the_shortest_lines_come_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "BLOCK_LINES", 7)
    content = b"1\n" * 100 + b"22222\n" * 3 + b"3"
    (tmp_path / "t").write_bytes(content)
    blocks = [*documents.read_text_blocks(tmp_path / "t")]
    assert b"".join(blocks) == content + b"\n"
    assert {block.count(b"\n") for block in blocks} == {7, 6}


def test_a_full_disk_and_a_kill_leave_no_file_that_looks_whole(tmp_path):
    source, out = tmp_path / "t.jsonl", tmp_path / "out"
    source.write_text(GOOD * 10_000)
    command = ["ingest", source, "--columns", MAPPED["columns"], "--out", out / "t.parquet"]
    run = "from sextant.cli.app import main; main()"
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
    full = subprocess.run([sys.executable, "-B", "-c", limit + run, *command], capture_output=True)
    assert full.returncode and not [*out.glob("[!.]*")]
    with subprocess.Popen([sys.executable, "-c", run, *command]) as process:
        wait_for(lambda: [*out.glob(".[!.]*")], "output")
        process.kill()
    assert not [*out.glob("[!.]*")]


def test_many_names_of_columns_are_shortened_in_an_error(tmp_path):
    names = ",".join(f"c{number}" for number in range(20_000))
    with pytest.raises(InputError, match=r"the source has c0, .*c39, …$"):
        ingest(tmp_path, f"{names}\n", "columns", **MAPPED)
