"""Each option has bounds and a form that are said: one error, which names the option."""

import os

import pytest
from typer.testing import CliRunner

from command import sextant
from sextant.base.errors import InputError
from sextant.cli.app import app
from support import ROOT

LLAMA = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
LOAD = ("--request-rate", 1, "--input-tokens", 100, "--output-tokens", 10, "--ttft-ms", 1000)
ASKED = ("--hf-config", LLAMA, "--gpu-profiles", "1xH100-80GB")
RECOMMEND = ("recommend", *ASKED, *LOAD)
CAPACITY = ("capacity", *ASKED, *LOAD, "--draws", 0)
RIGHTSIZE = ("rightsize", *ASKED[:2], "--deployed", "1x1xH100-80GB", "--ttft-ms", 1000)


@pytest.mark.parametrize(
    ("command", "option", "value", "said"),
    [
        (RECOMMEND, "--risk", "1e-12", "1,000 draws cannot show"),
        (CAPACITY, "--max-num-batched-tokens", 10**12, "16,777,216 or fewer"),
        (CAPACITY, "--max-num-batched-tokens", 10**7, "no memory for the KV cache"),
        (RECOMMEND, "--max-num-batched-tokens", 10**7, "no memory for the KV cache"),
        (RECOMMEND, "--max-num-batched-tokens", 0, "not above 0"),
        (RECOMMEND, "--max-num-seqs", 0, "not above 0"),
        (CAPACITY, "--slot", "9" * 400, "not a time"),
        (CAPACITY, "--slot", "0.001s", "3,600,000 slots are too many.*1s or more"),
        (CAPACITY, "--burstiness", "1e308", "out of range"),
        (CAPACITY, "--burstiness", "1e-308", "out of range"),
        (CAPACITY, "--ttft-ms", "٣", "not a limit"),
        (CAPACITY, "--ttft-ms", "p95:1_0", "not a limit"),
        (CAPACITY, "--input-tokens", "٣", ""),
        (CAPACITY, "--draws", 1, "1 draw cannot show a risk of 0.1"),
        (CAPACITY, "--traffic", "1_0", "not a number as it is written"),
        (RECOMMEND, "--usd-per-month", "1_0", "not a number as it is written"),
        (RECOMMEND, "--seed", "٣", "not a number as it is written"),
        (RECOMMEND, "--vary", "input-tokens=131072", "the LLM's context of 131072 tokens"),
        (RECOMMEND, "--engine", "../engines/vllm", "not the name of an engine"),
        (RECOMMEND, "--engine", "/etc/passwd", "not the name of an engine"),
        (RECOMMEND, "--prices", "", "it is empty"),
        (RECOMMEND, "--prices", "aws,", "a part of it is empty"),
        (RECOMMEND, "--probe", "", "it is empty"),
        (CAPACITY, "--policy", " ", "it is empty"),
        (("capacity", "--hf-config", LLAMA), "--trace", "", "it is empty"),
        (("recommend", "--users", 4), "--hf-config", "", "it is empty"),
        (("recommend", "--users", 4, "--llm", "x"), "--database", "", "it is empty"),
        (("fleet", "--supply", "x.tsv"), "--demands", "", "it is empty"),
        (("fleet", "--supply", "x", "--demands", "x"), "--risk", "1e-9", "1,000 draws cannot show"),
        (RIGHTSIZE, "--prometheus", "http://127.0.0.1:1", "Connection refused. Fix: check the a"),
    ],
)
def test_a_value_that_cannot_be_names_its_option(command, option, value, said):
    with pytest.raises(InputError, match=rf"field '{option}'.*{said}"):
        sextant(*command, option, value)


def test_a_factor_that_makes_too_many_requests_is_named():
    with pytest.raises(InputError, match=r"'--request-rate, --traffic': 1e\+09 is not a rate"):
        sextant(*CAPACITY, "--traffic", 10**9)


@pytest.mark.parametrize(
    ("option", "most"),
    [("--replicas", 4096), ("--decode-replicas", 4096), ("--users", 100_000), ("--draws", 10_000)],
)
def test_a_simulation_has_bounds(option, most):
    asked = ["simulate", "--gpu-profile", "1xH100-80GB", option, str(most + 1)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 2
    assert f"Invalid value for '{option}': Input should be less than or equal to" in done.output


@pytest.mark.parametrize(
    ("option", "value"), [("--draws", 10**8), ("--least-replicas", 10**10), ("--draws", -1)]
)
def test_a_range_is_said(option, value):
    sextant(*CAPACITY, option, value, exit_code=2)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_trace_that_is_no_file_is_said_to_be_what_it_is(tmp_path, kind):
    path = tmp_path / "it"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(InputError, match=f"it is a .*{kind}"):
        sextant("capacity", *ASKED, "--trace", path, "--ttft-ms", 1000)


def test_times_have_one_notation_in_all_commands():
    with pytest.raises(InputError, match="what to send is not clear"):  # the time is read
        sextant("load", "--base-url", "http://x", "--model", "m", "--out", "o", "--duration",
                "4s", "--warmup", 0, "--users", 1)  # fmt: skip
    wrong = ("sample", "--workload", "chat", "--out", "x.csv", "--duration", "4x")
    sextant(*wrong, exit_code=2)
