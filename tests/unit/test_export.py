"""Drawn requests in other tools' formats: what their readers read is what was drawn."""

import json

import numpy as np
import pandas as pd
import pytest

from sextant.base.errors import InputError
from sextant.trace.trace_format import TRACE_COLUMNS
from sextant.workload.draw import write_trace

TRACE = pd.DataFrame(
    {
        "request_id": ["a", "b", "c"],
        "arrival_s": [0.0, 0.0014, 12.5],
        "input_tokens": np.array([1, 512, 513], np.int32),
        "output_tokens": np.array([7, 1, 30], np.int32),
        "status": "ok",
    }
).reindex(columns=list(TRACE_COLUMNS))


def lines(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_mooncakes_lines_have_milliseconds_and_a_block_per_512_tokens(tmp_path):
    write_trace(TRACE, tmp_path / "t.jsonl", "mooncake")
    assert lines(tmp_path / "t.jsonl") == [
        {"timestamp": 0, "input_length": 1, "output_length": 7, "hash_ids": [0]},
        {"timestamp": 1, "input_length": 512, "output_length": 1, "hash_ids": [1]},
        {"timestamp": 12500, "input_length": 513, "output_length": 30, "hash_ids": [2, 3]},
    ]


def test_vllms_timed_trace_has_seconds_and_a_block_per_16_tokens(tmp_path):
    write_trace(TRACE, tmp_path / "t.jsonl", "vllm-timed-trace")
    got = lines(tmp_path / "t.jsonl")
    assert [line["timestamp"] for line in got] == [0.0, 0.0014, 12.5]
    assert [len(line["hash_ids"]) for line in got] == [1, 32, 33]


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_sextants_own_formats_keep_every_column(tmp_path, form):
    write_trace(TRACE, tmp_path / "t", form)
    read = {"parquet": pd.read_parquet, "csv": pd.read_csv}[form](tmp_path / "t")
    assert list(read) == list(TRACE)
    known = TRACE.dropna(axis="columns")
    pd.testing.assert_frame_equal(read[known.columns], known, check_dtype=False)
    assert read.drop(columns=known.columns).isna().all(axis=None)


def test_what_cannot_be_written_leaves_no_file(tmp_path):
    with pytest.raises(InputError) as caught:
        write_trace(TRACE, tmp_path / "t", "jsonl")
    assert "vllm-timed-trace" in str(caught.value)
    assert not list(tmp_path.iterdir())
