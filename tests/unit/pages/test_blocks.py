"""The model of blocks: what text, page and JSON make of a document."""

import json
import math
from html.parser import HTMLParser

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sextant.pages import blocks as made
from sextant.pages.blocks import (
    Beside,
    Cell,
    Chart,
    Document,
    KeyFigure,
    KeyFigures,
    Note,
    Section,
    Table,
    as_json,
    as_text,
)
from sextant.pages.page import as_page, write_page

SVG = '<svg role="img" aria-label="A"></svg>'
ORIGIN = {"sextant_version": "1", "git_commit": "c", "inputs_sha256": {"a": "f00"}}
OPTIONS = Table(["Price", "Chance", "Option"], [["6.9 USD/h", 0.97, "1 × H100"]] * 2, {0, 2})
ANSWER = Document(
    "A <title>",
    [
        made.Headline("One replica."),
        Note("Doubtful.", "warning"),
        Note("Very.", "warning"),
        made.Facts(["It serves 8 users.", ("USD a month", "5,022")]),
        Section("Options", [OPTIONS, Chart(SVG, "A caption.", name="options/1")]),
        Section("Settings", [Table(["Setting", ""], [["seed", 1]])], is_detail=True),
        Section("Curves", [Chart(lambda: SVG)]),
        Note("From <here>."),
    ],
    {"value": math.nan, "rows": pd.DataFrame({"a": [1.0, math.inf]})},
    "for 8 users",
    ORIGIN,
)


def test_text_has_the_answer_first_and_tables_aligned():
    assert as_text(ANSWER).split("\n\n") == [
        "One replica.\nDoubtful.\nVery.\nfor 8 users",
        "It serves 8 users.\nUSD a month  5,022",
        "Options:\n  Price      Chance  Option\n"
        "  6.9 USD/h    0.97  1 × H100\n  6.9 USD/h    0.97  1 × H100",
        "From <here>.",
    ]


def test_text_is_wrapped_where_a_width_is_given():
    rows = [["a", "one two three four five six seven"]]
    document = Document("", [Note("word " * 9), Section("S", [Table((), rows, {0, 1})])])
    lines = ["word word word word word word", "word word word", "", "S:"]
    table = ["  a  one two three four five six", "     seven"]
    assert as_text(document, 32).splitlines() == lines + table
    assert as_text(document).splitlines()[-1] == "  a  one two three four five six seven"


def test_a_page_shows_all_blocks_escaped():
    html = as_page(ANSWER)
    for part in (
        *("<title>A &lt;title&gt;</title>", "<h1>One replica.</h1>"),
        *("<li>Doubtful.</li>\n<li>Very.</li>", "<details><summary>Settings</summary>"),
        '<a href="#options">Options</a><a href="#curves">Curves</a></nav>',
        '<th scope="row">6.9 USD/h</th><td data-label="Chance" class="n">0.97</td>',
        f"<figure>{SVG}\n<figcaption>A caption.</figcaption>",
        *("<p>From &lt;here&gt;.</p>", "a: SHA-256 <code>f00</code>"),
    ):
        assert part in html
    assert html.count('class="warn"') == 1 and "script-src" not in html
    assert '<p class="kind">A &lt;title&gt;</p>' in html  # what kind of answer it is


def tags_of(text: str) -> list[tuple[str, list[str]]]:
    """Return tags and names of attributes of a page that has a text wherever data can stand."""
    cell = Cell(text, text, "good", text)
    table = Table([text, "B", text], [[text, 1, cell]] * 3, {0, 2}, note=text)
    blocks = [
        made.Headline(text),
        Note(text, "warning"),
        Note(text, "soft", link=f"#{text}"),
        made.Facts([text, (text, text)]),
        Section(text, [table, Chart(SVG, text, text), Section(text, [Note(text)])]),
        Section(text, [table], is_detail=True),
        KeyFigures([KeyFigure(text, text, text, "doubt")]),
        Beside([Note(text), table]),
    ]
    origin = {"sextant_version": text, "git_commit": text, "inputs_sha256": {text: text}}
    found = []

    class Tags(HTMLParser):
        def handle_starttag(self, tag, attrs):
            found.append((tag, [name for name, _ in attrs]))

    Tags().feed(as_page(Document(text, blocks, {}, text, origin)))
    return [each for each in found if each != ("code", [])]


NASTY = st.text(st.sampled_from("<>&\"'`/=!-aescript \n{}%"), min_size=1) | st.text(min_size=1)


@settings(max_examples=25)
@given(NASTY)
@example("</script><script>alert(1)</script>")
@example('" onload="x')
@example("`<b>`")
def test_no_text_opens_a_tag_or_an_attribute(text):
    assert tags_of(text) == tags_of("x" * max(len(text), 1))


@pytest.mark.parametrize("name", ["`${alert(1)}`", "` `", "`<b>`", "`a b`.json", "`a&b`"])
def test_backticks_in_a_name_are_text(name):
    assert "<code>" not in as_page(Document("T", [Note(name)]))


def test_commands_and_files_between_backticks_are_code():
    text = "Run `sextant plan --budget-hours 20`, or `make demo`; see `run.json` and `metrics`."
    assert as_page(Document("T", [Note(text)])).count("<code>") == 4


def test_a_script_is_named_in_the_policy_of_its_page():
    widgets = [made.Widget("<b>1</b>", "b { }", "go()"), made.Widget("<b>2</b>", "b { }", "go()")]
    html = as_page(Document("", widgets))
    assert html.count("<script>go()</script>") == html.count("b { }") == 1
    assert "script-src 'sha256-" in html and as_text(Document("", widgets)) == ""


def test_files_of_a_page_replace_the_former_ones(tmp_path):
    # JSON has null for what is no number.
    assert json.loads(as_json(ANSWER)) == {"value": None, "rows": [{"a": 1.0}, {"a": None}]}
    figures = tmp_path / "figures"
    blocks = [Chart(SVG, name=name) for name in ("so scores", "so_Scores", "")]
    for name in ("old", "new"):
        document = Document("T", [*blocks, Chart(SVG, name=name)], {"a": 1})
        write_page(document, tmp_path / "p.html", tmp_path / "p.json", figures)
    assert (tmp_path / "p.html").read_text() == as_page(document)
    assert json.loads((tmp_path / "p.json").read_text()) == {"a": 1}
    assert sorted(path.stem for path in figures.iterdir()) == ["new", "so_Scores_2", "so_scores"]


def test_blocks_of_a_page_are_plain_in_text():
    figures = KeyFigures([KeyFigure("Price", "3.99 USD/h", "2,913 USD a month", "good")])
    cell = Cell("2 × H100", "7.98 USD/h, 0.93", "good", "levels end at 8 users")
    table = Table(["LLM", "chat"], [["a", cell]] * 3, {0, 1})
    document = Document("T", [made.Headline("Yes."), figures, Beside([table, Note("Note.")])])
    row = "a    2 × H100, 7.98 USD/h, 0.93"
    assert as_text(document).splitlines() == ["Yes.", "", "LLM  chat", row, row, row, "", "Note."]
    html = as_page(document)
    assert "<dt>Price</dt><dd>3.99 USD/h</dd>" in html and '<table class="sorts">' in html
    assert "2 × H100<small>7.98 USD/h, 0.93</small><small>levels end at 8 users</small>" in html
    two_rows = Document("T", [Table(["LLM", "chat"], [["a", cell]] * 2)])
    assert "<script>" not in as_page(two_rows) and "<script>" in html  # nothing to sort


def test_a_table_of_a_frame_has_the_columns_that_have_a_label():
    frame = pd.DataFrame({"x": ["p", None], "n": [1.0, math.nan], "is_it": [True, False], "o": 0})
    table = Table.of_frame(frame, {"is_it": "Is it?", "n": "Number", "x": "Word"})
    assert table.header == ["Is it?", "Number", "Word"]
    assert table.cells == [["yes", "1", "p"], ["no", "–", "–"]]
    assert table.words == {0, 2}
