"""`import sextant`: the command line's options as keywords, answers that show themselves."""

import doctest
import inspect
import json
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import sextant
from command import sextant as command
from sextant.api.frames import write_frame
from sextant.api.groups import options_of
from sextant.base.errors import InputError
from support import ROOT

SLOW = {"capacity", "simulate"}
LLAMA = ROOT / "resources" / "llms" / "meta-llama__Llama-3.1-8B-Instruct.json"
MEASURED = {"llm": "google__flan-ul2", "source": "archive:llm-pilot", "users": 50, "nttft_ms": 100}


@pytest.fixture(scope="module")
def answer():
    return sextant.recommend(**MEASURED, itl_ms=50)


def doctested(function) -> None:
    (example,) = [
        found
        for found in doctest.DocTestFinder(recurse=False).find(function, function.__name__)
        if found.examples
    ]
    result = doctest.DocTestRunner().run(example)
    assert result.attempted and not result.failed


@pytest.mark.parametrize("name", [name for name in sextant.__all__ if name not in SLOW])
def test_the_example_of_a_docstring_is_right(name: str, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    doctested(getattr(sextant, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SLOW))
def test_the_slow_example_of_a_docstring_is_right(name: str, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    doctested(getattr(sextant, name))


@pytest.mark.parametrize("name", sextant.__all__)
def test_the_keywords_are_the_options_of_the_command(name: str) -> None:
    from sextant.cli.app import app

    function = getattr(sextant, name)
    keywords = inspect.signature(function).parameters
    usage = CliRunner().invoke(app, [name, "--help"], terminal_width=300).output
    for option in options_of(inspect.unwrap(function)):
        if not option.is_argument:
            assert f"--{option.keyword.replace('_', '-')}" in usage
        assert option.keyword in keywords and option.keyword in function.__doc__


def test_the_import_loads_nothing_and_a_room_does_not_hide_a_function() -> None:
    code = "import sys, sextant; assert not {'pandas', 'numpy', 'typer'} & {*sys.modules}; "
    code += "import sextant.recommend.recommend; assert callable(sextant.recommend)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_answer_is_that_of_the_command_line(answer, capsys) -> None:
    options = ("--llm", MEASURED["llm"], "--source", "archive:llm-pilot", "--users", 50)
    printed = command("recommend", *options, "--nttft-ms", 100, "--itl-ms", 50, "--format", "json")
    assert answer.to_dict() == json.loads(printed)
    assert str(answer) == json.loads(printed)["text"]
    assert capsys.readouterr().out == ""


@pytest.mark.slow
def test_the_question_of_the_readme_has_the_same_json() -> None:
    options = ("--request-rate", 8, "--input-tokens", 1500, "--output-tokens", 250)
    limits = ("--ttft-ms", "p95:1000", "--tpot-ms", 40)
    printed = command("recommend", "--hf-config", LLAMA, *options, *limits, "--format", "json")
    answer = sextant.recommend(
        hf_config=LLAMA,
        request_rate=8,
        input_tokens=1500,
        output_tokens=250,
        ttft_ms="p95:1000",
        tpot_ms=40,
    )
    assert answer.to_dict() == json.loads(printed)


def test_an_answer_shows_itself(answer) -> None:
    rows = answer.to_frame()
    assert rows["gpu_profile_id"].is_unique and len(rows) == len(answer.result.alternatives)
    assert answer.to_html().startswith("<!") and "<table" in answer._repr_html_()
    assert answer.result.chosen.gpu_profile_id in repr(answer)


def test_a_card_is_escaped() -> None:
    from sextant.api.shown import ShownAnswer
    from sextant.pages.blocks import Document, Headline, Note, Section, Table

    blocks = [
        Headline("<b>"),
        Note("<i>", "warning"),
        Note("soft"),
        Section("Options", [Table(["<th>"], [["<td>"]])]),
    ]
    shown = ShownAnswer(result=None, document=lambda _: Document("t", blocks), rows=[])
    card = shown._repr_html_()
    for escaped in ("<strong>&lt;b&gt;", "&lt;i&gt;", "<th>&lt;th&gt;", "<td>&lt;td&gt;"):
        assert escaped in card
    assert "soft" not in card


def test_an_llm_is_a_path_or_a_dictionary() -> None:
    config = json.loads(LLAMA.read_text())
    question = {"source": "archive:llm-pilot", "users": 20, "nttft_ms": 100, "itl_ms": 50}
    by_path = sextant.recommend(hf_config=str(LLAMA), **question).to_dict()
    name = "meta-llama/Llama-3.1-8B-Instruct"
    by_content = sextant.recommend(hf_config=config | {"_name_or_path": name}, **question)
    assert by_content.to_dict() == by_path


def test_a_trace_is_a_path_or_a_frame(tmp_path) -> None:
    frame = pd.read_csv(ROOT / "resources" / "traces" / "azure-2023-conv-sample.csv")
    needed = frame[["arrival_s", "input_tokens", "output_tokens"]]
    whole, part = (sextant.fit(it, out=tmp_path / "w").to_dict() for it in (frame, needed))
    assert whole["n_requests"] == part["n_requests"] == len(frame)
    assert whole["ks"] == part["ks"]


def test_times_of_a_frame_count_from_its_first_request(tmp_path) -> None:
    times = pd.Series([0.0, 0.5, 2.0, 2.5])
    arrivals = [times, 1.7e9 + times]
    arrivals += [pd.Timestamp("2026-03-02", tz="UTC") + pd.to_timedelta(times, unit="s")]
    workloads = []
    for number, arrival_s in enumerate(arrivals):
        out = tmp_path / str(number)
        frame = pd.DataFrame({"arrival_s": arrival_s, "input_tokens": 9, "output_tokens": 2})
        sextant.fit(frame, out=out)
        workloads.append(pd.read_parquet(out / "arrivals.parquet"))
    for workload in workloads[1:]:
        pd.testing.assert_frame_equal(workload, workloads[0])


def test_a_trace_whose_times_are_dates_in_seconds_is_refused(tmp_path) -> None:
    path = tmp_path / "trace.parquet"
    frame = pd.DataFrame({"arrival_s": [0.0, 1.0], "input_tokens": 9, "output_tokens": 2})
    write_frame(frame, path, "trace")
    whole = pd.read_parquet(path)
    whole.assign(arrival_s=whole["arrival_s"] + 1.7e9).to_parquet(path)
    with pytest.raises(InputError, match=r"arrival_s.*0 to at most 1e[+]08 s.*ingest"):
        sextant.capacity(trace=path, hf_config=LLAMA, ttft_ms=1000, draws=0)


def test_what_is_wrong_has_one_error_with_its_fix() -> None:
    with pytest.raises(InputError, match=r"decision.*give utility or paper"):
        sextant.recommend(hf_config=LLAMA, users=1, decision="x")
    with pytest.raises(InputError, match=r"none\.duckdb"):
        sextant.compare("none.duckdb", "nothing.duckdb")


def test_a_config_that_ships_is_found_in_any_folder(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    question = {"users": 8, "input_tokens": 1000, "output_tokens": 100, "ttft_ms": 1000}
    answer = sextant.recommend(hf_config=f"resources/llms/{LLAMA.name}", tpot_ms=50, **question)
    assert answer.to_dict()["llm_id"] == LLAMA.stem
    with pytest.raises(InputError, match=r"resources/llms/none\.json.*no such file"):
        sextant.recommend(hf_config="resources/llms/none.json", tpot_ms=50, **question)


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (pd.DataFrame({"arrival_s": [0.0], "input_tokens": [1]}), "no column output_tokens"),
        (pd.DataFrame({"arrival_s": [], "input_tokens": [], "output_tokens": []}), "no rows"),
        (
            pd.DataFrame({"arrival_s": [1.0, 0.0], "input_tokens": 1, "output_tokens": 1}),
            "does not rise",
        ),
        (
            pd.DataFrame({"arrival_s": [1.0], "input_tokens": 1, "output_tokens": 1, "x": 1}),
            "other columns than a trace: x",
        ),
        (
            pd.DataFrame({"arrival_s": ["now"], "input_tokens": 1, "output_tokens": 1}),
            "neither numbers nor date-times",
        ),
    ],
)
def test_a_frame_that_is_no_trace_is_refused(frame, problem: str, tmp_path) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        sextant.fit(frame, out=tmp_path / "w")
    assert caught.value.field == "source" and caught.value.fix


@pytest.mark.parametrize(
    ("keywords", "field", "words"),
    [
        ({"request_rat": 8}, "request_rat", "request_rate"),
        ({"users": "many"}, "users", "give int"),
        ({"users": 0}, "users", "below 1"),
        ({"users": 5, "request_rate": 2.0, "ttft_ms": 5}, "users, request_rate", "one load"),
        ({"users": 5}, "ttft_ms", "no limit"),
        ({"users": 5, "ttft_ms": 5, "decision": "luck"}, "decision", "luck"),
        ({"users": 5, "ttft_ms": 5, "measured_only": 3}, "measured_only", "give bool"),
        ({"hf_config": Path("no.json"), "llm": "x", "users": 5, "ttft_ms": 5}, "llm", "one"),
    ],
)
def test_a_wrong_keyword_is_named(keywords: dict, field: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        sextant.recommend(**keywords)
    assert field in caught.value.field and "--" not in str(caught.value)


def test_lists_and_numbers_are_what_the_command_line_has() -> None:
    from sextant.api.keywords import PassedFiles, _converted

    options = {option.keyword: option for option in options_of(inspect.unwrap(sextant.recommend))}

    def converted(keyword: str, value: object) -> object:
        return _converted(options[keyword], value, PassedFiles())

    assert converted("gpu_profiles", ["1xA", "2xB"]) == "1xA,2xB"
    assert converted("source", "archive:llm-pilot") == ["archive:llm-pilot"]
    assert converted("prices", ["mine.csv", "aws"]) == Path("mine.csv,aws")
    assert converted("ttft_ms", 1000) == "1000" and converted("ttft_ms", "p95:9") == "p95:9"
    assert converted("request_rate", 8) == 8.0 and converted("risk", None) is None
