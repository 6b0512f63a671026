"""Clients of ServeGen's tables: their windows, gaps and rate, and rows that are not theirs."""

import json
import os
import tarfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from sextant.base.errors import InputError
from sextant.cli.app import app
from sextant.trace.trace_format import require_trace
from sextant.workload.arrivals import measure_arrivals
from sextant.workload.draw import draw_service

SAMPLE = "servegen/servegen_sample.tar.xz"
STEADY = "0,2.0,0.5,Gamma,4.0,0.125\n600,0,0,,0,0\n1200,4.0,1.0,Weibull,1.0,0.25\n"
BURSTY = "0,0,0,,0,0\n600,1.0,2.0,Gamma,0.25,4.0\n1200,nan?\n"


def write(folder: Path, *texts: str) -> Path:
    for number, text in enumerate(texts):
        (folder / f"chunk-{number}-trace.csv").write_text(text)
    return folder


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,1\n", "2 cells"),
        ("0,1,1,Gamma,x,1\n", "could not convert"),
        ("0,-1,1,Gamma,1,1\n", "below 0"),
        ("0,1,1,Pareto,1,1\n", "unknown distribution 'Pareto'"),
        ("600,1,1,Gamma,1,1\n0,1,1,Gamma,1,1\n", "do not ascend"),
        ("", "no client sends"),
        (None, "chunk"),
    ],
)
def test_rows_that_are_not_servegens_are_named(tmp_path, row, said):
    with pytest.raises(InputError, match=said):
        draw_service(tmp_path if row is None else write(tmp_path, row), seed=0)


LENGTHS = {
    "0": {"input_tokens": "{5: 0.25, 9: 0.75}", "output_tokens": "{0: 0.1, 3: 0.9}"},
    "1200": {"input_tokens": "{70: 1.0}", "output_tokens": "{8: 1.0}"},
}


def service(folder: Path, lengths: str = json.dumps(LENGTHS)) -> Path:
    write(folder, STEADY, BURSTY.replace("1200,nan?\n", "1200,0.5,1.0,,0,0\n"))
    (folder / "chunk-0-dataset.json").write_text(lengths)
    (folder / "chunk-1-dataset.json").write_text(json.dumps(LENGTHS).replace("70", "71"))
    return folder


def test_clients_send_at_the_rates_of_their_windows(tmp_path):
    folder = service(tmp_path)
    counts = []
    for seed in range(60):
        drawn = draw_service(folder, seed=seed)
        own = drawn.loc[drawn["service"] == "chunk-0", "arrival_s"]
        bursty = drawn.loc[drawn["service"] == "chunk-1", "arrival_s"]
        steps = [0, 600, 1200, 1800]
        counts.append((np.histogram(own, steps)[0], np.histogram(bursty, steps)[0]))
    steady, bursty = np.moveaxis(np.array(counts), 1, 0)
    assert (steady + bursty).mean(axis=0) == pytest.approx([1200, 600, 2700], rel=0.05)
    # Dispersion tends to 1 / shape.
    assert steady[:, 0].var() / steady[:, 0].mean() == pytest.approx(0.25, abs=0.15)
    assert bursty[:, 1].var() / bursty[:, 1].mean() > 2


def test_a_trace_has_the_times_and_lengths_of_each_client(tmp_path):
    out = tmp_path / "t.parquet"
    options = ["--workload", str(service(tmp_path)), "--out", str(out), "--seed", "3"]
    assert CliRunner().invoke(app, ["sample", *options]).exit_code == 0
    drawn = pd.read_parquet(out)
    assert len(require_trace(out).schema_arrow.names) == len(drawn.columns)
    assert drawn["arrival_s"].is_monotonic_increasing and set(drawn["llm"]) == {tmp_path.name}
    counts = drawn.groupby("service")["arrival_s"].size()
    assert counts.to_dict() == pytest.approx({"chunk-0": 3600, "chunk-1": 900}, rel=0.15)
    early, late = (drawn[drawn["arrival_s"].ge(1200) == is_late] for is_late in (False, True))
    assert set(early["input_tokens"]) == {5, 9}
    assert (early["input_tokens"] == 9).mean() == pytest.approx(0.75, abs=0.05)
    pairs = set(zip(late["service"], late["input_tokens"], strict=True))
    assert pairs == {("chunk-0", 70), ("chunk-1", 71)}
    assert ((drawn["output_tokens"] == 0) == (drawn["status"] == "failed")).all()
    few = draw_service(tmp_path, seed=3, n=50)
    assert len(few) == 50 and few["arrival_s"].tolist() == drawn["arrival_s"][:50].tolist()
    result = CliRunner().invoke(app, ["sample", *options, "--request-rate", "3"])
    assert "'--request-rate': ServeGen's tables have their own" in str(result.exception)


@pytest.mark.parametrize(
    ("lengths", "said"),
    [
        ("{", "not a table of lengths"),
        ('{"0": {"input_tokens": "{5: 1.0}"}}', "KeyError 'output_tokens'"),
        ('{"600": {"input_tokens": "{5: 1.0}"}}', "no input_tokens of a request at"),
        ('{"0": {"input_tokens": "{0: 1.0}"}}', "no input_tokens of a request"),
        ('{"0": {"input_tokens": "__import__()"}}', "malformed node"),
        ('{"0": {"input_tokens": "{3000000000: 1.0}"}}', "input_tokens are whole numbers"),
        ('{"0": {"input_tokens": "{5: 0.0}"}}', "the shares of input_tokens are below 0, all 0"),
        ('{"0": {"input_tokens": "{5: 1e999}"}}', "the shares of input_tokens are .* not finite"),
    ],
)
def test_tables_of_lengths_that_are_not_servegens_are_named(tmp_path, lengths, said):
    with pytest.raises(InputError, match=rf"chunk-0-dataset\.json: .*{said}"):
        draw_service(service(tmp_path, lengths), seed=0)
    (tmp_path / "chunk-0-dataset.json").unlink()
    with pytest.raises(InputError, match=r"chunk-0-dataset\.json: the client's lengths"):
        draw_service(tmp_path, seed=0)


@pytest.mark.skipif("SEXTANT_MIRROR" not in os.environ, reason="SEXTANT_MIRROR is not set")
def test_published_clients_are_as_busy_as_their_tables_say(tmp_path):
    with tarfile.open(Path(os.environ["SEXTANT_MIRROR"]) / SAMPLE) as archive:
        members = [it for it in archive.getmembers() if "deepseek-r1/chunk" in it.name]
        archive.extractall(tmp_path, members, filter="data")
    folder = tmp_path / "data" / "reason" / "deepseek-r1"
    drawn = draw_service(folder, seed=0, duration_s=4 * 3600)
    assert drawn["service"].nunique() > 20
    # A row: start (s) and requests per second of ten minutes.
    tables = [pd.read_csv(path, header=None) for path in folder.glob("chunk-*-trace.csv")]
    expected = sum(600 * table.loc[table[0] < 4 * 3600, 1].sum() for table in tables)
    assert len(drawn) == pytest.approx(expected, rel=0.05)
    assert measure_arrivals(drawn["arrival_s"].to_numpy())["dispersion_60s"] > 1.5
