"""The command line on workloads: what is fitted, drawn, reported on and put on a server."""

import json

import pandas as pd
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from command import sextant
from sextant.base.errors import InputError
from support import ROOT

SAMPLE = ROOT / "resources" / "traces" / "azure-2023-conv-sample.csv"
SHIPPED = ROOT / "resources" / "workloads" / "azure-2023-conv"


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    out = tmp_path_factory.mktemp("cli") / "trace.parquet"
    sextant("ingest", SAMPLE, "--format", "sextant", "--out", out)
    return out


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A tokenizer.json of one token a word."""
    known = [f"w{number}" for number in range(60)]
    vocabulary = {word: number for number, word in enumerate(["?", *known])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    path = tmp_path_factory.mktemp("words") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def histogram(tmp_path):
    frame = {"input_token_count": [10, 90], "generated_token_count": [5, 7]}
    pd.DataFrame(frame | {"probability": [0.7, 0.3]}).to_parquet(tmp_path / "published.parquet")
    return tmp_path / "published.parquet"


def test_a_published_histogram_is_fitted_and_drawn_from_alike(tmp_path, histogram):
    said = sextant("fit", histogram, "--out", tmp_path / "w", "--max-input-tokens", 50)
    assert "30.0% of input_tokens" in said
    for workload in (tmp_path / "w", histogram):
        how = ("-n", 2000, "--seed", 3, "--request-rate", 2, "--out", tmp_path / "s.csv")
        sextant("sample", "--workload", workload, *how)
        drawn = pd.read_csv(tmp_path / "s.csv")
        assert (drawn["output_tokens"] == 5).mean() == pytest.approx(0.7, abs=0.05)
        assert len(drawn) / drawn["arrival_s"].max() == pytest.approx(2, rel=0.1)
    again = ("--format", "sextant", "--out", tmp_path / "again.parquet")
    assert "2000 of 2000 rows" in sextant("ingest", tmp_path / "s.csv", *again).replace(",", "")


def test_prompts_and_responses_become_a_workload(tmp_path, words):
    pairs = [{"prompt": "w1 w2 w3", "response": "w4"}, {"prompt": "w5", "response": "w6 w7"}]
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    said = sextant("fit", tmp_path / "pairs.json", "--tokenizer", words, "--out", tmp_path / "w")
    assert "2 requests of 2 items" in said
    model = pd.read_parquet(tmp_path / "w" / "requests.parquet")
    assert model[["input_tokens", "output_tokens"]].to_numpy().tolist() == [[1, 2], [3, 1]]
    with pytest.raises(InputError, match="--tokenizer"):
        sextant("fit", tmp_path / "pairs.json", "--out", tmp_path / "w")


def test_a_trace_and_its_workload_are_reported_on(tmp_path, trace):
    said = sextant("fit", trace, "--out", tmp_path / "w", "--max-output-tokens", 100)
    # A distance of 0 beside most outputs cut would look like a faithful model.
    assert "outputs (" in said and "the distances are to the trace as capped" in said
    how = ("--workload", tmp_path / "w", "--out", tmp_path / "t.html")
    said = sextant("trace-report", trace, *how)
    assert "2,000 requests" in said
    assert set(json.loads((tmp_path / "t.json").read_text())["fidelity"]) == {"w"}


def test_a_use_case_is_fitted_by_its_name_with_caps(tmp_path):
    how = ("--out", tmp_path / "w", "--max-input-tokens", 1000)
    assert "of input_tokens" in sextant("fit", "summarization", *how)
    model = pd.read_parquet(tmp_path / "w" / "requests.parquet")
    assert model["input_tokens"].max() == 1000
    with pytest.raises(InputError, match="--n-bins"):
        sextant("fit", "summarization", "--out", tmp_path / "w", "--n-bins", 8)


def test_raw_requests_are_those_of_the_trace(tmp_path, trace):
    options = ("--sampler", "raw", "--arrivals", "inf", "-n", 500, "--out", tmp_path / "s.csv")
    sextant("sample", "--workload", trace, *options)
    known = pd.read_parquet(trace)[["input_tokens", "output_tokens"]]
    drawn = pd.read_csv(tmp_path / "s.csv")[["input_tokens", "output_tokens"]]
    assert set(map(tuple, drawn.to_numpy())) <= set(map(tuple, known.to_numpy()))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--arrivals", "gamma", "--alpha", "0.5", "--request-rate", 3, "-n", 3), "--alpha"),
        (("--arrivals", "varying", "--burstiness", 2, "--beta-s", "1,0", "-n", 3), "--alpha"),
        (("--request-rate", 3), "-n"),
        (("--arrivals", "inf", "-n", 10**13), "too many"),
        (("--arrivals", "gamma", "-n", 3), "--request-rate|--burstiness"),
    ],
)
def test_options_that_do_not_go_together_are_named(tmp_path, options, said):
    with pytest.raises(InputError, match=said):
        sextant("sample", "--workload", SHIPPED, "--out", tmp_path / "s.csv", *options)
    assert not (tmp_path / "s.csv").exists()


def test_a_fit_that_breaks_off_leaves_the_earlier_workload_whole(tmp_path, trace, monkeypatch):
    """Files were replaced one after another: new requests beside old arrivals."""
    out = tmp_path / "workload"
    sextant("fit", trace, "--out", out)
    earlier = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr("sextant.workload.fit.write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        sextant("fit", trace, "--out", out, "--max-input-tokens", 50)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == earlier
