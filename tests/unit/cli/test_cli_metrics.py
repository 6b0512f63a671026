"""The command line on metrics: files and options, and what is said of them."""

import json

import pandas as pd
import pytest

from command import sextant
from served_metrics import Server, matrix
from sextant.base.errors import InputError


@pytest.fixture
def texts(tmp_path):
    server = Server("vllm", "llama-8b")
    paths = []
    for number, n_more in enumerate((20, 100)):
        for index in range(n_more):
            server.serve(100 + 7 * index, 20 + index, 0.1, 0.1 + 0.01 * (19 + index))
        paths.append(tmp_path / f"{number}.txt")
        paths[-1].write_text(server.text())
    return paths


def test_two_snapshots_become_a_trace_and_it_is_said_what_was_drawn(tmp_path, texts):
    how = ("--format", "prometheus", "--interval", "100s", "--out", tmp_path / "t.parquet")
    said = sextant("ingest", *texts, *how)
    assert "100 of 100 rows, 0 set aside, 0 failed" in said
    assert "1.67 minutes, 0.99 requests/s" in said
    assert "drawn evenly within 1.67 minutes, lengths from the histograms" in said
    assert len(pd.read_parquet(tmp_path / "t.parquet")) == 100
    assert (tmp_path / "t.report.json").exists()


def test_the_pipeline_reads_an_answer_of_prometheus_by_its_sheet(tmp_path, texts):
    from sextant.trace.job import ingest_trace

    answer = matrix([(60.0 * number, path.read_text()) for number, path in enumerate(texts)])
    (tmp_path / "range.json").write_text(json.dumps(answer))
    outputs = [tmp_path / name for name in ("t.parquet", "t.rejected.parquet", "t.json")]
    report = ingest_trace(tmp_path / "range.json", "prometheus", *outputs)
    assert report["n_accepted"] == 100
    assert report["start_time"] == "1970-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--format", "prometheus"), "--interval 10min"),
        (("--format", "prometheus", "--interval", "soon"), "not a time"),
        (("--format", "prometheus", "--interval", "1min", "--last", "1h"), "files are read"),
        (("--format", "prometheus", "--prometheus", "http://x:1"), "give one of the two"),
        (("--format", "prometheus", "--columns", "arrival=a"), "has its own"),
        (("--format", "litellm", "--interval", "1min"), "no metrics are read"),
        (("--format", "litellm"), "2 files"),
    ],
)
def test_options_that_do_not_belong_together_are_refused(tmp_path, texts, options, said):
    with pytest.raises(InputError, match=said):
        sextant("ingest", *texts, *options, "--out", tmp_path / "t.parquet")
    assert not (tmp_path / "t.parquet").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--prometheus", "prom:9090"), "not a base URL"),
        (("--prometheus", "http://prom:9090", "--match", 'a="b"} or vector(1'), "no matchers"),
        (("--prometheus", "http://prom:9090", "--token-env", "NO_SUCH_TOKEN"), "is not set"),
        (("--prometheus", "http://prom:9090", "--interval", "1min"), "say when"),
        (("--prometheus", "http://prom:9090/metrics", "--step", "1min"), "a server is read"),
        (("--prometheus", "http://prom:9090/metrics", "--last", "9h"), "between two readings"),
    ],
)
def test_options_of_a_url_are_checked_before_anything_is_sent(tmp_path, options, said):
    how = ("--format", "prometheus", *options, "--out", tmp_path / "t.parquet")
    with pytest.raises(InputError, match=said):
        sextant("ingest", *how)
