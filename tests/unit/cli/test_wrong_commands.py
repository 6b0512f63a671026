"""Wrong command lines and broken files: one plain error, which names the option and the fix."""

import re
import shlex
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from command import sextant
from sextant.base.errors import InputError
from sextant.cli.app import app, main
from support import ROOT

LLM = f"--hf-config {ROOT / 'resources/llms/llama-7b.json'}"
COLUMNS = "--columns arrival=ts,input_tokens=in,output_tokens=out"
LOAD = "load --base-url http://127.0.0.1:9 --model m --input-tokens 3 --output-tokens 4 --out o"
FILES = {
    "dates.csv": "ts,in,out\n2026-01-01 00:00:00,2,3\n",
    "array.json": '[{"startTime": 1700000000, "prompt_tokens": 1, "completion_tokens": 2},',
    "list.json": "[1]",
    "spaces.tsv": "slo_id nttft_ms itl_ms percentile users\na 9 9 50 4\n",
    "file": "",
}
WRONG = {
    "recomend": "Did you mean 'recommend'. Fix: see sextant --help",
    "recommend --userss 4": "No such option: --userss .*--users.* Fix: see sextant recommend",
    "recommend --decision foo": "field '--decision': 'foo' is not one of 'utility', 'paper'",
    "recommend --users 1 --itl-ms 1": "one LLM is needed",
    "recommend --llm x --users 1 --itl-ms 1": r"has no LLM 'x'.*\(--hf-config\).*`make demo`",
    "recommend --llm google/gemma-3-27b-it --users 1 --itl-ms 1": (
        r"Fix: give .*llms/google__gemma-3-27b-it.json \(--hf-config\)"
    ),
    f"recommend {LLM} --users 4 --input-tokens 9 --output-tokens 1 --ttft-ms 9 --tpot-ms 9": (
        "'--tpot-ms': requests with an output of 1 token have no time between tokens"
    ),
    f"capacity {LLM} --request-rate 1 --input-tokens 9 --output-tokens 1 --itl-ms 9": "'--itl-ms'",
    "capacity --trace results/traces/t.parquet --ttft-ms 1 --llm x": "`make demo` makes those",
    f"recommend {LLM} --users 4 --ttft-ms nan": "field '--ttft-ms': 'nan' is not a limit",
    "recommend --llm llama-7b --users 1 --itl-ms 1 --format html": "'--out'",
    f"explain {LLM} --users-per-replica 4": "'--gpu-profile': a latency needs a GPU profile and us",
    "explain": "'--hf-config': no LLM is named",
    "explain --hf-config list.json": "list.json: not a JSON object, so it is not an LLM's config",
    "show --database none.duckdb": "none.duckdb: there is no store here",
    "show --database .": "a folder is no store. Fix: give the file of a store",
    "sample --workload none -n 1 --out x.xlsx": "x.xlsx",
    "ingest none.csv --format azure --out x": "none.csv: there is no such file",
    "ingest dates.csv": "Missing option '--out'",
    "plan --budget-hours nan": "field '--budget-hours': it has to be greater than or equal to 0",
    "plan --configfile none.yaml": "field '--configfile': file 'none.yaml' does not exist",
    "plan": "config/demo.yaml: there is no such file here. Fix: run this in the project's",
    "doctor": "config/demo.yaml: there is no such file here. Fix: run this in the project's",
    f"ingest dates.csv {COLUMNS} --time-unit s --out t": "ts: not a number.*--time-unit iso",
    "ingest array.json --format litellm --out t": r"after 1 JSON values .* it is cut short",
    f"ingest dates.csv {COLUMNS} --out t --max-rate-rps nan": "field '--max-rate-rps'",
    "ingest list.json --format litellm --max-rejected-fraction 2 --out t": "'--max-rejected-fract",
    f"ingest dates.csv {COLUMNS} --time-unit iso --out .": "field '--out': file '.' is a directory",
    "fit conversatoin --out w": "there is no such file. Fix: .* or give a use case: text-gen",
    "fit summarization --out file": "field '--out': dir 'file' is a file",
    "sample --workload summarization --request-rate 0 --out s.csv -n 1": "'--request-rate': 0.0 is",
    "evaluate": "there is no store here.*--source: archive:inferencex, .*archive:llm-pilot",
    "evaluate --slos spaces.tsv --source archive:llm-pilot": "separate the columns with one tab",
    f"recommend {LLM} --users 4 --ttft-ms p97:1": "^Error: field '--ttft-ms': 97 should be 50",
    f"recommend {LLM} --users 4 --ttft-ms 1 --seed 99999999999": "'--seed': it has to be less",
    "import-characterization guidellm --from list.json --out o --gpu-profile 1xH100-80GB": (
        "list.json: was not written by guidellm. Fix: give guidellm's benchmarks.json"
    ),
    "compare none other": "^Error: none: No such file or directory$",
    f"{LOAD} --users 1 --vocab-size 0": "field '--vocab-size': a vocabulary of 0",
}


@pytest.mark.parametrize(("command", "said"), WRONG.items(), ids=list(WRONG))
def test_a_wrong_command_is_one_error_and_status_2(
    command, said, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sys, "argv", ["sextant", *shlex.split(command)])
    with pytest.raises(SystemExit) as ended:
        main()
    error = capsys.readouterr().err.strip()
    assert ended.value.code == 2
    assert error.startswith("Error: ") and "\n" not in error
    assert re.search(said, error), error
    assert {path.name for path in tmp_path.iterdir()} == {*FILES}


GROUP = typer.main.get_command(app)
CONTEXT = typer.Context(GROUP)


@pytest.mark.parametrize("name", GROUP.list_commands(CONTEXT))
def test_help_shows_whole_names_of_options_on_a_narrow_terminal(name, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, [name, "--help"]).output
    for parameter in GROUP.get_command(CONTEXT, name).params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            assert not option.startswith("-") or re.search(rf"{option}(?![\w-])", shown), shown


def test_without_a_command_the_help_is_printed(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["sextant"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert not ended.value.code and "recommend" in capsys.readouterr().out


@pytest.mark.parametrize(("to", "said"), [(">&-", "is closed"), ("> /dev/full", "No space left")])
def test_a_standard_output_that_takes_nothing_is_an_error(to, said):
    program = "from sextant.cli.app import main; main()"
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(program)} --version {to}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 2 and "standard output" in done.stderr and said in done.stderr


def test_nobody_is_told_to_delete_a_file_of_his_own(tmp_path):
    own = tmp_path / "own.csv"
    own.write_text("a,b\n1,2\n")
    asked = ("recommend", "--llm", "x", "--users", 1, "--ttft-ms", 5, "--database", own)
    for command in (asked, ("compare", own, own)):
        with pytest.raises(InputError, match=r"own\.csv.*Fix: give (a|the) ") as error:
            sextant(*command)
        assert "delete it" not in str(error.value)
