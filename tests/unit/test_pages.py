"""The kit for pages: words, tables and sections, whatever they are about."""

import math
import tomllib

import pandas as pd

from sextant.base.files import frame_rows, jsonable
from support import ROOT


def test_rows_and_columns_have_none_for_what_is_missing():
    frame = pd.DataFrame({"a": [1, 2], "b": [math.nan, math.inf]})
    assert frame_rows(frame) == [{"a": 1, "b": None}, {"a": 2, "b": math.inf}]
    assert jsonable(frame.to_dict("series")) == {"a": [1, 2], "b": [None, None]}


def test_an_installed_package_has_every_template():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    library = ROOT / "scripts" / "sextant"
    shipped = {path for form in settings["package-data"]["sextant"] for path in library.glob(form)}
    kinds = ("*.j2", "*.css", "*.js", "*.sql", "*.yaml")
    assert shipped == {path for kind in kinds for path in library.rglob(kind)}
