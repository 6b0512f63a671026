"""Pages with commands, docs/walk.md the first: every command, and what it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from stub_server import StubServer, answer_endpoint
from support import ROOT

URL = "http://127.0.0.1:8000"
"""What the page loads; here a server of known timing."""
ITL_S = 0.01
DURATION = "--duration 60 --warmup 10"
_NUMBER = re.compile(r"\d[\d,.]*")


PAGES = [
    ("walk.md", 7),
    ("deployments.md", 3),
    ("autoscaling.md", 2),
    ("sessions.md", 4),
    ("api.md", 3),
    ("rightsizing.md", 6),
    ("deploy.md", 7),
]
"""Pages, and how many commands they have at least."""


class Step(NamedTuple):
    """A command of the page and the lines below it."""

    command: str
    printed: list[str]
    is_timed: bool
    """Whether its numbers are times of this machine."""


def steps(page: str) -> list[Step]:
    found, text = [], (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"^```console( timed)?\n(.*?)^```$", text, re.M | re.S)
    for timed, block in blocks:
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            lines = part.replace("\\\n", " ").splitlines()
            found.append(
                Step(lines[0], [" ".join(line.split()) for line in lines[1:]], bool(timed))
            )
    return found


def run(command: str, folder: Path) -> list[str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euc", command],
        cwd=folder,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def check(step: Step, printed: list[str]) -> None:
    """Compare what is printed with the page, where a line of `…` stands for any others."""
    wanted = [_NUMBER.sub("#", line) if step.is_timed else line for line in step.printed]
    found = "\n".join(_NUMBER.sub("#", line) if step.is_timed else line for line in printed)
    pattern = "\n".join("(?:.*\n)*.*" if line == "…" else re.escape(line) for line in wanted)
    assert re.fullmatch(pattern, found), f"{step.command}\n{found}"


@pytest.mark.slow
@pytest.mark.parametrize(("page", "n_steps"), PAGES)
def test_every_command_of_a_page_prints_what_it_says(page, n_steps, tmp_path):
    (tmp_path / "resources").symlink_to(ROOT / "resources")
    assert len(steps(page)) >= n_steps
    with StubServer(answer_endpoint("llama-3.3-70b", itl_s=ITL_S)) as server:
        for step in steps(page):
            command = step.command.replace(URL, server.url)
            check(step, run(command.replace(DURATION, "--duration 5 --warmup 0.2"), tmp_path))
