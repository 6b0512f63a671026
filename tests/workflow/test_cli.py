"""The command line on the finished project: answers, formats, exit codes."""

import json
import re
import shlex

import pytest

from support import ROOT


@pytest.fixture
def sextant(finished):
    return finished.sextant


def test_recommend_from_measurements(sextant) -> None:
    limits = ("--users", "10", "--nttft-ms", "1000", "--itl-ms", "1000")
    done = sextant("recommend", "--llm", "llm-opt-6m", *limits, "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["basis"] == "measured"
    # Limits that all points meet: two users a replica, five replicas of the cheaper profile. A
    # level of few requests leaves the upper ends of its intervals open: five are less likely than
    # 0.5 to meet both limits then, and ten replicas of one user each are taken.
    assert answer["gpu_profile_id"] == "1xcpu-core" and answer["replicas"] in (5, 10)
    assert answer["probability_met"] >= 0.5
    assert answer["usd_per_hour"] == pytest.approx(answer["replicas"] * 0.04)


def test_recommend_for_an_llm_that_was_never_measured(sextant) -> None:
    limits = ("--users", "10", "--nttft-ms", "1000", "--itl-ms", "1000")
    config = ("--hf-config", "resources/llms/demo-qwen2-26m.json", "--source", "measured")
    done = sextant("recommend", *config, *limits, "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["basis"] == "roofline"
    assert answer["gpu_profile_id"] == "1xcpu-core"
    assert answer["characterization"]["origin"] == "results/sextant.duckdb"
    done = sextant("recommend", *config, *limits, "--predictor", "llm_pilot")
    assert done.returncode == 2
    assert "llm_pilot does not draw samples" in done.stderr


def test_recommend_and_explain_from_what_ships(sextant, tmp_path) -> None:
    limits = ("--users", "200", "--nttft-ms", "100", "--itl-ms", "50")
    llm = ("--hf-config", str(ROOT / "tests" / "hf_configs" / "mistral-7b" / "config.json"))
    page = tmp_path / "answer.html"
    done = sextant("recommend", *llm, *limits, "--format", "html", "--out", str(page))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{page}: mistral-7b: ")
    assert page.read_text().startswith("<!DOCTYPE html>")
    chosen = ("--gpu-profile", "1xA100-40GB", "--users-per-replica", "32")
    done = sextant("explain", *llm, *chosen)
    assert done.returncode == 0, done.stderr
    assert "reading the weights" in done.stdout
    done = sextant("recommend", *llm, *limits, "--risk", "0.001", "--gpu-profiles", "1xA10-24GB")
    assert done.returncode == 3
    assert "with probability 0.999 or more" in done.stdout


def test_show_prints_every_llm_and_where_the_report_is(sextant) -> None:
    done = sextant("show")
    assert done.returncode == 0, done.stderr
    for llm in ("llm-opt-6m", "llm-llama-16m", "llm-bigcode-21m", "llm-neox-34m"):
        assert llm in done.stdout
    assert "report/index.html" in done.stdout


def _commands_of_readme() -> list[str]:
    """Return what the README has a person run on the results of `make demo`."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    part = page[page.index("Ask about what the demo measured") : page.index("## Read on")]
    blocks = re.findall(r"^```\n(.*?)^```", part, re.M | re.S)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    spans = re.findall(r"`(sextant (?:fleet|doctor|plan)\b[^`]*)`", part)
    return [line for line in lines + spans if line.startswith("sextant ")]


def test_the_commands_that_follow_the_demo_work_as_pasted(sextant) -> None:
    commands = _commands_of_readme()
    assert {line.split()[1] for line in commands} == {
        *("capacity", "fleet", "doctor", "plan", "recommend")
    }
    for line in commands:
        # The LLMs of this small run have names of their own, and its fake engine is no vLLM.
        done = sextant(*shlex.split(line.replace("demo-", "llm-"))[1:])
        wanted = 1 if "doctor" in line else 0
        assert done.returncode == wanted and done.stdout, f"{line}\n{done.stdout}{done.stderr}"
