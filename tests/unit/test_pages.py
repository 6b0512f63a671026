"""The kit for pages: words, tables and sections, whatever they are about."""

import math
import tomllib

import pandas as pd
import pytest

from sextant.base.rows import column_lists, frame_rows
from sextant.pages.sections import Section, Table
from sextant.pages.wording import aligned, interval, plural, yes_or_no
from sextant.pages.write import render_sections, write_page
from sextant.points.metrics import POINT_LABELS
from support import ROOT

ORIGIN = {"sextant_version": "1", "git_commit": "c", "inputs_sha256": {}}


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [(1, "batch", "1 batch"), (2, "batch", "2 batches"), (1200, "user", "1,200 users")],
)
def test_a_noun_has_its_plural(count, noun, words):
    assert plural(count, noun) == words


def test_what_is_not_known_is_said():
    assert interval(0.951, 1.1) == "0.95–1.10"
    assert interval(math.nan, 1.1) == "–"
    assert [yes_or_no(holds) for holds in (True, False, None)] == ["yes", "no", "cannot be told"]


def test_columns_begin_below_each_other_and_short_rows_end_early():
    assert aligned([["a", "bb", "c"], ["dddd", "e"]]) == ["a     bb  c", "dddd  e"]
    assert aligned([]) == []


def test_a_table_shows_the_columns_that_have_a_label():
    frame = pd.DataFrame({"x": ["p", None], "n": [1.0, math.nan], "is_it": [True, False], "o": 0})
    table = Table.of_frame(frame, {"is_it": "Is it?", "n": "Number", "x": "Word"})
    assert table.header == ["Is it?", "Number", "Word"]
    assert table.rows == [["yes", "1", "p"], ["no", "–", "–"]]
    assert table.text_columns == {0, 2}  # numbers are aligned right
    html = render_sections("T", "", [Section("T", tables=[table])], ORIGIN)
    for cell in ('th scope="row">yes', 'td class="n">1', 'td class="name">p', 'td class="n">–'):
        assert f"<{cell}</t" in html


def test_rows_and_columns_have_none_for_what_is_missing():
    frame = pd.DataFrame({"a": [1, 2], "b": [math.nan, math.inf]})
    assert frame_rows(frame) == [{"a": 1, "b": None}, {"a": 2, "b": math.inf}]
    assert column_lists(frame) == {"a": [1, 2], "b": [None, None]}


def test_every_latency_has_a_label_with_its_unit():
    assert POINT_LABELS["median_ttft_ms"] == "TTFT, median (ms)"
    assert POINT_LABELS["p99_nttft_ms"] == "nTTFT, p99 (ms/token)"


def test_a_page_has_files_beside_it_and_old_figures_go(tmp_path):
    section = Section("Power & energy", "It grows.", figures=[("<svg></svg>", "A figure.")])
    html = render_sections("T", "about", [section], ORIGIN)
    out, figures = tmp_path / "page.html", tmp_path / "figures"
    for name in ("old", "new"):
        write_page(out, html, tmp_path / "page.json", {"a": 1}, figures, {name: "<svg></svg>"})
    assert out.read_text() == html
    assert [path.name for path in figures.iterdir()] == ["new.svg"]
    assert '<h2 id="power-energy">Power &amp; energy</h2>' in html
    assert '<p class="lead">It grows.</p>' in html and "<figcaption>A figure." in html


def test_an_installed_package_has_every_template():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    library = ROOT / "scripts" / "sextant"
    shipped = {path for form in settings["package-data"]["sextant"] for path in library.glob(form)}
    kinds = ("*.j2", "*.css", "*.js")
    assert shipped == {path for kind in kinds for path in library.rglob(kind)}
