"""The kit for pages: words, tables and sections, whatever they are about."""

import math
import tomllib

import pandas as pd
import pytest

from sextant.base.rows import column_lists, frame_rows
from sextant.pages.wording import interval, plural, yes_or_no
from sextant.points.metrics import POINT_LABELS
from support import ROOT


@pytest.mark.parametrize(
    ("count", "noun", "words"),
    [(1, "batch", "1 batch"), (2, "batch", "2 batches"), (1200, "user", "1,200 users")],
)
def test_a_noun_has_its_plural(count, noun, words):
    assert plural(count, noun) == words


def test_what_is_not_known_is_said():
    assert interval(0.951, 1.1) == "0.95–1.10"
    assert interval(math.nan, 1.1) == "–"
    assert [yes_or_no(holds) for holds in (True, False, None)] == ["yes", "no", "not known"]


def test_rows_and_columns_have_none_for_what_is_missing():
    frame = pd.DataFrame({"a": [1, 2], "b": [math.nan, math.inf]})
    assert frame_rows(frame) == [{"a": 1, "b": None}, {"a": 2, "b": math.inf}]
    assert column_lists(frame) == {"a": [1, 2], "b": [None, None]}


def test_every_latency_has_a_label_with_its_unit():
    assert POINT_LABELS["median_ttft_ms"] == "TTFT, median (ms)"
    assert POINT_LABELS["p99_nttft_ms"] == "nTTFT, p99 (ms/token)"


def test_an_installed_package_has_every_template():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    library = ROOT / "scripts" / "sextant"
    shipped = {path for form in settings["package-data"]["sextant"] for path in library.glob(form)}
    kinds = ("*.j2", "*.css", "*.js", "*.sql")
    assert shipped == {path for kind in kinds for path in library.rglob(kind)}
