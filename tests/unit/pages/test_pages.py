"""The kit for pages: words, tables and sections, whatever they are about."""

import math

import pandas as pd

from sextant.base.files import frame_rows, jsonable


def test_rows_and_columns_have_none_for_what_is_missing():
    frame = pd.DataFrame({"a": [1, 2], "b": [math.nan, math.inf]})
    assert frame_rows(frame) == [{"a": 1, "b": None}, {"a": 2, "b": math.inf}]
    assert jsonable(frame.to_dict("series")) == {"a": [1, 2], "b": [None, None]}
