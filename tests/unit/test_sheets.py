"""Sheets: typed, checked, and clear about what is wrong where."""

from pathlib import Path

import pytest

from sextant.base.errors import InputError
from sextant.base.sheets import load_sheet
from sextant.experiment.servers import VariantRow
from sextant.facts.slo import SLO

HEADER = "slo_id\tnttft_ms\titl_ms\tpercentile\tusers\n"


def sheet(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "slos.tsv"
    path.write_text(text, encoding="utf-8")
    return path


def test_cells_get_the_types_of_the_fields(tmp_path: Path) -> None:
    (row,) = load_sheet(sheet(tmp_path, HEADER + "chat\t1.5\t20\t50\t16\n"), SLO, "slo_id")
    assert row == {"slo_id": "chat", "nttft_ms": 1.5, "itl_ms": 20.0, "percentile": 50, "users": 16}
    assert isinstance(row["users"], int)
    assert isinstance(row["itl_ms"], float)


def test_comments_blank_lines_byte_order_mark_and_crlf_are_no_rows(tmp_path: Path) -> None:
    text = "\ufeff# limits\r\n" + HEADER.replace("\n", "\r\n") + "\r\na\t1\t2\t50\t3\r\n"
    (row,) = load_sheet(sheet(tmp_path, text), SLO, "slo_id")
    assert row.line == 4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ["slos.tsv", "empty"]),
        (HEADER.replace("users", "user"), ["line 1", "'user'", "unknown column"]),
        (HEADER.replace("\t", "  "), ["line 1", "several names", "one tab each"]),
        ("nttft_ms\titl_ms\tpercentile\n", ["line 1", "'slo_id'", "missing"]),
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


def test_a_missing_sheet_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.tsv"):
        load_sheet(tmp_path / "none.tsv", SLO)


def test_no_variant_takes_the_place_of_the_default(tmp_path: Path) -> None:
    text = "variant_id\treplicas\ndefault\t2\n"
    with pytest.raises(InputError, match=r"'variant_id'.*not `default`"):
        load_sheet(sheet(tmp_path, text), VariantRow, "variant_id")
