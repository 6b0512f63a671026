"""docs/serve.md: the server as the page starts it, and every command that asks it."""

import re

import pytest
from test_walk import check, run, steps

from served import serving
from support import ROOT

URL = "http://127.0.0.1:8080"


@pytest.mark.slow
def test_every_command_of_the_page_prints_what_it_says(tmp_path) -> None:
    text = (ROOT / "docs" / "serve.md").read_text()
    (options,) = re.findall(r"^sextant serve --port 8080(.*)$", text, re.M)
    assert len(steps("serve.md")) >= 3
    with serving(tmp_path, *options.split()) as served:
        for step in steps("serve.md"):
            check(step, run(step.command.replace(URL, served.url), tmp_path))
