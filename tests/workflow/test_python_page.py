"""docs/python.md: every statement, and what it shows."""

import doctest

import pytest

from support import ROOT


@pytest.mark.slow
def test_the_page_on_python_is_right(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    page = ROOT / "docs" / "python.md"
    text = page.read_text("utf-8").replace("```", "\n")
    example = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    result = doctest.DocTestRunner().run(example)
    assert result.attempted > 10 and not result.failed
