"""The progress lines of `make demo`."""

import os
import subprocess
import sys
from pathlib import Path

from support import ROOT

SNAKEFILE = """
rule all:
    input: "a.txt", "b.txt", "joined.txt"
rule make:
    output: "{name}.txt"
    wildcard_constraints: name="[ab]"
    shell: "touch {output}"
rule join:
    input: "a.txt", "b.txt"
    output: "joined.txt"
    shell: "test ! -e broken && touch {output}"
"""


def run(folder: Path, snakefile: str = SNAKEFILE) -> subprocess.CompletedProcess[str]:
    (folder / "Snakefile").write_text(snakefile)
    command = [sys.executable, "-m", "snakemake", "--cores", "1", "--logger", "sextant-progress"]
    plugins = {"PYTHONPATH": str(ROOT / "workflow" / "plugins")}
    return subprocess.run(
        command, cwd=folder, env=os.environ | plugins, capture_output=True, text=True
    )


def test_each_finished_job_is_one_line_and_what_fails_is_said(tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    done = run(tmp_path)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line.split()[:3] for line in lines] == [["1", "of", "3"], ["2", "of", "3"]]
    assert {line.split(";")[0][-6:] for line in lines} == {"make a", "make b"}
    # The other job of the rule is still to come, then one of a rule that may take as long.
    assert all(line.endswith(" left") for line in lines)
    assert "Error in rule join" in done.stderr

    (tmp_path / "broken").unlink()
    (line,) = run(tmp_path).stdout.splitlines()
    assert line.startswith("  1 of 1") and line.endswith("join")
    assert "Nothing to be done" in run(tmp_path).stderr

    # What a killed Snakemake leaves.
    (tmp_path / "joined.txt").unlink()
    locks = tmp_path / ".snakemake" / "locks"
    locks.mkdir(exist_ok=True)
    (locks / "0.output.lock").write_text("joined.txt\n")
    assert "snakemake --unlock, then the same command again" in run(tmp_path).stderr


def test_a_cell_is_announced_and_after_the_first_one_the_time_left_is_known(tmp_path: Path) -> None:
    cells = SNAKEFILE.replace("rule make:", "rule benchmark_cell:")
    others = """
rule evaluate:
    output: "{name}.score"
    shell: "touch {output}"
"""
    wanted = '"a.txt", "b.txt", "c.score", "d.score", "joined.txt"'
    cells = cells.replace('"a.txt", "b.txt", "joined.txt"', wanted, 1)
    done = run(tmp_path, cells + others)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    started = [line.split() for line in lines if "started" in line]
    assert sorted(started) == [["started", "benchmark_cell", name] for name in "ab"]
    finished = [line for line in lines if "started" not in line]
    first = next(i for i, line in enumerate(finished) if "benchmark_cell" in line)
    assert not any(line.endswith(" left") for line in finished[:first])
    # Also while the two evaluations have still to come.
    assert all(line.endswith(" left") for line in finished[first:-1])
