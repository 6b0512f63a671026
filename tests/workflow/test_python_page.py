"""What pages say in Python: every statement, and what it shows."""

import doctest

import pytest

from support import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n_statements"), [("python.md", 10), ("deploy.md", 3)])
def test_the_python_of_a_page_is_right(name: str, n_statements: int, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    page = ROOT / "docs" / name
    text = page.read_text("utf-8").replace("```", "\n")
    example = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    result = doctest.DocTestRunner().run(example)
    assert result.attempted >= n_statements and not result.failed
