"""The page of standing accuracy is what its script writes: the form, and its numbers elsewhere."""

import re
import runpy

import numpy as np
import pandas as pd
import pytest

from points_folder import write_points_folder
from sextant.judge.known import LLM_KINDS
from sextant.judge.task import task_of_characterization
from sextant.points.folder import load_folder
from support import ROOT

SCRIPT = ROOT / "benchmarks" / "accuracy_page.py"
LLMS = ("meta-llama__Llama-3.1-70B", "Qwen__Qwen3-32B", "nvidia__Llama-3.1-8B-Instruct-FP8")
COLUMNS = (
    *("llm_id", "gpu_profile_id", "precision", "input_tokens", "output_tokens", "users"),
    *("mean_ttft_ms", "mean_tpot_ms"),
)


@pytest.fixture(scope="module")
def script() -> dict:
    return runpy.run_path(str(SCRIPT), run_name="benchmark")


def predictions(n: int, off: float) -> pd.DataFrame:
    """Return predictions that are off by a share, of points of several kinds."""
    names = [*LLM_KINDS]
    users = np.arange(1, n + 1)
    table = pd.DataFrame({"users": users, "input_tokens": 700.0 * users, "engine": "vllm"})
    table["llm_id"] = [LLMS[i % 3] for i in range(n)]
    table["llm_kind"] = [names[i % len(names)] for i in range(n)]
    for metric in ("ttft", "tpot"):
        table[f"{metric}_ms"] = 100.0
        table[f"{metric}_predicted_ms"] = 100.0 * (1 + off)
        table[f"{metric}_lo_ms"], table[f"{metric}_hi_ms"] = 50.0, 200.0
        table[f"{metric}_crps"] = 0.1
    table[["is_version_new", "is_maker_new"]] = False
    table.loc[0, "input_tokens"] = np.nan  # some sources do not say
    return table.assign(is_impossible=users == n, family="qwen3", gpu="H100-80GB")


def made_page(script: dict, n: int, off: float) -> str:
    table = predictions(n, off)
    return script["page"](script["Judged"](table, table), "2026-01-02")


def form(text: str) -> list[str]:
    """Return a page's paragraphs and heads of tables without numbers and plurals."""
    lines: list[str] = []
    for line in text.splitlines():
        is_row = line.startswith("|") and bool(lines) and lines[-1].startswith("|")
        lines += [] if is_row else [line]
    without = re.sub(r"[0-9][0-9.,-]*", "#", "\n".join(lines))
    plain = re.sub(r"\b(point|type|LLM)s\b", r"\1", without)
    return [" ".join(block.split()) for block in plain.split("\n\n")]


def test_the_page_is_of_the_form_that_its_script_writes(script) -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    made = made_page(script, 40, 0.2)
    assert form(page) == form(made)
    assert form(page + "\n\nMore.\n") != form(made)


def test_errors_keep_their_sign_and_points_that_cannot_be_do_not_count(script) -> None:
    made = made_page(script, 20, -0.2)
    assert "2026-01-02" in made and "1 point that cannot be" in made
    assert "| `qwen3` | 19 | −20 | −20 to −20 | −20 | −20 to −20 |" in made
    assert "| H100-80GB | 19 |" in made and "| vllm | 19 |" in made
    assert "| 1 to 4 users at once | 4 |" in made and "| 17 to 64 users at once | 3 |" in made
    assert "| over 4,500 input tokens | 13 |" in made
    assert "| all points | 19 | 20%, 100%, 4 | 20%, 100%, 4 |" in made


def test_a_metric_that_was_never_measured_is_a_dash(script) -> None:
    table = predictions(8, 0.1).assign(ttft_ms=np.nan)
    made = script["page"](script["Judged"](table, table), "2026-01-02")
    assert "| `qwen3` | 7 | – | – | +10 | +10 to +10 |" in made
    assert "| all points | 7 | – | 10%, 100%, 4 |" in made


@pytest.fixture
def folder(tmp_path):
    """Write a small source: three LLMs on two GPU types."""
    usd_per_hour = {"4xH100-80GB": 6.0, "4xH200-141GB": 9.0}
    rows = [
        (llm_id, profile_id, "fp8", 1000, 200, users, 60 + 20 * users, 8 + users)
        for llm_id in LLMS
        for profile_id in usd_per_hour
        for users in (1, 8)
    ]
    return write_points_folder(tmp_path, LLMS, usd_per_hour, pd.DataFrame(rows, columns=COLUMNS))


def test_the_script_judges_a_source_and_says_each_fold(script, folder, capsys) -> None:
    known = load_folder(folder)
    made = script["page"](script["judged"](task_of_characterization(known)), "2026-01-02")
    assert form(made) == form(made_page(script, 40, 0.2))
    assert "12 points of 3 LLMs on 2 GPU types" in " ".join(made.split())
    assert "| `llama` | 8 |" in made and "| H200-141GB | 6 |" in made
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "gpu held out: roofline: fold 1 of 2 (H100-80GB)"
    assert told[-1].startswith("llm held out: roofline: fold 3 of 3 (")
