"""Sheets: typed, checked, and clear about what is wrong where."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from sextant.base.errors import InputError
from sextant.base.files import read_json
from sextant.base.sheets import load_sheet, read_yaml
from sextant.experiment.servers import VariantRow
from sextant.experiment.sheets import ScenarioRow
from sextant.facts.slo import SLO
from support import time_limit

HEADER = "slo_id\tnttft_ms\titl_ms\tpercentile\tusers\n"


def sheet(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "slos.tsv"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["slos.tsv", "empty"]),
        (HEADER.replace("users", "user"), ["line 1", "'user'", "unknown column"]),
        (HEADER.replace("\t", "  "), ["line 1", "several names", "one tab each"]),
        ("nttft_ms\titl_ms\tpercentile\n", ["line 1", "'slo_id'", "missing"]),
        (HEADER + "a\0\t1\t2\t50\t3\n", ["line 2", "NUL"]),
        (HEADER + "a\t1\t2\t50\t3\n\udcff", ["line 3", "not UTF-8"]),
        (HEADER.replace("itl_ms", "slo_id"), ["line 1", "'slo_id'", "column twice"]),
        (HEADER + "a\t1\t2\t50\n", ["line 2", "4 cells under 5 columns"]),
        (HEADER + "a\tfast\t2\t50\t3\n", ["line 2", "'nttft_ms'", "'fast'"]),
        (HEADER + "a\t-1\t2\t50\t3\n", ["line 2", "'nttft_ms'", "above 0"]),
        (HEADER + "a\tnan\t2\t50\t3\n", ["line 2", "'nttft_ms'"]),
        (HEADER + "a\tinf\t2\t50\t3\n", ["line 2", "'nttft_ms'"]),
        (HEADER + "a\t1\t2\t75\t3\n", ["line 2", "'percentile'", "75"]),
        (HEADER + "a\t1\t2\t50\t0\n", ["line 2", "'users'"]),
        (HEADER + "\t1\t2\t50\t3\n", ["line 2", "slo_id"]),
        (HEADER + "a\u202eb\t1\t2\t50\t3\n", ["line 2", "'slo_id'", "U+202E"]),
        (HEADER + "é\t1\t2\t50\t3\ne\u0301\t1\t2\t50\t3\n", ["line 3", "'slo_id'", "line 2 as"]),
        (HEADER + "A\t1\t2\t50\t3\na\t1\t2\t50\t3\n", ["line 3", "line 2 as 'A'"]),
        (HEADER + "a\t" + "1" * 200_000 + "\t2\t50\t3\n", ["line 2", "field larger"]),
        (HEADER + "a\t1\t2\t50\t3\na\t1\t2\t50\t3\n", ["line 3", "'slo_id'", "line 2"]),
    ],
)
def test_bad_sheets_get_one_error_that_names_the_place(
    tmp_path: Path, text: str, said: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        load_sheet(sheet(tmp_path, text), SLO, "slo_id")
    for part in said:
        assert part in str(caught.value)


@pytest.mark.parametrize("read", [load_sheet, read_yaml, read_json])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none", "No such file"),
        ("folder", "Is a directory"),
        ("dangling", "No such file"),
        ("pipe", "it is a pipe or a device"),
        ("device", "it is a pipe or a device"),
        ("large", "it has more than"),
    ],
)
def test_what_is_not_a_plain_file_is_one_error_at_once(
    tmp_path: Path, read: Callable, name: str, said: str
) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    elif name == "pipe":
        os.mkfifo(path)
    elif name == "dangling":
        path.symlink_to(tmp_path / "nowhere")
    elif name == "device":
        path.symlink_to("/dev/zero")
    elif name == "large":
        with path.open("wb") as file:
            file.truncate(2**26 + 1)
    if read is read_json:
        said, errors = "", (OSError, InputError)
    else:
        errors = (InputError,)
    with time_limit(20), pytest.raises(errors, match=said or None):
        read(path, SLO) if read is load_sheet else read(path)


def test_no_variant_takes_the_place_of_the_default(tmp_path: Path) -> None:
    text = "variant_id\treplicas\ndefault\t2\n"
    with pytest.raises(InputError, match=r"'variant_id'.*not `default`"):
        load_sheet(sheet(tmp_path, text), VariantRow, "variant_id")


def test_all_wrong_rows_of_a_sheet_are_named_at_once(tmp_path: Path) -> None:
    sheet = tmp_path / "scenarios.tsv"
    rows = ["a\tclosed_loop\t1, 2, 4\t9", "b\tclosed\t1\t9", "c\tbatch\t4\t9", "a\tbatch\t1\t-1"]
    sheet.write_text("\n".join(["scenario_id\tkind\tlevels\tduration_s", *rows]) + "\n")
    with pytest.raises(InputError) as raised:
        load_sheet(sheet, ScenarioRow, "scenario_id")
    text = str(raised.value)
    assert text.startswith(f"{sheet}, line 3, field 'kind'")
    assert "Wrong, too: line 5, field 'duration_s'" in text and "line 2" not in text
    sheet.write_text("\n".join(["scenario_id\tkind\tlevels\tduration_s", *rows[1:2] * 99]) + "\n")
    with pytest.raises(InputError, match=r"line 2.*line 7, field 'kind'[^;]*$"):
        load_sheet(sheet, ScenarioRow, "scenario_id")
